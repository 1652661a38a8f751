"""Which jobs are fungible (A12): by their share of jobs, or only elastic ones, with the same share of the
load."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check
from research.lyra.figures.sensitivity import ALL_FUNGIBLE_ARE_ELASTIC, NAIVE
from research.lyra.published import TABLE_35, TABLE_36
from research.lyra.schemes import SCHEMES, SEEDS
from research.lyra.specs import Override
from research.lyra.sweeps import MeasuredPoint, SweepPoint, find, point, sweep

ANY, ELASTIC = "any job", "elastic jobs alone"
RULES: dict[str, tuple[Override, ...]] = {ANY: (), ELASTIC: ALL_FUNGIBLE_ARE_ELASTIC}
NAMES = ("basic", "loaning", "ideal")
NAIVELY = "Lyra, Basic, naive placement"


def _points(full: bool) -> Sequence[SweepPoint]:
    points: list[SweepPoint] = []
    for x, rules in RULES.items():
        for name in NAMES:
            told = TABLE_35[name]
            # In Ideal every job is elastic and fungible, whatever the assumptions.
            chosen = () if name == "ideal" else rules
            published = (told.queuing_mean, told.jct_mean, told.preemptions)
            points.append(point(name, full, x, rules=chosen, seeds=SEEDS, published=published))
        points.append(
            point(
                "basic", full, x, series=NAIVELY, rules=rules, two_phase=NAIVE, seeds=SEEDS,
                published=(None, None, TABLE_36["basic"][2]),
            )
        )  # fmt: skip
    return points


def _orders(rows: Sequence[MeasuredPoint]) -> Sequence[Check]:
    checks = []
    for x in RULES:
        basic, ideal, naive = (
            find(rows, label, x) for label in (SCHEMES["basic"].label, SCHEMES["ideal"].label, NAIVELY)
        )
        for name, fewer, more in (
            ("Ideal below Basic", ideal, basic),
            ("grouped below naive placement", basic, naive),
        ):
            per_use = [_per_use(one) for one in (fewer, more)]
            told = f"Preemptions for each GPU in use on loan, {name} (fungible: {x})"
            if per_use[0] is None or per_use[1] is None:
                checks.append(Check(told, None, "not run"))
            else:
                text = (
                    f"{per_use[0]:.4f} and {per_use[1]:.4f} per job submitted, over the share of GPUs on "
                    f"loan in use"
                )
                checks.append(Check(told, per_use[0] < per_use[1], text))
        used = None if basic is None else basic.on_loan
        checks.append(
            Check(
                f"GPUs on loan in use in Basic, from 0.85 (fungible: {x})",
                None if used is None else used >= 0.85,
                "not run" if used is None else f"{used:.3f}; published 0.92",
            )
        )
    return checks


def _per_use(row: MeasuredPoint | None) -> float | None:
    if row is None or row.preemptions is None or not row.on_loan:
        return None
    return row.preemptions / row.on_loan


FIGURE = sweep(
    "fungible", "What hangs on which jobs are fungible", "fungible", _points, checks=_orders,
    notes=(
        (
            "21 % of the load is fungible in Basic, and elastic jobs do 36 % of it; which jobs are both is "
            "not published (A12). Elastic jobs prefer servers on loan, so that these are used as much as "
            "there are elastic jobs for them. The same servers are lent in every row: a scheme that leaves "
            "them empty has little there to preempt."
        ),
    ),
)  # fmt: skip
