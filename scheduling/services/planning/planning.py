"""The planner: reads a snapshot, asks the policy, and commits the answer unless facts have changed meanwhile.

Newcomers are decided at once; allocations change at slot boundaries. Computation happens
outside transactions. A commit compares the planning version with the snapshot's. If it differs, everything is
computed again while changes of facts wait (decision 0005).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.db import OperationalError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from cluster.models import Cluster
from kernels.compiling import INTERPRETED
from projects.prepared import PreparedValues
from scheduling.choices import UNDECIDED_STATES, CurveState
from scheduling.core.clock import changes_allowed, slot_end_after
from scheduling.core.question.decision import Decision as CoreDecision
from scheduling.core.question.decision import FoundOffer
from scheduling.core.question.snapshot import JobSnapshot
from scheduling.models import Decision, Job
from scheduling.policies import Policy
from scheduling.services.measuring.another_chance import Chance, chances, end_waiting, give_chances
from scheduling.services.measuring.better_plans import measurement_of_better_plan
from scheduling.services.measuring.measuring_later import measurement_after_decline
from scheduling.services.measuring.measuring_turns import note_turns
from scheduling.services.measuring.profiling import (
    any_undecided,
    next_measurement,
    settle_broken_off,
    start_measurement,
)
from scheduling.services.measuring.quota_waits import note_quota_waits
from scheduling.services.measuring.reported_mixtures import decline_unfit
from scheduling.services.measuring.room_to_measure import RoomToMeasure
from scheduling.services.measuring.unmeasurable import settle_unmeasurable
from scheduling.services.planning.committing import commit_decision
from scheduling.services.planning.waiting import anything_waits
from scheduling.services.requests.deciding_again import decided_again, jobs_to_decide_again, restore_promise
from scheduling.services.requests.lateness import decline_overdue, mark_late
from scheduling.services.requests.offer_search import find_offers, offer_awaited, offers_wait
from scheduling.services.rows.pass_lengths import Pass, measured_pass
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, read_cluster
from scheduling.services.rows.slots import frozen_until, slot_and_wake
from scheduling.services.rows.wakeups import hint, wake
from scheduling.services.snapshots.isolating import answer_isolated, set_aside_pool
from scheduling.services.snapshots.planner_lease import Moved, SetAside, planner_lease, unmoved, waited_for
from scheduling.services.snapshots.snapshots import (
    MOST_NEWCOMERS,
    Pool,
    cluster_policy,
    pool_kinds,
    pool_snapshot,
)
from scheduling.services.verdicts.incidents import note_failed_pass, note_good_pass
from scheduling.services.verdicts.offers import expire_offers, projects_without_offer, snapshot_after

log = structlog.get_logger(__name__)

#: Work (`scheduling.core.problem.work`) after which a pass decides no further newcomer: about one second.
MOST_WORK = 40_000_000
#: Slowdown of the same work until the machine code has been compiled.
INTERPRETER_SLOWNESS = 400
#: Share of this work in a pass that also reallocates.
BESIDE_REALLOCATION = 0.25
#: With this many newcomers waiting, reallocate only once per slot, even if no GPUs move.
A_BURST = 32
#: After this time, a pass leaves further jobs that are to be decided again to the next pass.
DECIDING_AGAIN_SECONDS = 0.3
#: Limit of jobs for each step of `_settle_time` in one pass, which holds the cluster's row meanwhile.
MOST_SETTLED = 100
#: Offers searched in one pass; each search reads the question again.
MOST_OFFERS = 2
#: After this time, a pass leaves the search for further jobs that break every plan to the next pass.
SETTING_ASIDE_SECONDS = 0.5


@dataclass(frozen=True)
class Computed:
    """One pool's decision, with offers found for declined newcomers and other chances of refused ones.

    ``answer``: the policy's full answer; ``decision``: the same without newcomers that have another chance.
    """

    pool: Pool
    answer: CoreDecision
    decision: CoreDecision
    #: Other chances of refused newcomers, by job id.
    chances: dict[str, Chance]
    #: Offers found for declined newcomers, by job id.
    offers: dict[str, FoundOffer]
    offers_awaited: tuple[str, ...]
    #: Duration of the computation.
    seconds: float


def run_planner(trigger: str = "") -> int:
    """Plan every cluster whose facts require it. Return the number of commits."""
    commits = 0
    failures: list[Exception] = []
    for cluster_id in Cluster.objects.values_list("pk", flat=True):
        try:
            with measured_pass(cluster_id) as one:
                _run_pass(cluster_id, trigger, one)
            commits += one.commits
        except OperationalError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, operators shall see it
            note_failed_pass(cluster_id, error)
            failures.append(error)
    if failures:
        raise failures[0]
    return commits


def _run_pass(cluster_id: int, trigger: str, one: Pass) -> None:
    began = time.perf_counter()
    most_work = MOST_WORK // (INTERPRETER_SLOWNESS if INTERPRETED else 1)
    with planner_lease(cluster_id) as epoch:
        if epoch is None:
            return
        while True:
            try:
                one.commits += plan_cluster(cluster_id, epoch, trigger, most_work=most_work, one=one)
                break
            except SetAside:
                one.commits += 1
                if time.perf_counter() - began > SETTING_ASIDE_SECONDS:
                    wake("plan", trigger="jobs were set aside")
                    return
            except Moved:
                return  # another planner is at work
        if not one.idle:
            note_good_pass(cluster_id)


def plan_cluster(
    cluster_id: int, epoch: int, trigger: str, *, most_work: int = MOST_WORK, one: Pass | None = None
) -> int:
    """Run one pass: overdue jobs, verdicts, reallocation at a slot boundary, offers, measurements.

    Newcomers beyond ``most_work`` are left to the next pass, which this one wakes. ``one``: the pass, if its
    steps are measured.

    Raises:
        Moved: another planner took over, or a job was set aside; nothing of the last step was written.
    """
    one = one or Pass()
    cluster = read_cluster(cluster_id)

    def step(name: str, attempt: Callable[[Cluster, int], int | None]) -> int | None:
        """Return the number of commits that the attempt made, or None if it had nothing to do."""

        def once(overtaken: int) -> int | None:
            nonlocal cluster
            if overtaken:
                cluster = read_cluster(cluster_id)
            with one.step(name, overtaken):
                return attempt(cluster, overtaken)

        nonlocal cluster
        commits = waited_for(cluster_id, once)
        if commits is not None:
            cluster = read_cluster(cluster_id)
        return commits

    now = timezone.now()
    if not (anything_waits(cluster, now) or reallocation_due(cluster, now, newcomers=False)):
        one.idle = True
        return 0
    commits = step("settling", lambda cluster, _: _settle_time(cluster, epoch, timezone.now()) or None) or 0
    commits += step("deciding again", lambda cluster, _: _decide_again(cluster, epoch) or None) or 0
    decided = step(
        "deciding",
        # After facts have moved, a shorter computation makes changes of facts wait for less time.
        lambda cluster, overtaken: _decide_if_due(cluster, epoch, trigger, most_work // 2**overtaken),
    )
    commits += decided or 0
    # Offers and measurements wait for a backlog, but not for newcomers that came during the pass.
    if decided is not None and newcomers_wait(cluster, since=now):
        return commits
    commits += step("offers", lambda cluster, _: _offer(cluster, epoch) or None) or 0
    commits += step("measuring", lambda cluster, _: _measure(cluster, epoch) or None) or 0
    return commits


def _offer(cluster: Cluster, epoch: int) -> int:
    return offer_awaited(cluster, epoch, timezone.now(), MOST_OFFERS)


def _decide_if_due(cluster: Cluster, epoch: int, trigger: str, most_work: int) -> int | None:
    """Decide newcomers, and reallocate if that is due. Return the number of decisions with content, None
    if neither was due."""
    began, now = time.perf_counter(), timezone.now()
    newcomers = newcomers_wait(cluster)
    reallocate = reallocation_due(cluster, now, newcomers=newcomers)
    if not (reallocate or newcomers):
        return None
    decided = _decide(cluster, epoch, now, trigger, most_work, reallocate=reallocate)
    note_pass(decided, time.perf_counter() - began)
    return len(decided)


def reallocation_due(cluster: Cluster, now: datetime, *, newcomers: bool | None = None) -> bool:
    """Return whether to reallocate: after a slot's end, if facts changed, newcomers wait or the last time
    is long ago; and at the time that a plan set. ``newcomers``: whether any wait, if that was just read."""
    if not changes_allowed(now.timestamp(), *slot_and_wake(cluster)):
        return False
    if newcomers is None:
        newcomers = newcomers_wait(cluster)
    if (
        cluster.next_slot_at is None
        and _divided_in_this_slot(cluster, now)
        and newcomers
        and newcomers_wait(cluster, A_BURST)
    ):
        # No GPUs moved, so no slot runs; reallocating in each pass would leave little time for verdicts.
        return False
    if cluster.planning_version != cluster.planned_version or cluster.replanned_at is None:
        return True
    if newcomers:
        return True
    if cluster.next_wake_at is not None and now >= cluster.next_wake_at:
        return True
    return (now - cluster.replanned_at).total_seconds() >= cluster.replan_seconds


def _divided_in_this_slot(cluster: Cluster, now: datetime) -> bool:
    at = cluster.replanned_at
    return at is not None and 0.0 <= (now - at).total_seconds() < cluster.slot_seconds


def divided_next(cluster: Cluster, now: datetime) -> datetime:
    """Return when a pass at ``now`` that does not reallocate may first give GPUs to newcomers.

    During a burst the cluster is reallocated once per slot (`reallocation_due`), so no newcomer starts before
    the slot ends. Plans that begin earlier would promise time that no job gets: each pass would find the last
    one's plans cut short, and start its slots at another time.
    """
    frozen = frozen_until(cluster, now)
    if frozen > now or cluster.replanned_at is None:
        return frozen
    return max(now, cluster.replanned_at + timedelta(seconds=cluster.slot_seconds))


def note_pass(decisions: list[Decision], seconds: float) -> None:
    """Store how long these decisions took until committed; `measured_pass` measures the whole pass."""
    Decision.objects.filter(pk__in=[row.pk for row in decisions]).update(pass_seconds=seconds)


def newcomers_wait(cluster: Cluster, number: int = 1, *, since: datetime | None = None) -> bool:
    """Return whether at least ``number`` undecided jobs have a usable curve and do not wait for more levels.

    ``since``: count only those submitted until then.
    """
    if number == 1 and since is None:
        return _NEWCOMER.any(cluster.pk)
    waiting = _newcomers(cluster.pk)
    if since is not None:
        waiting = waiting.filter(submitted_at__lte=since)
    return len(waiting.values_list("pk")[:number]) == number


def _newcomers(cluster_id: int) -> QuerySet[Job]:
    return Job.objects.filter(
        cluster=cluster_id,
        state__in=UNDECIDED_STATES,
        curve__state=CurveState.READY,
        awaits_levels=False,
        paused_by_owner=False,
    ).order_by()


_NEWCOMER = PreparedValues(lambda cluster_id: _newcomers(cluster_id).values_list("pk")[:1])


def _settle_time(cluster: Cluster, epoch: int, now: datetime) -> int:
    """Settle what depends on time alone: late jobs, overdue newcomers, expired offers, hopeless
    measurements. Return the number of changes."""
    with transaction.atomic():
        cluster = lock_cluster(cluster.pk)
        if cluster.epoch != epoch:
            raise Moved
        undecided = any_undecided(cluster)
        settled = [mark_late(cluster, now, MOST_SETTLED)]
        changed = expire_offers(cluster, now)
        if undecided:
            settled.append(decline_unfit(cluster, now, MOST_SETTLED))
            settled.append(decline_overdue(cluster, now, MOST_SETTLED))
            changed += end_waiting(cluster, now)
        changed += settle_broken_off(cluster)
        if undecided:
            settled.append(settle_unmeasurable(cluster, MOST_SETTLED))
        changed += sum(settled)
        if max(settled) == MOST_SETTLED:
            wake("plan", trigger="more jobs are to be settled")
        if changed:
            planning_fact_changed(cluster)
    return changed


def _decide_again(cluster: Cluster, epoch: int) -> int:
    """Decide resumed jobs again whose promise their pause made void, as long as the pass has time. Return
    their number, and wake the next pass for the others."""
    began, decided = time.perf_counter(), 0
    cluster_id = cluster.pk
    waiting = jobs_to_decide_again(cluster)
    for job_id in waiting:
        if decided and time.perf_counter() - began > DECIDING_AGAIN_SECONDS:
            break
        cluster = read_cluster(cluster_id)
        job = Job.objects.select_related("curve", "project__quota", "owner").get(pk=job_id)
        answered_by = partial(answer_isolated, cluster, epoch)
        verdict, plans = decided_again(cluster, job, job.deadline_at, job.service_class, answered_by)
        with unmoved(cluster, epoch):
            restore_promise(job, verdict, plans)
            planning_fact_changed(cluster)
        decided += 1
    if decided and jobs_to_decide_again(cluster):
        wake("plan", trigger="resumed jobs wait")
    return decided


def _decide(
    cluster: Cluster, epoch: int, now: datetime, trigger: str, most_work: int, *, reallocate: bool
) -> list[Decision]:
    """Commit verdicts, and a reallocation if one is due. Return the decisions with content."""
    policy = cluster_policy(cluster)
    slot_at = now if reallocate else divided_next(cluster, now)
    most_work = int(most_work * (BESIDE_REALLOCATION if reallocate else 1.0))
    # Jobs that wait for more levels may fit without them after other facts have changed.
    waiting = reallocate and cluster.planning_version != cluster.planned_version
    pools = [
        pool_snapshot(cluster, kind, now, reallocate_at=slot_at, awaiting_levels=waiting)
        for kind in pool_kinds(cluster)
    ]
    ask = partial(
        _compute, cluster, policy=policy, most_work=_for_each(most_work, pools), reallocate=reallocate
    )
    computed = [answer_isolated(cluster, epoch, pool, ask) for pool in pools]
    rows = []
    with unmoved(cluster, epoch) as current:
        for result in computed:
            row = commit_decision(
                current,
                pool=result.pool,
                answer=result.answer,
                decision=result.decision,
                offers=result.offers,
                offers_awaited=result.offers_awaited,
                epoch=epoch,
                reallocated=reallocate,
                compute_seconds=result.seconds,
                trigger=trigger,
            )
            rows += [row] if row else []
            give_chances(result.chances)
            set_aside_pool(current, result.pool, now)
        version = current.planning_version + 1
        facts: dict[str, Any] = {"planning_version": version}
        if reallocate:
            wake_at = min((result.decision.next_wake_at for result in computed), default=float("inf"))
            slot_ends_at, _ = slot_and_wake(current)
            moved = any(result.decision.changes for result in computed)
            ends_at = slot_end_after(slot_ends_at, now.timestamp(), current.slot_seconds, moved=moved)
            facts |= {
                "planned_version": version,
                "replanned_at": now,
                "next_slot_at": _time(ends_at, now) if ends_at > now.timestamp() else None,
                "next_wake_at": _time(wake_at, now),
            }
        Cluster.objects.filter(pk=cluster.pk).update(**facts)
        hint(f"cluster:{cluster.pk}", kind="planned")
        verdicts = any(result.decision.verdicts or result.chances for result in computed)
        if verdicts and (newcomers_wait(cluster) or offers_wait(cluster)):
            wake("plan", trigger="newcomers wait")
    return rows


def _for_each(most_work: int, pools: Sequence[Pool]) -> int:
    """Return the work for each kind of GPU for which newcomers wait; the kinds share ``most_work``."""
    asked = sum(any(job.newcomer for job in pool.snapshot.jobs) for pool in pools)
    return most_work // max(1, asked)


def _compute(cluster: Cluster, pool: Pool, policy: Policy, most_work: int, *, reallocate: bool) -> Computed:
    began = time.perf_counter()
    snapshot = replace(pool.snapshot, settings=replace(pool.snapshot.settings, most_work=most_work))
    pool = replace(pool, snapshot=snapshot)
    answer = policy.replan(snapshot) if reallocate else policy.admit(snapshot)
    decision, again = chances(cluster, pool.kind, answer, datetime.fromtimestamp(snapshot.now, UTC))
    declined = {verdict.job_id for verdict in decision.verdicts if not verdict.admitted}
    by_id = {job.id: job for job in snapshot.jobs if job.id in declined}
    asking = projects_without_offer(sorted(declined, key=lambda job_id: _order(by_id[job_id])))
    # An offer takes room that could be promised to waiting newcomers, so it is searched after their verdicts.
    decided = len(answer.verdicts)
    waiting = bool(decision.undecided) or decided >= MOST_NEWCOMERS
    # Skip jobs tried on several GPU kinds: each kind may make its own offer.
    several = set(Job.objects.filter(pk__in=asking).exclude(refused_kinds={}).values_list("pk", flat=True))
    now_asking = [] if waiting else [job_id for job_id in asking if job_id not in several][:MOST_OFFERS]
    offers: dict[str, FoundOffer] = {}
    if now_asking:
        after = snapshot_after(snapshot, decision)
        offers = find_offers(policy, after, [by_id[job_id] for job_id in now_asking])
    awaited = tuple(job_id for job_id in by_id if job_id not in now_asking)
    return Computed(pool, answer, decision, again, offers, awaited, time.perf_counter() - began)


def _order(job: JobSnapshot) -> tuple[float, str]:
    return job.submitted_at, job.id


def _measure(cluster: Cluster, epoch: int) -> int:
    """Start at most one measurement."""
    room = RoomToMeasure(cluster, cluster_policy(cluster), timezone.now())
    undecided = any_undecided(cluster)
    measurement = next_measurement(room, undecided=undecided)
    if measurement is None and not undecided:
        measurement = measurement_after_decline(room) or measurement_of_better_plan(room)
    if undecided:
        note_turns(cluster, room.all_turns())
    note_quota_waits(room)
    if measurement is None:
        return 0
    with unmoved(cluster, epoch) as current:
        if start_measurement(measurement, current, epoch) is None:
            return 0
        planning_fact_changed(cluster)
    return 1


def _time(moment: float, now: datetime) -> datetime | None:
    # The periodic replan finds changes that are forecast for more than a day later.
    seconds = moment - now.timestamp()
    return now + timedelta(seconds=max(seconds, 0.0)) if seconds < 86_400 else None
