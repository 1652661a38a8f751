"""Table 3.10: the testbed of four training and four inference servers, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from research.lyra.published import NOT_TO_CHASE, TABLE_310
from research.lyra.schemes import SCHEMES
from research.lyra.specs import Size
from research.lyra.sweeps import SweepPoint, sweep

TESTBED = Size(4, 4, "lyra_testbed")
SEEDS = tuple(range(10))
ELASTIC = (("elastic_job_share", 10 / 180),)


def _points(full: bool) -> Sequence[SweepPoint]:
    return [
        SweepPoint(
            SCHEMES[name].label,
            "testbed",
            tuple(
                replace(SCHEMES[name].spec(TESTBED, seed), rules=ELASTIC, usage="bursty") for seed in SEEDS
            ),
            (told.queuing_mean, told.jct_mean, told.preemptions),
        )
        for name, told in TABLE_310.items()
        if name in SCHEMES
    ]


FIGURE = sweep(
    "table310", "Table 3.10: the testbed, simulated", "where", _points,
    notes=(
        ("Published values were measured on hardware. 180 jobs of two minutes to two hours on 4 + 4 "
         "servers, ten of them elastic; ten seeds. The demand of inference is a curve with bursts: 6 loans "
         "and 8 reclaims were published, three servers on loan at most."),
        f"Not to chase: {NOT_TO_CHASE['testbed_means']}",
    ),
)  # fmt: skip
