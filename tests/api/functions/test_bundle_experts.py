"""Functions with experts are recognised from their source, which is never executed."""

from __future__ import annotations

import pytest

from tests.api.conftest import SOURCE
from tests.api.functions.test_bundles import facts, zipped

IMPORT = "from punctual.moe import MoELayer\n"


@pytest.mark.parametrize(
    ("source", "experts"),
    [
        ("", None),
        (IMPORT + "LAYER = MoELayer(8, 16, experts=6)\n", (6,)),
        (IMPORT + "LAYER = MoELayer(8, 16, 4)\n", (4,)),
        (IMPORT + "A, B = MoELayer(8, 16, 4), MoELayer(8, 16, experts=8)\n", (4, 8)),
        ("from punctual.moe import MoELayer as Mixed\nLAYER = Mixed(8, 16, 3)\n", (3,)),
        ("import punctual.moe\nLAYER = punctual.moe.MoELayer(8, 16, 3)\n", (3,)),
        ("from punctual import moe\nLAYER = moe.MoELayer(8, 16, 3)\n", (3,)),
        (IMPORT + "LAYER = MoELayer(8, 16, int('6'))\n", ()),
        (IMPORT + "LAYER = MoELayer(*[8, 16, 6])\n", ()),
        (IMPORT + "LAYER = MoELayer(8, 16, True)\n", ()),
        (IMPORT + "A, B = MoELayer(8, 16, 4), MoELayer\n", ()),
        (IMPORT, None),
        ("from mine import MoELayer\nLAYER = MoELayer(8, 16, 4)\n", None),
        ("# MoELayer\nMoELayer = 'MoELayer'\n", None),
    ],
)
def test_literal_numbers_of_experts_are_read(source: str, experts: tuple[int, ...] | None) -> None:
    assert facts((source + SOURCE).encode(), "train.py").experts == experts


def test_layers_of_all_modules_count() -> None:
    content = zipped(("train.py", SOURCE), ("model/layers.py", IMPORT + "LAYER = MoELayer(8, 16, 6)\n"))
    assert facts(content).experts == (6,)
