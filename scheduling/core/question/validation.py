"""Checks of a decision's input. Each fault is refused with a sentence.

Kernels check nothing: they rely on valid addresses, finite times and loops that end. So a snapshot is checked
once, where a `Problem` is built from it. Each job is also checked alone where database rows are read: a job
that cannot be planned is set aside there, and the others continue. The bounds are far beyond practical
figures, yet small enough that float seconds distinguish slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isnan
from numbers import Integral
from operator import attrgetter

import numpy as np

from kernels.compiling import YES, leaf
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.columns import CurveColumns, JobColumns
from scheduling.core.question.snapshot import (
    FloatArray,
    HeldOffer,
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.core.question.two_phase_options import TwoPhaseOptions

MOST_ITERATIONS = 1e12
"""Bound on a job's iterations."""
LEAST_RATE, MOST_RATE = 1e-6, 1e9
"""Iterations per second of a level."""
LONGEST_PAUSE_SECONDS = 1e7
"""Bound on a pause, and on the time to store final weights: about four months."""
LONGEST_RUN_SECONDS = 1e12
"""Bound on the time of a job's work on any of its levels: 30,000 years."""
LATEST = 1e12
"""Bound on any time on the caller's axis, before or after its zero: 30,000 years. Only a deadline may be
infinite."""
LONGEST_SLOT_SECONDS = 1e7
MOST_GPUS = 1 << 20
"""Bound on the GPUs of all servers together."""
OVERLAP_SECONDS = 1e-3
"""Seconds by which pieces of a plan may overlap, because of rounding."""


class Unplannable(ValueError):
    """A job that cannot be planned.

    ``reason``: why, without the job's id.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id}: {reason}")
        self.reason = reason


def check_snapshot(snapshot: Snapshot) -> None:
    """Raises ValueError with the first fault of the snapshot, Unplannable where it is one job's."""
    _check_moment("now", snapshot.now)
    _check_moment("next_slot_at", snapshot.next_slot_at)
    check_settings(snapshot.settings)
    if not all(np.isfinite(snapshot.memory)):
        raise ValueError("memory must hold finite numbers")
    gpus = _check_servers(snapshot.servers)
    for job in suspects(snapshot.jobs):
        check_job(job)
    seen: set[str] = set()
    holders: dict[int, JobSnapshot] = {}
    for job in snapshot.jobs:
        if job.id in seen:
            raise ValueError(f"job {job.id} appears twice in the snapshot")
        seen.add(job.id)
        if job.gpus_now > gpus:
            raise ValueError(f"job {job.id} holds {job.gpus_now} GPUs; there are {gpus}")
        for address in job.placement:
            if not 0 <= address < gpus:
                raise ValueError(f"job {job.id} holds GPU {address}; there are {gpus}, counted from 0")
            # While a GPU passes from one job to another both list it, and one of them is locked.
            if not job.locked and (other := holders.setdefault(address, job)) is not job:
                raise Unplannable(job.id, f"it holds GPU {address}, which job {other.id} holds")
    for block in snapshot.blocked:
        if isnan(block.until):
            raise ValueError("blocked GPUs: until is not a number")
        if any(address < 0 for address in block.addresses):
            raise ValueError("blocked GPUs: addresses are counted from 0")
    offers: set[str] = set()
    for offer in snapshot.held_offers:
        if offer.id in offers:
            raise ValueError(f"offer {offer.id} appears twice in the snapshot")
        offers.add(offer.id)
        check_offer(offer)


