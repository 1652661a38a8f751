"""Giving servers back to an inference cluster (Lyra sections 3.3, 3.4).

An order is first stored as a row. The orchestrator then chooses servers and makes them unusable for training,
in one transaction with the planner's wake-up. The planner moves jobs off them as off a draining server. A
server goes home when no assignment is left on it: its agent confirms that, or its fence period ends. Each
step reads only rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from cluster.choices import LendingState
from cluster.models import Cluster
from lending.choices import OrderSource, ReclaimState
from lending.core.history import MoveKind
from lending.models import InferenceCluster, ReclaimedServer, ReclaimOrder
from lending.services.loans import OrderReused, hint_orders, withdraw_offers
from lending.services.transitions import move_servers, note_event
from projects.errors import Conflict, InvalidRequest
from scheduling.choices import (
    COMING_STATES,
    AssignmentState,
    GenerationState,
    JobEventKind,
    JobState,
    Purpose,
    RetireReason,
)
from scheduling.core.question.decision import ChangeKind
from scheduling.models import Assignment, Generation, Job, JobEvent
from scheduling.services.generations.generations import retire
from scheduling.services.generations.lifecycle import break_off_change
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, read_cluster
from scheduling.services.rows.wakeups import hint, wake

if TYPE_CHECKING:
    from lending.services.reclaiming_choice import ReclaimChoice

#: Planning facts may change while servers are chosen; the last attempt chooses them under the lock.
MAXIMUM_ATTEMPTS = 3
#: Limits of ``wanted_by`` in the past and in the future.
LATEST_WISH, EARLIEST_WISH = timedelta(days=1), timedelta(days=366)


@transaction.atomic
def reclaim_order_create(
    *,
    inference_cluster: InferenceCluster,
    order_id: UUID,
    count: int,
    wanted_by: datetime | None = None,
    source: OrderSource,
    created_by: str = "",
) -> tuple[ReclaimOrder, bool]:
    """Store the order to return ``count`` servers by ``wanted_by`` (None: now), and return it and whether it
    is new.

    ``count`` may exceed the servers on loan; then all of them come back.

    Raises:
        OrderReused: the id belongs to another order.
        InvalidRequest: the time is more than a day ago or a year ahead.
    """
    lock_cluster(inference_cluster.cluster_id)
    now = timezone.now()
    known = ReclaimOrder.objects.filter(pk=order_id).first()
    if known is not None:
        asked = (known.inference_cluster_id, known.count, known.wanted_by)
        if asked != (inference_cluster.pk, count, wanted_by or known.wanted_by):
            raise OrderReused("This id was used for another reclaim order; take a new one for a new order.")
        return known, False
    if wanted_by is not None and not now - LATEST_WISH < wanted_by < now + EARLIEST_WISH:
        raise InvalidRequest(
            "wanted_by is out of range.",
            errors={"wanted_by": ["Must be within the last day or the coming year."]},
        )
    order = ReclaimOrder.objects.create(
        id=order_id,
        inference_cluster=inference_cluster,
        source=source,
        created_by=created_by,
        created_at=now,
        count=count,
        wanted_by=wanted_by or now,
        ahead_of_usage=_ahead_of_usage(inference_cluster),
    )
    hint_orders(inference_cluster)
    wake("orchestrate")
    return order, True


def _ahead_of_usage(inference_cluster: InferenceCluster) -> bool | None:
    """Return whether the latest measured usage asks no server back; None before the first sample."""
    newest = inference_cluster.usage_samples.order_by("-period_ends_at").first()
    if newest is None:
        return None
    returning = inference_cluster.servers_in(LendingState.RECLAIMING)
    on_loan = inference_cluster.servers_in(LendingState.ON_LOAN) + returning
    decision = inference_cluster.rule().decide(newest.usage, on_loan=on_loan, being_returned=returning)
    return decision.reclaim == 0


def begin_reclaims(inference_cluster: InferenceCluster, now: datetime) -> int:
    """Choose servers for every due order. Returns how many orders were begun."""
    cluster = read_cluster(inference_cluster.cluster_id)
    begun = 0
    pending = inference_cluster.reclaim_orders.filter(state=ReclaimState.PENDING).order_by("created_at", "id")
    for order in pending:
        if order.wanted_by - returning_takes(cluster) <= now:
            begun += _begin(order.pk, inference_cluster)
    return begun


def returning_takes(cluster: Cluster) -> timedelta:
    """Return how long before ``wanted_by`` an order is begun: the return time when an agent does not
    answer."""
    return timedelta(
        seconds=cluster.slot_seconds
        + cluster.suspend_timeout_seconds
        + cluster.fence_seconds
        + cluster.fence_margin_seconds
    )


def _begin(order_id: UUID, inference_cluster: InferenceCluster) -> bool:
    for attempt in range(MAXIMUM_ATTEMPTS):
        version = Cluster.objects.values_list("planning_version", flat=True).get(
            pk=inference_cluster.cluster_id
        )
        order = ReclaimOrder.objects.get(pk=order_id)
        last = attempt == MAXIMUM_ATTEMPTS - 1
        choice = None if last else _choose(inference_cluster, order.count)
        with transaction.atomic():
            cluster = lock_cluster(inference_cluster.cluster_id)
            order = ReclaimOrder.objects.select_for_update().get(pk=order_id)
            if order.state != ReclaimState.PENDING:
                return False
            if choice is not None and cluster.planning_version != version:
                continue
            _commit(order, inference_cluster, cluster, choice)
            return True
    return False


def _choose(inference_cluster: InferenceCluster, count: int) -> ReclaimChoice:
    # Imported here: only processes that begin an order need the decision core.
    from lending.services.reclaiming_choice import choose

    return choose(inference_cluster, count)


def _commit(
    order: ReclaimOrder, inference_cluster: InferenceCluster, cluster: Cluster, choice: ReclaimChoice | None
) -> None:
    """Make the chosen servers unusable and wake the planner. The caller holds the cluster's lock."""
    now = timezone.now()
    order.withdrawn = withdraw_offers(inference_cluster, order.count, now)
    if choice is None or order.withdrawn:
        choice = _choose(inference_cluster, order.count - order.withdrawn)
    move_servers(choice.servers, LendingState.RECLAIMING, now)
    ReclaimedServer.objects.bulk_create(
        ReclaimedServer(
            reclaim_order=order, server=server, position=position, group=group, cost=cost, begun_at=now
        )
        for position, (server, group, cost) in enumerate(
            zip(choice.servers, choice.groups, choice.costs, strict=True)
        )
    )
    order.state, order.begun_at = ReclaimState.RECLAIMING, now
    order.choice = {**choice.document, "jobs": list(choice.jobs)}
    order.save()
    _break_off_measurements([server.pk for server in choice.servers])
    _break_off_changes([server.pk for server in choice.servers])
    names = [server.name for server in choice.servers]
    note_event(
        inference_cluster, MoveKind.ASKED_BACK,
        f"{order.count} asked back, {len(names)} chosen: {', '.join(names) or 'none'}.", now,
        order=str(order.pk), servers=names, withdrawn=order.withdrawn,
    )  # fmt: skip
    hint_orders(inference_cluster)
    if not names:
        _close(order, now)
        return
    planning_fact_changed(cluster)
    hint(f"cluster:{cluster.pk}", kind="servers")
    wake("plan", trigger=f"{len(names)} servers go back to {inference_cluster.name}")


