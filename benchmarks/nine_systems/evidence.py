"""Evidence from the platform's API that each system worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.nine_systems.jobs import JobKind
from benchmarks.nine_systems.tables import Table, count
from punctual.client import Job
from punctual.client.models import Recovery, TierModes

if TYPE_CHECKING:
    from benchmarks.nine_systems.live import Promise

NOTHING = "not seen"
#: Words for the source of a recovered state.
_SOURCES = {
    "own_memory": "its servers' memory",
    "peer_memory": "a peer's memory",
    "durable": "durable storage",
    "none": "the beginning: it had no state yet",
}


class Watch:
    """Observations of running jobs. A job's last generation may have fewer GPUs than an earlier one."""

    def __init__(self) -> None:
        self.plans: dict[str, dict[str, Any]] = {}
        self.all_to_all: dict[str, float] = {}
        self.most_gpus: dict[str, int] = {}
        self.resized: dict[str, int] = {}
        self.metrics: dict[str, dict[str, float]] = {}
        self.tiers: dict[str, str] = {}

    def look(self, kind: JobKind, job: Job) -> None:
        """Record the job's plan, its GPUs and its experts."""
        before = self.most_gpus.get(kind.name, 0)
        self.most_gpus[kind.name] = max(before, job.gpus)
        if not job.gpus:
            return
        communication = job.communication()
        if communication.get("chosen"):
            self.plans[kind.name] = communication
        timing = job.experts().get("all_to_all") or {}
        if timing.get("share") is not None:
            self.all_to_all[kind.name] = float(timing["share"])

    def read_metrics(self, kind: JobKind, job: Job) -> None:
        """Record the mean of each metric over the job, and its verdict's statement on tiers."""
        values: dict[str, list[float]] = {}
        for metric in job.metrics():
            for name, value in metric.values.items():
                if name.startswith("moe/"):
                    values.setdefault(name, []).append(value)
        self.metrics[kind.name] = {name: fmean(found) for name, found in values.items()}
        self.resized[kind.name] = sum(event.kind in ("grow", "shrink", "migrate") for event in job.events())
        if job.verdict is not None and job.verdict.tiers is not None:
            self.tiers[kind.name] = _tiers_text(job.verdict.tiers)

    def plan_text(self, name: str) -> str:
        """Return the plan that a job trained under, with its prediction and the measurement."""
        followed = self.plans.get(name)
        if followed is None:
            return f"{NOTHING}: {name} trained without a communication plan"
        chosen = followed["chosen"]
        predicted = chosen["predicted"]["iteration_seconds"]
        gpus = count(followed["gpus"], "GPU")
        parts = [f"{name} on {gpus}: planner {chosen['planner']}, codec {chosen['codec']}"]
        parts.append(f"iteration of {predicted:.2f} s predicted")
        if followed.get("measured_seconds"):
            parts.append(f"{followed['measured_seconds']:.2f} s measured")
        if followed.get("seconds_without_plan"):
            parts.append(f"{followed['seconds_without_plan']:.2f} s without a plan")
        return ", ".join(parts)


def jobs_table(promises: Sequence[Promise]) -> Table:
    """Return a table with the result of each job."""
    rows = []
    for each in promises:
        job = each.job
        recoveries = ", ".join(map(recovered_from, job.recoveries())) or "no failure"
        slack = ""
        if job.promised and job.finished_at is not None and job.deadline_at is not None:
            slack = f"{(job.deadline_at - job.finished_at).total_seconds():.0f} s"
        done = str(job.iterations_done)
        rows.append((each.kind.name, _answer(each), job.state, job.promise_outcome, slack, done, recoveries))
    return Table(
        "Jobs",
        ("job", "answer", "state", "promise", "before its deadline", "iterations", "recovered from"),
        rows,
    )


def _answer(promise: Promise) -> str:
    job = promise.job
    times = f", submitted {promise.submissions} times" if promise.submissions > 1 else ""
    if promise.was_offered:
        return f"offered, accepted{times}"
    if job.state == "declined":
        code = job.verdict.reason_code if job.verdict is not None else ""
        return f"declined ({code}){times}"
    return ("promised" if job.promised else "best effort" if job.decided else "no answer yet") + times


def systems_table(promises: Sequence[Promise], watch: Watch, lending: Sequence[str]) -> Table:
    """Return a table with the effect of each system."""
    promised = [promise.job for promise in promises if promise.job.promised]
    met = sum(job.promise_outcome == "met" for job in promised)
    recoveries = [recovery for promise in promises for recovery in promise.job.recoveries()]
    sources = ", ".join(sorted(map(recovered_from, recoveries)))
    lost = sum(recovery.iterations_lost or 0 for recovery in recoveries)
    changes = count(sum(watch.resized.values()), "time")
    most = count(max(watch.most_gpus.values(), default=0), "GPU")
    kept = f"{met} of {len(promised)} promises met; jobs changed size or place {changes}, up to {most}"
    recovered = count(len(recoveries), "recovery", "recoveries") + (f", from {sources}" if sources else "")
    survived = f"{recovered}; {count(lost, 'iteration')} lost"
    return Table(
        "What each system did",
        ("system", "seen"),
        [
            ("ElasticFlow", kept),
            ("Lyra", "; ".join(" ".join(line.split()) for line in lending[1:])),
            ("Gemini", survived),
            ("Zen", watch.plan_text("sparse")),
            ("Espresso, Cupcake", watch.plan_text("slow link")),
            ("Lina", _lina(watch)),
            ("MoESys", _tiers(watch)),
            ("Adaptive gating", _gating(watch)),
        ],
    )


def plan_in_words(plan: Mapping[str, Any]) -> str:
    """Return a plan that was made for a number of GPUs, with its prediction."""
    return f"{plan['planner']} on {count(plan['gpus'], 'GPU')}, predicted {plan['speedup']:.2f} times as fast"


def recovered_from(recovery: Recovery) -> str:
    """Return the source of a recovery's state in words, or its outcome so far if it has no source yet."""
    return _SOURCES.get(recovery.source) or recovery.outcome.replace("_", " ")


def _lina(watch: Watch) -> str:
    share = watch.all_to_all.get("experts")
    exchange = "" if share is None else f"; all-to-alls take {share:.0%} of an iteration"
    return watch.plan_text("experts") + exchange


def _tiers(watch: Watch) -> str:
    means = watch.metrics.get("tiers", {})
    if "moe/tier_hits" not in means:
        return NOTHING
    return (
        f"{watch.tiers.get('tiers', 'sizes unknown')}; {means['moe/tier_hits']:.0%} of states found in host "
        f"memory; {means['moe/tier_bytes_written'] / 1e6:.1f} MB written and "
        f"{means['moe/tier_stall_seconds']:.3f} s waited per iteration"
    )


def _gating(watch: Watch) -> str:
    shares = {
        name: watch.metrics.get(name, {}).get("moe/two_expert_share") for name in ("adaptive", "experts")
    }
    texts = [
        f"{name}: {share:.0%} of tokens have two experts"
        for name, share in shares.items()
        if share is not None
    ]
    return "; ".join(texts) or NOTHING


def _tiers_text(modes: TierModes) -> str:
    texts = []
    for label, mode in (("with tiers", modes.with_tiers), ("without tiers", modes.without_tiers)):
        gpus = None if mode is None else mode.gpus
        texts.append(f"fits on {'no number of GPUs' if gpus is None else count(gpus, 'GPU')} {label}")
    return ", ".join(texts)
