"""The sentence that explains each verdict, with the figures that decided it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from scheduling.core.problem.problem import Problem
from scheduling.core.question.columns import NO_LEVEL
from scheduling.core.question.decision import ReasonCode, Verdict
from scheduling.core.question.quantities import duration_text, gpu_hours_text, gpus_text, memory_text
from scheduling.core.question.snapshot import StoredPlan


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """What a sentence says about a job."""

    #: The job's id.
    id: str
    #: Its deadline, in seconds on the caller's axis.
    deadline_at: float
    #: Seconds to store its final weights.
    finishing_seconds: float
    #: Its lowest level; 0 where no GPU count was measured.
    smallest_level: int
    #: In words, which other jobs hold the remaining GPUs.
    holders: str
    #: Host memory of one worker that no server guarantees, in bytes; 0 where memory suffices.
    short_of_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """Why a newcomer is refused although room may exist: GPU seconds in the window that is tightest."""

    #: Length of that window, in seconds.
    within_seconds: float
    #: GPU seconds that the newcomer needs.
    needed: float
    #: GPU seconds that other promises need.
    promised: float
    #: GPU seconds of expected newcomers that need at most ``largest`` each.
    expected: float
    #: GPU seconds of the cluster.
    capacity: float
    #: The most GPU seconds that an expected newcomer needs to count: seven tenths of ``needed``.
    largest: float


@dataclass(frozen=True, slots=True)
class CostlyRoom:
    """Why no room is made for a newcomer: it would cost more GPU time than a typical newcomer needs."""

    #: GPU seconds that the newcomer and other promises, planned anew, would take together.
    taken: float
    #: GPU seconds that half of the newcomers of late need at most.
    typical: float


def job_facts(problem: Problem, row: int, *, protects: bool = False) -> VerdictFacts:
    """The facts of one row. ``protects``: whether GPUs are kept for jobs at risk."""
    columns = problem.columns
    level = int(problem.jobs.levels[row, 0])
    return VerdictFacts(
        id=columns.ids[row],
        deadline_at=float(columns.deadline_at[row]),
        finishing_seconds=float(columns.finishing[row]),
        smallest_level=0 if level == NO_LEVEL else level,
        holders=_holders(offers=bool(problem.offers), protects=protects),
        short_of_memory_bytes=problem.short_of_memory_bytes.get(columns.ids[row], 0.0),
    )


def _holders(*, offers: bool, protects: bool) -> str:
    holders = ["promises", *(["held offers"] if offers else []), *(["jobs at risk"] if protects else [])]
    return " and ".join(filter(None, (", ".join(holders[:-1]), holders[-1]))) + " leave"


def share_text(plan: StoredPlan) -> str:
    """The GPU counts of a plan: ``2 to 8 GPUs``."""
    used = sorted({int(gpus) for gpus in plan.gpus if gpus > 0})
    if not used:
        return "no GPU"
    return gpus_text(used[0]) if len(used) == 1 else f"{used[0]} to {used[-1]} GPUs"


def fits(job: VerdictFacts, plan: StoredPlan) -> Verdict:
    """Admitted: the deadline is promised."""
    slack = max(0.0, job.deadline_at - plan.finish_at - job.finishing_seconds)
    share = share_text(plan)
    verb = "is" if share == "1 GPU" else "are"
    return Verdict(
        job.id,
        admitted=True,
        promised=True,
        reason_code=ReasonCode.FITS,
        reason=f"{share} {verb} enough to finish {duration_text(slack)} before the deadline",
        minimum_satisfactory_share=plan,
    )


def best_effort(job: VerdictFacts) -> Verdict:
    """Admitted without a deadline."""
    return Verdict(
        job.id,
        admitted=True,
        promised=False,
        reason_code=ReasonCode.BEST_EFFORT,
        reason="no deadline: the job runs on GPUs that no promise needs",
    )


def no_promises(job: VerdictFacts) -> Verdict:
    """Admitted without a promise: the policy makes none."""
    return Verdict(
        job.id,
        admitted=True,
        promised=False,
        reason_code=ReasonCode.NO_PROMISES,
        reason="accepted without a promise: the cluster's scheduling policy makes none",
    )


def soft_unpromised(refusal: Verdict) -> Verdict:
    """A soft deadline cannot be promised; the job is admitted without a promise."""
    return Verdict(
        refusal.job_id,
        admitted=True,
        promised=False,
        reason_code=ReasonCode.SOFT_UNPROMISED,
        reason=f"accepted without a promise: {refusal.reason}",
        missing_gpus=refusal.missing_gpus,
        broken_job=refusal.broken_job,
    )


def deadline_passed(job: VerdictFacts, now: float) -> Verdict:
    """Refused: the deadline is in the past."""
    return _refusal(
        job, ReasonCode.DEADLINE_PASSED, f"the deadline passed {duration_text(now - job.deadline_at)} ago"
    )


def no_levels(job: VerdictFacts, cluster_gpus: int) -> Verdict:
    """Refused: the cluster supports no measured GPU count."""
    if job.smallest_level:
        smallest = gpus_text(job.smallest_level)
        text = f"the job needs at least {smallest} at once and the cluster has {cluster_gpus}"
    elif job.short_of_memory_bytes:
        text = (
            f"each of its workers takes {memory_text(job.short_of_memory_bytes)} of host memory, more than "
            "every server has for each GPU"
        )
    else:
        text = "no number of GPUs was measured on which the job runs"
    return _refusal(job, ReasonCode.NO_LEVELS, text)


def no_work(job: VerdictFacts) -> Verdict:
    """Refused: the job has zero iterations, so no plan can start or end it."""
    return _refusal(
        job, ReasonCode.NO_WORK, "the job has no iterations to do; ask for at least one iteration"
    )


def too_slow_alone(job: VerdictFacts, now: float, fastest_seconds: float, fastest_gpus: int) -> Verdict:
    """Refused: the job would be late even with the whole cluster."""
    return _refusal(
        job,
        ReasonCode.TOO_SLOW_ALONE,
        f"the deadline is in {duration_text(job.deadline_at - now)}; alone on the cluster the job still "
        f"takes {duration_text(fastest_seconds)} on {gpus_text(fastest_gpus)}",
    )


def capacity(job: VerdictFacts, now: float, needed: int, free: int, tight_in_seconds: float) -> Verdict:
    """Refused: promises leave too few GPUs."""
    missing = max(1, needed - free)
    return _refusal(
        job,
        ReasonCode.CAPACITY,
        f"finishing within {duration_text(job.deadline_at - now)} takes {gpus_text(needed)} alone on the "
        f"cluster; {job.holders} {gpus_text(max(0, free))} in {duration_text(tight_in_seconds)}: "
        f"{gpus_text(missing)} short",
        missing,
    )


def room_kept(job: VerdictFacts, now: float, kept: KeptRoom) -> Verdict:
    """Refused: the room is kept for newcomers that each need less of it."""
    missing = max(
        1, ceil((kept.needed + kept.promised + kept.expected - kept.capacity) / kept.within_seconds)
    )
    return _refusal(
        job,
        ReasonCode.ROOM_KEPT,
        f"finishing within {duration_text(job.deadline_at - now)} takes {gpu_hours_text(kept.needed)}; of "
        f"the {gpu_hours_text(kept.capacity)} in the next {duration_text(kept.within_seconds)} promises "
        f"hold {gpu_hours_text(kept.promised)}, and room is kept for jobs that need at most "
        f"{gpu_hours_text(kept.largest)} each: {gpu_hours_text(kept.expected)} by what was submitted of late",
        missing,
    )


def no_room_made(refusal: Verdict, why: CostlyRoom) -> Verdict:
    """Refused: other promises could be planned anew, but that would cost later newcomers too much."""
    return replace(
        refusal,
        reason=f"{refusal.reason}; making room would take {gpu_hours_text(why.taken)}, and half of the jobs "
        f"submitted of late need at most {gpu_hours_text(why.typical)}",
    )


def would_break(
    job: VerdictFacts, now: float, broken: VerdictFacts, needed: int, free: int, tight_in_seconds: float
) -> Verdict:
    """Refused: an admitted job would be late."""
    missing = max(1, needed - free)
    return _refusal(
        job,
        ReasonCode.WOULD_BREAK_PROMISE,
        f"finishing within {duration_text(job.deadline_at - now)} would make job {broken.id} late, whose "
        f"deadline is in {duration_text(broken.deadline_at - now)}; {job.holders} "
        f"{gpus_text(max(0, free))} of the {gpus_text(needed)} needed in {duration_text(tight_in_seconds)}",
        missing,
        broken.id,
    )


def _refusal(
    job: VerdictFacts, code: ReasonCode, text: str, missing: int = 0, broken: str | None = None
) -> Verdict:
    """A refusal with its code and sentence."""
    return Verdict(
        job.id,
        admitted=False,
        promised=False,
        reason_code=code,
        reason=text,
        missing_gpus=missing,
        broken_job=broken,
    )