def _break_off_measurements(server_ids: Collection[int]) -> None:
    """Break off measurements, which would hold a server for a minute; they are repeated elsewhere."""
    measuring = Generation.objects.filter(
        purpose=Purpose.PROFILING, assignments__gpu__server_id__in=server_ids
    ).exclude(state=GenerationState.RETIRED)
    for generation in measuring.distinct():
        retire(generation, RetireReason.BROKEN_OFF, "profiled no further: its server is given back")


def _break_off_changes(server_ids: Collection[int]) -> None:
    """Break off changes to these servers: otherwise a job would move onto them and then off again."""
    assigned = Assignment.objects.filter(
        gpu__server_id__in=server_ids,
        generation__purpose=Purpose.TRAINING,
        generation__state__in=COMING_STATES,
    ).exclude(state=AssignmentState.RELEASED)
    for job in Job.objects.filter(pk__in=assigned.values("job_id")).select_related("cluster").order_by("pk"):
        break_off_change(job, "a server that it was to use is given back", job.cluster)


def return_servers(inference_cluster: InferenceCluster) -> int:
    """Send home every reclaimed server without work. Returns how many went."""
    if not inference_cluster.servers_in(LendingState.RECLAIMING):
        return 0
    with transaction.atomic():
        cluster = lock_cluster(inference_cluster.cluster_id)
        busy = Assignment.objects.exclude(state=AssignmentState.RELEASED).values("gpu__server_id")
        coming = list(
            ReclaimedServer.objects.filter(
                reclaim_order__inference_cluster=inference_cluster, returned_at__isnull=True
            )
            .exclude(server_id__in=busy)
            .select_related("server", "reclaim_order")
        )
        if not coming:
            return 0
        now = timezone.now()
        move_servers([one.server for one in coming], LendingState.INFERENCE, now)
        ReclaimedServer.objects.filter(pk__in=[one.pk for one in coming]).update(returned_at=now)
        names = [one.server.name for one in coming]
        note_event(
            inference_cluster,
            MoveKind.RETURNED,
            f"Returned {len(names)}: {', '.join(names)}.",
            now,
            servers=names,
        )
        for order in {one.reclaim_order_id: one.reclaim_order for one in coming}.values():
            if not order.servers.filter(returned_at__isnull=True).exists():
                _close(order, now)
        planning_fact_changed(cluster)
        hint(f"cluster:{cluster.pk}", kind="servers")
        hint_orders(inference_cluster)
    return len(coming)


