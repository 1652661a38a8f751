"""The functions of docs/moe.md train, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

TUTORIAL = (Path(__file__).parents[3] / "docs" / "moe.md").read_text()


def test_functions_of_the_tutorial_train() -> None:
    dense = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)[0]
    (change,) = re.findall(r"```diff\n(.*?)```", TUTORIAL, re.DOTALL)
    with_import, *others = change.splitlines()
    mixture = with_import[1:] + "\n" + dense
    for old, new in zip(others[::2], others[1::2], strict=True):
        assert mixture.count(old[1:] + "\n") == 1
        mixture = mixture.replace(old[1:], new[1:])
    for source in (dense, mixture):
        assert last_loss(source) < 0.1


def last_loss(source: str) -> float:
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(source, names)
    torch.manual_seed(0)
    function = names["Waves"]({"global_batch_size": 256})
    model, data = function.init_model(), function.init_dataset()
    optimizer = function.init_optimizer(model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        batch = data[torch.randint(len(data), (256,), generator=generator)]
        loss = function.train(batch, model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())