def check_settings(settings: PlannerSettings) -> None:
    """Raises ValueError for settings that no planner can apply."""
    if not 0 < settings.slot_seconds <= LONGEST_SLOT_SECONDS:
        raise ValueError(f"slot_seconds must be positive and at most {LONGEST_SLOT_SECONDS:.0f}")
    if not _is_count(settings.reserve_servers):
        raise ValueError(f"reserve_servers must be a whole number from 0, not {settings.reserve_servers}")
    if settings.most_work is not None and not _is_count(settings.most_work):
        # A limit that is no number is never reached, so that one decision would take in a whole burst.
        raise ValueError(f"most_work must be a whole number from 0, or None, not {settings.most_work}")
    for name in (
        "reserve_slack_seconds",
        "change_slack_seconds",
        "offer_hold_seconds",
        "minimum_gain_iterations",
        "ageing_weight",
    ):
        if not 0 <= getattr(settings, name) <= LATEST:
            raise ValueError(f"{name} must not be negative, and at most {LATEST:.0e}")
    if not 0 <= settings.worker_memory_bytes < inf:
        raise ValueError("worker_memory_bytes must be a number of bytes")
    if settings.two_phase is not None:
        _check_two_phase(settings.two_phase)


def _check_two_phase(options: TwoPhaseOptions) -> None:
    for name in ("ageing_weight", "change_seconds", "efficiency"):
        if not 0 <= getattr(options, name) <= LATEST:
            raise ValueError(f"two_phase: {name} must not be negative, and at most {LATEST:.0e}")
    if not (_is_count(options.expansion) and 1 <= options.expansion <= MOST_GPUS):
        raise ValueError(f"two_phase: expansion must be a whole number from 1 to {MOST_GPUS}")


def _is_count(value: object) -> bool:
    """Whether it is a whole number, and not negative."""
    # To ask an abstract class takes longer than all other checks of the settings.
    return isinstance(value, int | Integral) and int(value) >= 0


def check_job(job: JobSnapshot) -> None:
    """Raises Unplannable for a job that cannot be planned, judged by its own figures."""
    for fault in _faults(job):
        raise Unplannable(job.id, fault)


def suspects(jobs: Sequence[JobSnapshot]) -> list[JobSnapshot]:
    """The jobs that `check_job` may refuse; all others are valid.

    All jobs' numbers are tested at once: with thousands of promised jobs, single checks take longer than
    planning.
    """
    if not jobs:
        return []
    try:
        bad = _bad_facts(jobs) | _bad_work(jobs) | _bad_plans(jobs)
    except (AttributeError, OverflowError, TypeError, ValueError):
        return list(jobs)  # a value is no number: single checks name the job
    return [jobs[row] for row in np.flatnonzero(bad).tolist()]


def _bad_facts(jobs: Sequence[JobSnapshot]) -> BoolArray:
    """Marks jobs with a number out of bounds."""
    facts = np.array([_FACTS(job) for job in jobs], dtype=np.float64)
    good = (facts >= _LEAST_FACTS) & (facts <= _MOST_FACTS)
    good[:, 1:] &= facts[:, 1:] < inf
    good[:, 0] &= (facts[:, 0] <= LATEST) | (facts[:, 0] == inf)  # a deadline alone may be infinite
    bad: BoolArray = np.logical_not(good.all(axis=1))
    for row, job in enumerate(jobs):
        if job.promised and job.service_class is ServiceClass.BEST_EFFORT:
            bad[row] = True
        if job.memory:
            bad[row] |= not all(-inf < value < inf for value in job.memory)
        if job.placement or job.flexible:
            bad[row] |= any(True for _ in _placement_faults(job))
    return bad


def _bad_work(jobs: Sequence[JobSnapshot]) -> BoolArray:
    """Marks jobs whose work or curve may be out of bounds; each curve is tested once, since many jobs share
    it."""
    slowest: dict[tuple[int, bool], float | None] = {}
    bad = np.zeros(len(jobs), dtype=np.bool_)
    for row, job in enumerate(jobs):
        for curve, rises in ((job.curve, True), (job.lent_curve, True), (job.measured, False)):
            if curve is None:
                continue
            key = (id(curve), rises)
            if key not in slowest:
                faulty = any(True for _ in _curve_faults(curve, 0.0, rises=rises))
                slowest[key] = None if faulty else float(min(curve.throughput, default=inf))
            rate = slowest[key]
            bad[row] |= rate is None or job.remaining_iterations / rate > LONGEST_RUN_SECONDS
    return bad