def _close(order: ReclaimOrder, now: datetime) -> None:
    """Mark an order as returned once all of its servers are back, and record its outcome."""
    order.state, order.returned_at = ReclaimState.RETURNED, now
    order.outcome = _outcome(order)
    order.save(update_fields=["state", "returned_at", "outcome"])


def _outcome(order: ReclaimOrder) -> dict[str, object]:
    """Return what happened to the jobs that had GPUs on the servers, from their events."""
    jobs = list(order.choice.get("jobs", []))
    events: dict[str, set[str]] = {job: set() for job in jobs}
    for job, kind in JobEvent.objects.filter(job_id__in=jobs, happened_at__gte=order.begun_at).values_list(
        "job_id", "kind"
    ):
        events[job].add(kind)
    fates = {job: _fate(kinds) for job, kinds in events.items()}
    counts = Counter(fates.values())
    return {
        "preempted_jobs": counts["preempted"],
        "rescaled_jobs": counts["rescaled"],
        "held_back_jobs": counts["held back"],
        "undisturbed_jobs": counts["undisturbed"],
        "jobs": fates,
        "collateral_gpus": order.choice.get("collateral_gpus", 0),
        "seconds_to_return": order.seconds_to_return(),
        "on_time": order.on_time(),
    }


def _fate(kinds: Collection[str]) -> str:
    """Return what became of one job, from the kinds of its events. A change broken off before it trained took
    no running work."""
    seen = set(kinds)
    broken_off = JobEventKind.BROKEN_OFF in seen
    suspended = JobState.SUSPENDED in seen and not broken_off
    if suspended or {JobEventKind.SUSPENDING, JobEventKind.INTERRUPTED} & seen:
        return "preempted"
    if {ChangeKind.SHRINK, ChangeKind.MIGRATE} & seen:
        return "rescaled"
    if broken_off:
        return "held back"
    return "rescaled" if {ChangeKind.GROW, JobEventKind.RESCALED} & seen else "undisturbed"


@transaction.atomic
def reclaim_confirm(*, order: ReclaimOrder, server_names: Collection[str]) -> ReclaimOrder:
    """Record that the inference scheduler has these servers again. Confirming a name again changes nothing.

    Raises:
        InvalidRequest: a server is not of this order.
        Conflict: a server is not back yet.
    """
    order = ReclaimOrder.objects.select_for_update().get(pk=order.pk)
    rows = {row.server.name: row for row in order.servers.select_related("server")}
    unknown = sorted(set(server_names) - rows.keys())
    if unknown:
        raise InvalidRequest(
            "The order has no such server.", errors={"servers": [f"Unknown: {', '.join(unknown)}."]}
        )
    early = sorted(name for name in server_names if rows[name].returned_at is None)
    if early:
        raise Conflict(f"Not back yet: {', '.join(early)}.")
    now = timezone.now()
    order.servers.filter(server__name__in=list(server_names), confirmed_at__isnull=True).update(
        confirmed_at=now
    )
    if order.state == ReclaimState.RETURNED and not order.servers.filter(confirmed_at__isnull=True).exists():
        order.state, order.confirmed_at = ReclaimState.CONFIRMED, now
        order.save(update_fields=["state", "confirmed_at"])
    hint_orders(order.inference_cluster)
    return order
