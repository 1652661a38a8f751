"""Checks between schemes, and bands for their values."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check, Context, FigureReport
from research.lyra.measuring import JCT, WAITING, Ratio, count_ratio, mean_over_seeds, mean_ratio, pairs_of
from research.lyra.schemes import BASELINE, SCHEMES, SEEDS, Scheme, banded_size, size_of
from research.lyra.specs import LyraSpec
from research.store import RunResult

BANDED = ("basic", "ideal", "loaning")
MUST, SHOULD = "Must hold", "Should hold"


def must_hold(context: Context) -> list[Check]:
    """Check orders between schemes; the first four with intervals that exclude equality."""
    return [
        _less(context, "basic", "baseline", WAITING, "queuing time"),
        _less(context, "basic", "baseline", JCT, "JCT"),
        _fewer_preemptions(context, ("loaning", "loaning_scf", "loaning_random"), strictly=True),
        _fewer_preemptions(context, ("ideal", "basic", "loaning"), strictly=True),
        _more_usage(context),
        _less(context, "scaling", "afs", JCT, "JCT", strictly=False),
        _less(context, "scaling", "gandiva", JCT, "JCT", strictly=False),
    ]


def bands(context: Context) -> list[Check]:
    """Check ratios to the baseline, and usage, against bands, where the baseline waits about as published."""
    checks = [
        _band(context, scheme, name, metric, low, high)
        for scheme, name, metric, low, high in (
            ("basic", "queuing time", WAITING, 1.2, 4.0),
            ("basic", "JCT", JCT, 1.05, 1.9),
            ("ideal", "queuing time", WAITING, 1.6, 6.0),
            ("ideal", "JCT", JCT, 1.3, 2.3),
            ("loaning", "queuing time", WAITING, 1.1, 3.0),
        )
    ]
    results = context.results
    usage = [
        mean_over_seeds(results, _banded(context, scheme), _overall)
        for scheme in (SCHEMES["basic"], BASELINE)
    ]
    gain = None if usage[0] is None or not usage[1] else usage[0] / usage[1]
    checks.append(_inside(f"{SHOULD}: overall usage, Basic over baseline", gain, 1.1, 1.35))
    on_loan = mean_over_seeds(
        results, _banded(context, SCHEMES["loaning"]), lambda one: one.summary["on_loan_gpu_usage"]
    )
    checks.append(_inside(f"{SHOULD}: GPUs on loan in use (loaning, Lyra)", on_loan, 0.85, 1.0))
    return checks


def _banded(context: Context, scheme: Scheme) -> list[LyraSpec]:
    return [scheme.spec(banded_size(context.full), seed) for seed in SEEDS]


def specs_for(context: Context, scheme: Scheme) -> list[LyraSpec]:
    """Return a scheme's runs, one per seed."""
    return [scheme.spec(size_of(context.full), seed) for seed in SEEDS]


def pairs(context: Context, over: str, under: str) -> list[tuple[RunResult, RunResult]]:
    """Return results of two schemes, seed by seed; the first one's values are the numerators."""
    first, second = (
        specs_for(context, BASELINE if name == "baseline" else SCHEMES[name]) for name in (over, under)
    )
    return pairs_of(context.results, first, second)


def finished(context: Context, reports: Sequence[FigureReport]) -> list[Check]:
    """Check that every submitted job finished in every run."""
    name = "Every submitted job finishes, in every run"
    left = {
        spec.described(): int(result.facts["unfinished"])
        for spec, result in context.results.by_spec.items()
        if result.facts.get("unfinished")
    }
    jobs = sum(int(result.summary["jobs"]) for result in context.results.by_spec.values())
    worst = "; ".join(f"{run}: {count}" for run, count in list(left.items())[:3])
    text = f"{len(context.results.by_spec)} runs, {jobs:,} jobs" + (
        f"; unfinished in {len(left)} runs: {worst}" if left else ""
    )
    return [Check(name, not left if context.results.by_spec else None, text)]


def _less(
    context: Context, scheme: str, than: str, metric: str, name: str, *, strictly: bool = True
) -> Check:
    ratio = mean_ratio(pairs(context, than, scheme), metric)
    return _above_one(f"{MUST}: {name} {scheme} < {than}", ratio, strictly)


def _fewer_preemptions(context: Context, order: tuple[str, ...], *, strictly: bool) -> Check:
    name = f"{MUST}: preemptions per job {' < '.join(order)}"
    ratios = [
        count_ratio(pairs(context, more, fewer), "preemptions")
        for fewer, more in zip(order[:-1], order[1:], strict=True)
    ]
    if any(ratio is None for ratio in ratios):
        return Check(name, None, "not run")
    known = [ratio for ratio in ratios if ratio is not None]
    met = all(ratio.above_one if strictly else ratio.value > 1.0 for ratio in known)
    text = "; ".join(
        f"{more} over {fewer} {ratio}"
        for (fewer, more), ratio in zip(zip(order, order[1:], strict=False), known, strict=True)
    )
    return Check(name, met, f"{text} (lowest and highest seed)")


def _more_usage(context: Context) -> Check:
    name = f"{MUST}: overall usage ideal > basic > baseline"
    shares = [
        mean_over_seeds(context.results, specs_for(context, scheme), _overall)
        for scheme in (SCHEMES["ideal"], SCHEMES["basic"], BASELINE)
    ]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return Check(name, None, "not run")
    return Check(name, known[0] > known[1] > known[2], " > ".join(f"{share:.3f}" for share in known))


def _overall(result: RunResult) -> float:
    return float(result.facts["overall_usage"])


def _above_one(name: str, ratio: Ratio | None, strictly: bool) -> Check:
    if ratio is None:
        return Check(name, None, "not run")
    seeds = ", ".join(f"{one:.2f}" for one in ratio.by_seed)
    return Check(name, ratio.above_one if strictly else ratio.value > 1.0, f"ratio {ratio}; by seed {seeds}")


def _band(context: Context, scheme: str, name: str, metric: str, low: float, high: float) -> Check:
    both = pairs_of(context.results, _banded(context, BASELINE), _banded(context, SCHEMES[scheme]))
    ratio = mean_ratio(both, metric)
    return _inside(
        f"{SHOULD}: {name}, baseline over {scheme}", None if ratio is None else ratio.value, low, high
    )


def _inside(name: str, value: float | None, low: float, high: float) -> Check:
    if value is None:
        return Check(name, None, "not run")
    return Check(name, low <= value <= high, f"{value:.2f}, from {low:g} to {high:g}")