def _bad_plans(jobs: Sequence[JobSnapshot]) -> BoolArray:
    """Marks jobs whose stored plan may be invalid."""
    bad = np.zeros(len(jobs), dtype=np.bool_)
    rows, plans = [], []
    for row, job in enumerate(jobs):
        plan = job.stored_plan
        if plan is None:
            continue
        bad[row] = isnan(plan.finish_at) or not plan.start.size == plan.end.size == plan.gpus.size
        if not bad[row]:
            rows.append(row)
            plans.append(plan)
    if not plans:
        return bad
    whose = np.repeat(rows, [plan.start.size for plan in plans])
    start, end = (np.concatenate([getattr(plan, name) for plan in plans]) for name in ("start", "end"))
    gpus = np.concatenate([plan.gpus for plan in plans])
    wrong = ~(np.isfinite(start) & (end >= start) & (gpus >= 0) & (gpus <= MOST_GPUS))
    wrong[1:] |= (whose[1:] == whose[:-1]) & (start[1:] < end[:-1] - OVERLAP_SECONDS)
    bad[whose[wrong]] = True
    return bad


def check_columns(columns: JobColumns) -> None:
    """Raises ValueError where jobs given as arrays cannot be planned. It tests numbers only, so it is
    fast."""
    curves, measured = columns.curves, columns.measured
    rates = (curves.throughput.ravel(), curves.pause.ravel())
    measured_rates = rates if measured is curves else (measured.throughput.ravel(), measured.pause.ravel())
    if _all_within_bounds(
        columns.remaining_iterations, columns.pause_left, columns.finishing, columns.failure_slack,
        columns.submitted_at, columns.deadline_at, *rates,
    ) and (measured is curves or _rates_within_bounds(*measured_rates)):  # fmt: skip
        return
    bad = _bad_numbers(columns)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"job {columns.ids[row]}: remaining iterations {columns.remaining_iterations[row]}, deadline "
            f"{columns.deadline_at[row]}, pause left {columns.pause_left[row]}, finishing time "
            f"{columns.finishing[row]} or failure slack {columns.failure_slack[row]} is not a number "
            "within its bounds"
        )
    for name, some in (("curve", curves), ("measured curve", measured)):
        bad = _bad_curves(some)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(f"job {columns.ids[row]}: a rate or pause of its {name} is out of bounds")


@leaf
def _all_within_bounds(
    remaining: FloatArray,
    pause_left: FloatArray,
    finishing: FloatArray,
    failure_slack: FloatArray,
    submitted_at: FloatArray,
    deadline_at: FloatArray,
    throughput: FloatArray,
    pause: FloatArray,
) -> bool:
    """Whether nothing is found by `_bad_numbers` and `_bad_curves`, which say where."""
    good = YES
    for row in range(remaining.size):
        # Without branches the compiler tests several jobs at a time.
        good &= (remaining[row] >= 0.0) & (remaining[row] <= MOST_ITERATIONS)
        good &= (pause_left[row] >= 0.0) & (pause_left[row] <= LONGEST_PAUSE_SECONDS)
        good &= (finishing[row] >= 0.0) & (finishing[row] <= LONGEST_PAUSE_SECONDS)
        good &= (failure_slack[row] >= 0.0) & (failure_slack[row] <= LATEST)
        good &= abs(submitted_at[row]) <= LATEST
        good &= (deadline_at[row] >= -LATEST) & ((deadline_at[row] <= LATEST) | (deadline_at[row] == inf))
    return good and _rates_within_bounds(throughput, pause)


