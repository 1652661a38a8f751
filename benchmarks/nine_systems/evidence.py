"""Evidence from the platform's API that each system worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.nine_systems.jobs import JobKind
from benchmarks.nine_systems.tables import Table
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
    """Observations of jobs while they ran; its last generation may have fewer GPUs than an earlier one."""

    def __init__(self) -> None:
        self.plans: dict[str, dict[str, Any]] = {}
        self.made: dict[str, list[dict[str, Any]]] = {}
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
        told = job.communication()
        self.made[kind.name] = told.get("levels", [])
        if told.get("chosen"):
            self.plans[kind.name] = told
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
        told = self.plans.get(name)
        if told is None:
            predicted = ", ".join(map(plan_in_words, self.made.get(name, []))) or "none"
            return f"{NOTHING}: {name} trained without a plan (plans that were made: {predicted})"
        chosen = told["chosen"]
        predicted = chosen["predicted"]["iteration_seconds"]
        parts = [f"{name} on {told['gpus']} GPUs: planner {chosen['planner']}, codec {chosen['codec']}"]
        parts.append(f"{predicted:.2f} s an iteration predicted")
        if told.get("measured_seconds"):
            parts.append(f"{told['measured_seconds']:.2f} s measured")
        if told.get("seconds_without_plan"):
            parts.append(f"{told['seconds_without_plan']:.2f} s without a plan")
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
    made = [each for each in promises if each.job.promised]
    met = sum(each.job.promise_outcome == "met" for each in made)
    recoveries = [one for each in promises for one in each.job.recoveries()]
    sources = [recovered_from(one) for one in recoveries]
    lost = sum(one.iterations_lost or 0 for one in recoveries)
    changes, most = sum(watch.resized.values()), max(watch.most_gpus.values(), default=0)
    kept = f"{met} of {len(made)} promises met; jobs changed size or place {changes} times, up to {most} GPUs"
    found = ", ".join(sorted(sources)) or "nothing"
    survived = f"{len(recoveries)} recoveries, from {found}; {lost} iterations lost"
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
    return f"{plan['planner']} on {plan['gpus']} GPUs, predicted {plan['speedup']:.2f} times as fast"


def recovered_from(recovery: Recovery) -> str:
    """Return in words where a recovery had its state from, or how far it is if it has none yet."""
    return _SOURCES.get(recovery.source) or recovery.outcome.replace("_", " ")


def _lina(watch: Watch) -> str:
    share = watch.all_to_all.get("experts")
    rows = "" if share is None else f"; rows travel for {share:.0%} of an iteration"
    return watch.plan_text("experts") + rows


def _tiers(watch: Watch) -> str:
    found = watch.metrics.get("tiers", {})
    if "moe/tier_hits" not in found:
        return NOTHING
    return (
        f"{watch.tiers.get('tiers', 'no sizes told')}; {found['moe/tier_hits']:.0%} of states found in host "
        f"memory, {found['moe/tier_bytes_written'] / 1e6:.1f} MB written and "
        f"{found['moe/tier_stall_seconds']:.3f} s waited in an iteration"
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
        texts.append(f"{label} {'no number of GPUs holds it' if gpus is None else f'{gpus} GPUs'}")
    return ", ".join(texts)
