"""The file with the paths of some tokens through the experts of a trained model.

It is stored with the final weights. A deployment predicts from it which experts a batch will need. User code
may have written it, so the reader trusts nothing.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FILE_NAME = "expert_paths.pt"
FORMAT = 1
#: Most tokens whose paths are kept.
MOST_PATHS = 32_768
#: Largest file that is read.
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ExpertPaths:
    """Paths of tokens, the oldest first.

    Attributes:
        layers: names of the mixture-of-experts layers, in the order in which a token passes them.
        experts: experts of each layer.
        paths: (tokens, layers): the best expert of each token at each layer, in a type of `path_type`.
    """

    layers: tuple[str, ...]
    experts: tuple[int, ...]
    paths: Tensor


def path_type(experts: tuple[int, ...]) -> torch.dtype:
    """Return the smallest type that holds the ids of these experts."""
    types = (torch.uint8, torch.int16, torch.int32)
    return next(each for each in types if max(experts) - 1 <= torch.iinfo(each).max)


def write_expert_paths(expert_paths: ExpertPaths, path: Path) -> None:
    """Write a file that `read_expert_paths` reads.

    Raises:
        OSError: the disk does not take it.
    """
    content = {
        "format": FORMAT,
        "layers": list(expert_paths.layers),
        "experts": list(expert_paths.experts),
        "paths": expert_paths.paths.clone(),
    }
    torch.save(content, path)


def read_expert_paths(path: Path) -> ExpertPaths:
    """Read the paths that a job left.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no paths of this format; the message says what is wrong.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes; the limit is {MOST_BYTES:,}.")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of torch.save: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path.name} has the format {found!r}; it must be {FORMAT}.")
    layers: Any = content.get("layers")
    experts: Any = content.get("experts")
    if not (_is_list_of(layers, str) and _is_list_of(experts, int) and len(layers) == len(experts)):
        raise ValueError(f"{path.name} must have a name and a number of experts for each layer.")
    if not experts or min(experts) < 1:
        raise ValueError(f"{path.name} has the experts {experts}; each layer must have at least 1.")
    paths: Any = content.get("paths")
    _check_paths(path.name, paths, experts)
    return ExpertPaths(tuple(layers), tuple(experts), paths)


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def _check_paths(name: str, paths: Any, experts: list[int]) -> None:
    if not isinstance(paths, Tensor) or paths.dtype not in (torch.uint8, torch.int16, torch.int32):
        raise ValueError(f"{name} must have paths that are a tensor of uint8, int16 or int32.")
    if paths.layout != torch.strided or paths.dim() != 2 or paths.shape[1] != len(experts):
        raise ValueError(
            f"{name} has paths of the shape {tuple(paths.shape)}; it must be (tokens, {len(experts)})."
        )
    if len(paths) > MOST_PATHS:
        raise ValueError(f"{name} has the paths of {len(paths):,} tokens; the limit is {MOST_PATHS:,}.")
    if bool((paths < 0).any() or (paths >= torch.tensor(experts)).any()):
        raise ValueError(f"{name} has paths with experts that its layers do not have.")