@leaf
def _rates_within_bounds(throughput: FloatArray, pause: FloatArray) -> bool:
    """Whether `_bad_curves` finds nothing. The arrays are those of the curves, in one dimension."""
    good = YES
    for place in range(throughput.size):
        rate, seconds = throughput[place], pause[place]
        good &= (rate == 0.0) | ((rate >= LEAST_RATE) & (rate <= MOST_RATE))
        good &= (seconds >= 0.0) & (seconds <= LONGEST_PAUSE_SECONDS)
    return good


def _bad_numbers(columns: JobColumns) -> np.ndarray:
    good = (columns.remaining_iterations >= 0) & (columns.remaining_iterations <= MOST_ITERATIONS)
    good &= (columns.pause_left >= 0) & (columns.pause_left <= LONGEST_PAUSE_SECONDS)
    good &= (columns.finishing >= 0) & (columns.finishing <= LONGEST_PAUSE_SECONDS)
    good &= (columns.failure_slack >= 0) & (columns.failure_slack <= LATEST)
    good &= np.abs(columns.submitted_at) <= LATEST
    good &= (columns.deadline_at >= -LATEST) & (
        (columns.deadline_at <= LATEST) | (columns.deadline_at == inf)
    )
    return ~good


def _bad_curves(curves: CurveColumns) -> np.ndarray:
    beyond = curves.throughput == 0.0
    rates = beyond | (curves.throughput >= LEAST_RATE) & (curves.throughput <= MOST_RATE)
    pauses = (curves.pause >= 0) & (curves.pause <= LONGEST_PAUSE_SECONDS)
    bad: np.ndarray = ~(rates & pauses).all(axis=1)
    return bad


def _check_servers(servers: tuple[ServerSnapshot, ...]) -> int:
    """Check the servers. Returns their number of GPUs."""
    names: set[str] = set()
    for server in servers:
        if server.id in names:
            raise ValueError(f"server {server.id} appears twice in the snapshot")
        names.add(server.id)
        if server.gpus < 0:
            raise ValueError(f"server {server.id} has {server.gpus} GPUs")
        if server.same_kind and not server.on_loan:
            raise ValueError(f"server {server.id} is not on loan: same_kind says nothing of it")
        if not (abs(server.ends_at) <= LATEST or server.ends_at == inf):
            raise ValueError(f"server {server.id}: ends_at {server.ends_at} is no moment, nor infinite")
        if not server.memory_bytes >= 0:
            raise ValueError(f"server {server.id} has {server.memory_bytes} bytes of host memory")
    gpus = sum(server.gpus for server in servers)
    if gpus > MOST_GPUS:
        raise ValueError(f"{gpus} GPUs are more than {MOST_GPUS}")
    return gpus


def check_offer(offer: HeldOffer) -> None:
    """Raises ValueError for an offer whose capacity cannot be held."""
    if isnan(offer.valid_until):
        raise ValueError(f"offer {offer.id}: valid_until is not a number")
    for fault in _plan_faults(offer.plan):
        raise ValueError(f"offer {offer.id}: {fault}")
    if offer.job is not None:
        check_job(offer.job)


def _check_moment(name: str, at: float) -> None:
    if not abs(at) <= LATEST:
        raise ValueError(f"{name} is {at}; it must be a number of at most {LATEST:.0e}")


def _faults(job: JobSnapshot) -> Iterator[str]:
    if job.service_class is ServiceClass.BEST_EFFORT and job.promised:
        yield "a best-effort job cannot hold a promise"
    if not abs(job.submitted_at) <= LATEST:
        yield f"submitted_at {job.submitted_at} is no moment"
    if not (-LATEST <= job.deadline_at <= LATEST or job.deadline_at == inf):
        yield f"deadline_at {job.deadline_at} is no moment, nor infinite"
    for most, names in _MOST:
        for name in names:
            value = getattr(job, name)
            if not (0 <= value <= most and value < inf):
                yield f"{name} {value} is not between 0 and {most:g}"
    if job.memory and not all(np.isfinite(job.memory)):
        yield "its memory must hold finite numbers"
    yield from _placement_faults(job)
    for name, curve in (("curve", job.curve), ("lent_curve", job.lent_curve), ("measured", job.measured)):
        if curve is not None:
            faults = _curve_faults(curve, job.remaining_iterations, rises=name != "measured")
            yield from (f"{name}: {fault}" for fault in faults)
    if job.stored_plan is not None:
        yield from _plan_faults(job.stored_plan)


