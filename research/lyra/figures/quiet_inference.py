"""A second setting, in which all of Basic is within its bands: a quiet inference cluster, elastic jobs on
loan, a queue whose head may be passed.

Each part follows from something published. 52 % of all GPUs in use with 72 % of the training cluster imply 35
% in inference (Table 3.5). Servers on loan that are 92 % in use, and half of all reclaims met by shrinking,
imply elastic jobs there (A12). The queuing times imply a hundredth of jobs that waits under every scheme and
is passed by others (`queuing.py`). The setting was searched for: it is no evidence that the published runs
used it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from research.figure import Check, Context, Table
from research.lyra.figures.queuing import BANDED, BASE, NEAREST, SCALED
from research.lyra.figures.sensitivity import ALL_FUNGIBLE_ARE_ELASTIC
from research.lyra.measuring import JCT, WAITING, Ratio, mean_ratio, pairs_of
from research.lyra.published import BASELINE as TOLD
from research.lyra.published import TABLE_35
from research.lyra.schemes import FULL, SCHEMES, SEEDS, Scheme
from research.lyra.specs import LyraSpec
from research.lyra.sweeps import MeasuredPoint, SweepPoint, find, sweep
from research.store import RunResult

#: The spec's day, lowered to a mean of 0.35; its peak remains 2.2 times its trough.
USAGE = "daily:trough=0.226,swing=0.269"
NAMES = ("basic", "ideal", "loaning", "scaling")


def _specs(scheme: Scheme, full: bool) -> tuple[LyraSpec, ...]:
    # In Ideal every job is elastic and fungible, whatever the assumptions.
    rules = () if scheme.name == "ideal" else ALL_FUNGIBLE_ARE_ELASTIC
    size = FULL if full else SCALED
    return tuple(
        replace(scheme.spec(size, seed), rules=rules, large_jobs=NEAREST, usage=USAGE) for seed in SEEDS
    )


def _points(full: bool) -> Sequence[SweepPoint]:
    return [
        SweepPoint(
            SCHEMES[name].label, "inference 35 %", _specs(SCHEMES[name], full),
            (TABLE_35[name].queuing_mean, TABLE_35[name].jct_mean, TABLE_35[name].preemptions),
            against=_specs(BASE, full),
        )
        for name in NAMES
    ]  # fmt: skip


def _overall(result: RunResult) -> float:
    return float(result.facts["overall_usage"])


def _by_seed(context: Context) -> Sequence[Table]:
    rows = []
    for name in NAMES:
        pairs = pairs_of(context.results, _specs(BASE, context.full), _specs(SCHEMES[name], context.full))
        if not pairs:
            continue
        usage = [_overall(other) / _overall(one) for one, other in pairs]
        told = TABLE_35[name]
        published = None if told.overall_usage is None else told.overall_usage / (TOLD.overall_usage or 1.0)
        rows.append(
            (
                SCHEMES[name].label, _seeds(told.queuing_mean, mean_ratio(pairs, WAITING)),
                _seeds(told.jct_mean, mean_ratio(pairs, JCT)),
                (f"{'–' if published is None else f'{published:.2f}'} / "
                 f"{', '.join(f'{one:.2f}' for one in usage)}"),
            )
        )  # fmt: skip
    return (
        Table(
            "By seed",
            "Published / ours, seeds 0, 1 and 2: reductions against first come with backfilling, and use of "
            "the GPUs of both clusters over its.",
            ("Scheme", "Queuing", "JCT", "Usage overall"),
            tuple(rows),
        ),
    )


def _seeds(told: float, ratio: Ratio | None) -> str:
    ours = "–" if ratio is None else ", ".join(f"{one:.2f}" for one in ratio.by_seed)
    return f"{told:g} / {ours}"


def _within(rows: Sequence[MeasuredPoint]) -> Sequence[Check]:
    checks = []
    for name, metric, low, high in BANDED:
        row = find(rows, SCHEMES[name].label, "inference 35 %")
        kind = "queuing time" if metric == WAITING else "JCT"
        ratio = None if row is None else row.queuing if metric == WAITING else row.jct
        told = "not run" if ratio is None else f"{ratio.value:.2f}, from {low:g} to {high:g}"
        met = None if ratio is None else low <= ratio.value <= high
        checks.append(Check(f"Inference at 35 %: {kind}, backfilling over {name}", met, told))
    return checks


FIGURE = sweep(
    "quiet_inference", "A second setting: inference at 35 % of its cluster", "setting", _points,
    more=_by_seed, checks=_within,
    notes=(
        (
            "Inference uses 35 % of its cluster, elastic jobs alone are fungible (21 % of the load), one "
            f"job of a hundred asks for {NEAREST:.0%} of the training cluster for minutes, and the baseline "
            "is first come with backfilling."
        ),
        (
            "Overall usage in Basic has a band too, 1.1 to 1.35 times the baseline's. Ideal is far beyond "
            "its bands here: with so many GPUs on loan that every job may use, hardly anybody waits. Each "
            "part follows from published figures; that they were looked for together is no evidence that the "
            "published runs had them."
        ),
    ),
)  # fmt: skip
