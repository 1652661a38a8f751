"""Malformed snapshots: hypothesis builds them; the core must decide or name the fault.

It runs in its own process (`python -m tests.core.garbage EXAMPLES SEED FILE`), since a fault may end the
interpreter: FILE then holds the policy and the snapshot that were tried.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from scheduling.core.question.decision import Decision, FoundOffer
from scheduling.core.question.snapshot import (
    AdmissionRule,
    BlockedGpus,
    Fill,
    HeldOffer,
    JobSnapshot,
    Newcomers,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from simulation.policies import policy_named

#: Numbers that break sums, divisions and loops.
WILD = (0.0, -1.0, 1e-300, 1e-9, 1e9, 1e12, 1e15, 1e18, 1e300, inf, -inf, nan)
MEMORY = 2.0**30
"""Bytes of host memory that a typical worker needs."""
SERVER_SIZES = (1, 2, 3, 4, 6, 8, 12)
#: Boolean options of two-phase policies.
SWITCHES = tuple(option.name for option in fields(TwoPhaseOptions) if isinstance(option.default, bool))
#: Policies that decide in other ways: with promises, with loans, on any measured size, with a memory.
POLICIES = (
    "punctual", "punctual", "elasticflow", "lyra", "edf", "edf_elastic", "gandiva", "themis", "tiresias",
    "fifo",
)  # fmt: skip
#: Files of the core's input check; a refusal of a snapshot must come from these.
DOORS = ("validation.py", "curves.py", "snapshot.py")


Number = Callable[[float, float], float]
Whole = Callable[[int, int], int]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a snapshot. Half of all draws are valid; in the others, 3 or 30 % of the figures are wild."""
    wild = draw(st.sampled_from((0, 0, 3, 30)))

    def number(low: float, high: float) -> float:
        if wild and draw(st.integers(0, 99)) < wild:
            return draw(st.sampled_from(WILD))
        return draw(st.floats(low, high, allow_nan=False)) if low < high else low

    def whole(low: int, high: int) -> int:
        if wild and draw(st.integers(0, 99)) < wild:
            return draw(st.sampled_from((-7, 0, 3, 99, 10**7, 2**40)))
        return draw(st.integers(low, high))

    now = draw(st.sampled_from((0.0, 1_800_000_000.0)))
    slot = max(number(1.0, 60.0), -1.0)
    servers = _servers(draw, number, now)
    gpus = sum(server.gpus for server in servers)
    free = list(range(gpus))
    draw(st.randoms(use_true_random=False)).shuffle(free)
    if draw(st.integers(0, 3)) == 0:
        free *= 2  # GPUs that pass from one job to another are listed by both
    jobs = tuple(
        _job(draw, number, whole, f"job-{index}", now, slot, gpus, free)
        for index in range(draw(st.integers(0, 6)))
    )
    blocked = tuple(
        BlockedGpus(
            tuple(whole(0, gpus + 1) for _ in range(draw(st.integers(1, 3)))), now + number(0.0, 300.0)
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    offers = tuple(
        HeldOffer(
            f"offer-{index}",
            _plan(draw, number, whole, now, slot, gpus),
            now + number(-10.0, 100.0),
            draw(st.sampled_from((None, *jobs[:1]))),
        )
        for index in range(draw(st.integers(0, 1)))
    )
    choices = PlannerSettings(
        slot_seconds=slot,
        fill=draw(st.sampled_from(list(Fill))),
        admission=draw(st.sampled_from(list(AdmissionRule))),
        stored_plans=draw(st.booleans()),
        reserve_servers=draw(st.sampled_from((0, 0, 0, 1, 5, -1 if wild else 0))),
        reserve_slack_seconds=number(0.0, 20.0),
        offer_hold_seconds=number(0.0, 120.0),
        newcomers=draw(st.sampled_from(list(Newcomers))),
        most_work=draw(st.sampled_from((None, None, 0, 1, 1_000, 1_000_000, *((-1, nan) if wild else ())))),
        ageing_weight=draw(st.sampled_from((0.0, 0.0, 1.0))) * number(0.0, 5.0),
        change_slack_seconds=number(0.0, 20.0),
        worker_memory_bytes=draw(st.sampled_from((0.0, 0.0, 1.0))) * number(0.0, 2.0 * MEMORY),
        two_phase=_two_phase(draw, number, whole),
    )
    boundary = now + draw(st.sampled_from((0.0, 0.5, 1.0))) * slot
    boundary = number(boundary, boundary)
    return Snapshot(now, boundary, servers, jobs, offers, blocked, choices)


def _two_phase(draw: st.DrawFn, number: Number, whole: Whole) -> TwoPhaseOptions | None:
    if draw(st.integers(0, 2)):
        return None
    return TwoPhaseOptions(
        ageing_weight=number(0.0, 5.0),
        change_seconds=number(0.0, 60.0),
        efficiency=number(0.0, 1.5),
        expansion=whole(1, 4),
        **{name: draw(st.booleans()) for name in SWITCHES},
    )


def _servers(draw: st.DrawFn, number: Number, now: float) -> tuple[ServerSnapshot, ...]:
    size = draw(st.sampled_from(SERVER_SIZES))
    mixed = draw(st.booleans())
    lent = draw(st.sampled_from((0, 0, 1, 2)))
    same_kind = draw(st.booleans())
    owned = draw(st.integers(0 if lent else 1, 3))
    servers = []
    for index in range(owned + lent):
        gpus = draw(st.sampled_from(SERVER_SIZES)) if mixed else size
        usable = draw(st.integers(0, 9)) > 0
        ends = draw(st.integers(0, 3)) == 0
        small = draw(st.integers(0, 3)) == 0
        servers.append(
            ServerSnapshot(
                f"server-{index}",
                gpus,
                usable=usable,
                rack=draw(st.sampled_from(("", "a", "b"))),
                on_loan=index >= owned,
                same_kind=same_kind and index >= owned,
                ends_at=now + number(-10.0, 500.0) if ends else inf,
                memory_bytes=gpus * number(0.0, 4.0 * MEMORY) if small else inf,
                standby=not usable and index < owned and draw(st.booleans()),
            )
        )
    return tuple(servers)


def _curve(draw: st.DrawFn, number: Number, whole: Whole) -> ScalingCurve:
    kinds = ((1, 2, 4, 8), (1,), (2, 4), (1, 2), (3,), (3, 6, 12), (1, 3, 5), (5,), (6,), (16,), ())
    levels = [whole(level, level) for level in draw(st.sampled_from(kinds))]
    rate, rates = draw(st.sampled_from((0.01, 1.0, 100.0))), []
    for _ in levels:
        rate *= draw(st.sampled_from((1.0, 1.3, 1.9)))
        rates.append(number(rate, rate))
        rate *= 1.01
    pauses = [number(0.0, 10.0) for _ in levels]
    reserved = None
    if draw(st.integers(0, 2)) == 0:
        reserved = np.array([number(0.0, 2.0 * MEMORY) for _ in levels])
    return ScalingCurve(np.array(levels, dtype=np.int64), np.array(rates), np.array(pauses), reserved)


def _plan(draw: st.DrawFn, number: Number, whole: Whole, now: float, slot: float, gpus: int) -> StoredPlan:
    count = draw(st.integers(0, 4))
    times = [now + index * slot * 2 for index in range(count + 1)]
    starts, ends = times[:-1], [number(at, at) for at in times[1:]]
    sizes = [whole(0, max(1, gpus)) for _ in starts]
    return StoredPlan(
        np.array(starts), np.array(ends), np.array(sizes, dtype=np.int64), number(now, now + 500.0)
    )


def _job(
    draw: st.DrawFn,
    number: Number,
    whole: Whole,
    name: str,
    now: float,
    slot: float,
    gpus: int,
    free: list[int],
) -> JobSnapshot:
    service = draw(st.sampled_from(list(ServiceClass)))
    curve = _curve(draw, number, whole)
    newcomer = draw(st.booleans())
    holds = 0 if newcomer else draw(st.sampled_from((0, *[n for n in curve.levels.tolist() if 0 < n <= 64])))
    placement = tuple(dict.fromkeys(free.pop() for _ in range(min(holds, len(free)))))
    if draw(st.integers(0, 3)):
        placement = tuple(sorted(placement))
    rate = float(curve.throughput[-1]) if curve.levels.size else 1.0
    work = number(0.0, 400.0) * (rate if np.isfinite(rate) else 1.0)
    deadline = inf if service is ServiceClass.BEST_EFFORT else now + number(-5.0, 500.0)
    return JobSnapshot(
        id=name if draw(st.integers(0, 30)) else "job-0",
        service_class=service,
        submitted_at=now - number(0.0, 500.0),
        deadline_at=deadline,
        remaining_iterations=work,
        curve=curve,
        newcomer=newcomer,
        promised=not newcomer and draw(st.booleans()) and service is not ServiceClass.BEST_EFFORT,
        at_risk=draw(st.integers(0, 9)) == 0,
        gpus_now=len(placement) if draw(st.integers(0, 20)) else whole(0, 4),
        placement=placement,
        pause_left_seconds=number(0.0, 10.0) if placement else 0.0,
        finishing_seconds=number(0.0, 5.0),
        stored_plan=None
        if newcomer
        else draw(st.sampled_from((None, _plan(draw, number, whole, now, slot, gpus)))),
        locked=bool(placement) and draw(st.integers(0, 9)) == 0,
        total_iterations=number(0.0, 0.0),
        attained_gpu_seconds=number(0.0, 1e4),
        requested_gpus=whole(0, 8),
        requested_seconds=number(0.0, 1e4),
        lent_curve=draw(st.sampled_from((None, _curve(draw, number, whole)))),
        flexible=tuple(draw(st.booleans()) for _ in placement) if draw(st.booleans()) else (),
        failure_slack_seconds=number(0.0, 20.0),
        measured=draw(st.sampled_from((None, None, _curve(draw, number, whole)))),
        project=draw(st.integers(0, 2)),
    )


def answer(snapshot: Snapshot, name: str) -> bool:
    """Call every method of one policy; return False if it refused the snapshot with a reason.

    Raises AssertionError for an infeasible answer or an unclear error.
    """
    policy = policy_named(name)
    try:
        first = policy.replan(snapshot)
        check_decision(snapshot, first)
        check_decision(snapshot, policy.replan(remembering(snapshot, first)))
        check_decision(snapshot, policy.admit(snapshot))
        newcomers = [job for job in snapshot.jobs if job.newcomer][:1]
        for job in newcomers:
            others = tuple(other for other in snapshot.jobs if not other.newcomer)
            policy.what_if(replace(snapshot, jobs=others), replace(job, id="asked"))
            check_offer(snapshot, policy.find_offer(replace(snapshot, jobs=others), replace(job, id="asked")))
    except ValueError as error:
        if not str(error) or not _says_what_is_wrong(error):
            raise AssertionError("an error that does not say what is wrong") from error
        return False
    return True


def remembering(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """Return the snapshot with the memory that the policy's decision added to it and to its jobs."""
    jobs = tuple(replace(job, memory=decision.job_memory.get(job.id, ())) for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs, memory=decision.memory)


def _says_what_is_wrong(error: ValueError) -> bool:
    """Return whether the core's input check raised the error, not a later sum or loop."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return Path(innermost[0].f_code.co_filename).name in DOORS


def check_decision(snapshot: Snapshot, decision: Decision) -> None:
    """Check that a decision can be carried out: every newcomer has a verdict, and every GPU exists, is usable
    and has one owner."""
    gpus = sum(server.gpus for server in snapshot.servers)
    usable = np.repeat([s.usable for s in snapshot.servers], [s.gpus for s in snapshot.servers])
    by_id = {job.id: job for job in snapshot.jobs}
    newcomers = {job.id for job in snapshot.jobs if job.newcomer}
    decided = [verdict.job_id for verdict in decision.verdicts]
    assert sorted([*decided, *decision.undecided]) == sorted(newcomers)
    assert not decision.undecided or snapshot.settings.most_work is not None
    moved = {change.job_id for change in decision.changes}
    # A GPU that passes from one job to another is listed by both until the first has released it. No other
    # sharing is allowed.
    taken = {address for name, held in decision.placements.items() if name not in moved for address in held}
    for job_id, addresses in decision.placements.items():
        assert all(0 <= address < gpus for address in addresses), (job_id, addresses)
        assert len(set(addresses)) == len(addresses), (job_id, addresses)
        assert job_id in by_id
        if job_id not in moved:
            assert set(addresses) <= set(by_id[job_id].placement), (job_id, addresses)
            continue
        assert all(usable[address] for address in addresses), (job_id, addresses)
        assert not taken & set(addresses), f"{job_id} takes GPUs of another"
        taken |= set(addresses)
    for verdict in decision.verdicts:
        assert verdict.reason
    for plan in decision.plans.values():
        assert np.isfinite(plan.start).all()
        assert not np.isnan(plan.finish_at)
        assert ((plan.gpus >= 0) & (plan.gpus <= gpus)).all()
        assert (plan.end >= plan.start).all()
    assert not np.isnan(decision.next_wake_at)


def check_offer(snapshot: Snapshot, offer: FoundOffer | None) -> None:
    """Check that an offer can be held: a future deadline, and a plan on existing GPUs."""
    if offer is None:
        return
    assert np.isfinite(offer.deadline_at)
    assert offer.deadline_at > snapshot.now
    assert ((offer.plan.gpus >= 0) & (offer.plan.gpus <= sum(s.gpus for s in snapshot.servers))).all()


def main(examples: int, first_seed: int, log: Path) -> None:
    """Try this many snapshots. ``log`` holds the snapshot being tried."""
    counts = {True: 0, False: 0}

    @seed(first_seed)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )  # fmt: skip
    @given(snapshots(), st.sampled_from(POLICIES))
    def trial(snapshot: Snapshot, policy: str) -> None:
        with log.open("w") as file:
            file.write(f"{policy}\n{snapshot!r}\n")
        counts[answer(snapshot, policy)] += 1

    trial()
    print(f"answered {counts[True]}, refused {counts[False]}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