_MOST = (
    (MOST_ITERATIONS, ("remaining_iterations", "total_iterations")),
    (LONGEST_PAUSE_SECONDS, ("pause_left_seconds", "finishing_seconds")),
    (LATEST, ("failure_slack_seconds",)),
    (inf, ("attained_gpu_seconds", "requested_seconds")),
    (MOST_GPUS, ("requested_gpus", "gpus_now")),
)
"""The most that these facts of a job may be."""
_FACTS = attrgetter("deadline_at", "submitted_at", *(name for _, names in _MOST for name in names))
_LEAST_FACTS = np.array([-LATEST, -LATEST, *(0.0 for _, names in _MOST for _ in names)])
_MOST_FACTS = np.array([inf, LATEST, *(most for most, names in _MOST for _ in names)])


def _placement_faults(job: JobSnapshot) -> Iterator[str]:
    if job.placement and len(job.placement) != job.gpus_now:
        yield f"it holds {job.gpus_now} GPUs but lists {len(job.placement)}"
    if len(set(job.placement)) != len(job.placement):
        yield "it lists a GPU twice"
    if job.flexible and len(job.flexible) != len(job.placement):
        yield f"flexible marks {len(job.flexible)} of {len(job.placement)} GPUs"


def _curve_faults(curve: ScalingCurve, iterations: float, *, rises: bool) -> Iterator[str]:
    if not curve.levels.size == curve.throughput.size == curve.pause_seconds.size:
        yield "levels, throughput and pauses differ in number"
        return
    # For a few levels, lists are faster than arrays.
    levels, rates, pauses = curve.levels.tolist(), curve.throughput.tolist(), curve.pause_seconds.tolist()
    if not all(1 <= level <= MOST_GPUS for level in levels) or any(a >= b for a, b in pairwise(levels)):
        yield f"levels {levels[:8]} do not ascend from 1"
    if not all(LEAST_RATE <= rate <= MOST_RATE for rate in rates):
        yield f"a rate is not between {LEAST_RATE:g} and {MOST_RATE:g} iterations per second"
    elif rises and any(a >= b for a, b in pairwise(rates)):
        yield "throughput does not rise from level to level"
    elif rates and iterations / min(rates) > LONGEST_RUN_SECONDS:
        yield f"its work would take over {LONGEST_RUN_SECONDS:g} seconds"
    needs = [] if curve.memory_bytes is None else curve.memory_bytes.tolist()
    if curve.memory_bytes is not None and len(needs) != len(levels):
        yield "levels and host memory differ in number"
    if not all(0.0 <= need < inf for need in needs):
        yield "host memory of a worker is not a number of bytes"
    if not all(0.0 <= pause <= LONGEST_PAUSE_SECONDS for pause in pauses):
        yield f"a pause is not between 0 and {LONGEST_PAUSE_SECONDS:g} seconds"


def _plan_faults(plan: StoredPlan) -> Iterator[str]:
    if not plan.start.size == plan.end.size == plan.gpus.size:
        yield "its plan's starts, ends and GPUs differ in number"
        return
    # Plans of many long jobs in sequence may end later than the bound on any single job.
    if not np.isfinite(plan.start).all() or isnan(plan.finish_at):
        yield "a time of its plan is no moment"
    elif not (plan.end >= plan.start).all() or (plan.start[1:] < plan.end[:-1] - OVERLAP_SECONDS).any():
        yield "pieces of its plan overlap or run backwards"
    if ((plan.gpus < 0) | (plan.gpus > MOST_GPUS)).any():
        yield "its plan holds an impossible number of GPUs"
