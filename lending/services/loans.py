"""Lending servers of an inference cluster to training (Lyra section 3.3).

An order is first stored as a row; the orchestrator carries it out. Each step is its own transaction under the
lock of the cluster's row, so a process may die between any two statements, and sending an order again changes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from cluster.choices import LendingState, ServerState
from cluster.models import Server
from lending.choices import LoanState, OrderSource
from lending.core.history import MoveKind
from lending.models import InferenceCluster, LoanOrder
from lending.services.occupied import find_occupied
from lending.services.transitions import move_servers, note_event
from projects.errors import Conflict, InvalidRequest
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import hint, wake


class OrderReused(Conflict):
    """The id belongs to another order."""

    code = "order_id_reused"
    title = "Order id reused"


class NotLent(Conflict):
    """The whole batch is refused: some of it cannot be lent now."""

    code = "not_lent"
    title = "Servers cannot be lent"


@transaction.atomic
def loan_order_create(
    *,
    inference_cluster: InferenceCluster,
    order_id: UUID,
    server_names: Collection[str],
    source: OrderSource,
    created_by: str = "",
) -> tuple[LoanOrder, bool]:
    """Store an offer of servers, and return it and whether it is new.

    Raises:
        OrderReused: the id belongs to an order for something else.
        InvalidRequest: a name is none of the cluster's servers.
        NotLent: lending is off, or a server is not at home, not up, or among those that are never lent.
    """
    lock_cluster(inference_cluster.cluster_id)
    inference_cluster = InferenceCluster.objects.get(pk=inference_cluster.pk)
    names = sorted(set(server_names))
    known = LoanOrder.objects.filter(pk=order_id).first()
    if known is not None:
        if known.inference_cluster_id != inference_cluster.pk or known.server_names != names:
            raise OrderReused("This id was used for another loan order; take a new one for a new order.")
        return known, False
    now = timezone.now()
    servers = _offered(inference_cluster, names)
    order = LoanOrder.objects.create(
        id=order_id,
        inference_cluster=inference_cluster,
        source=source,
        created_by=created_by,
        created_at=now,
        server_names=names,
        not_before=_not_before(inference_cluster, servers, now),
        state=LoanState.PENDING if servers else LoanState.DONE,
        finished_at=None if servers else now,
    )
    order.servers.set(servers)
    hint_orders(inference_cluster)
    if servers:
        wake("orchestrate")
    return order, True


def hint_orders(inference_cluster: InferenceCluster) -> None:
    """Make pages that show orders reload after the current transaction commits."""
    hint(f"cluster:{inference_cluster.cluster_id}", kind="orders")


def _offered(inference_cluster: InferenceCluster, names: Sequence[str]) -> list[Server]:
    """Return the servers of these names, or raise unless all of them can be lent now."""
    servers = list(inference_cluster.servers.filter(name__in=names).order_by("id"))
    unknown = sorted(set(names) - {server.name for server in servers})
    if unknown:
        raise InvalidRequest(
            f"{inference_cluster.name} has no server called {', '.join(unknown)}.",
            errors={"servers": [f"Unknown: {', '.join(unknown)}."]},
        )
    if not servers:
        return []
    if not inference_cluster.lending:
        raise NotLent(f"Lending from {inference_cluster.name} is switched off.")
    pending = set(_pending_servers(inference_cluster))
    for reason, wrong in (
        ("not at home", [one for one in servers if one.lending_state != LendingState.INFERENCE]),
        ("offered already", [one for one in servers if one.pk in pending]),
        ("not up", [one for one in servers if one.state != ServerState.UP]),
        ("serving requests", _serving(servers)),
    ):
        if wrong:
            listed = ", ".join(server.name for server in wrong)
            raise NotLent(f"None of these servers is lent, because some are {reason}: {listed}.")
    reserve = inference_cluster.rule().reserve
    at_home = inference_cluster.servers_in(LendingState.INFERENCE) - len(pending)
    if at_home - len(servers) < reserve:
        raise NotLent(
            f"{inference_cluster.name} keeps {reserve} of its servers at home whatever happens; {at_home} "
            f"are there, {len(servers)} were offered."
        )
    return servers


def _serving(servers: Sequence[Server]) -> list[Server]:
    occupied = find_occupied([server.pk for server in servers])
    return [server for server in servers if server.pk in occupied]


def _pending_servers(inference_cluster: InferenceCluster) -> list[int]:
    return list(
        LoanOrder.objects.filter(
            inference_cluster=inference_cluster, state=LoanState.PENDING, servers__isnull=False
        ).values_list("servers", flat=True)
    )


def _not_before(inference_cluster: InferenceCluster, servers: Sequence[Server], now: datetime) -> datetime:
    """Return when all of the servers have been at home for the minimum hold time."""
    hold = timedelta(seconds=inference_cluster.minimum_hold_seconds)
    return max([now, *(one.lending_changed_at + hold for one in servers if one.lending_changed_at)])


@transaction.atomic
def carry_out_loans(inference_cluster: InferenceCluster, now: datetime) -> int:
    """Lend the servers of due offers. Returns the number of servers that moved.

    Offers of fewer servers than the minimum gain wait for more, at most the minimum hold time.
    """
    cluster = lock_cluster(inference_cluster.cluster_id)
    inference_cluster = InferenceCluster.objects.get(pk=inference_cluster.pk)
    pending = list(inference_cluster.loan_orders.filter(state=LoanState.PENDING).order_by("created_at", "id"))
    if not pending:
        return 0
    if not inference_cluster.lending:
        for order in pending:
            _finish(order, LoanState.REFUSED, now, "Lending was switched off.")
        hint_orders(inference_cluster)
        return 0
    due = [order for order in pending if order.not_before <= now]
    offered = {order.pk: list(order.servers.order_by("id")) for order in due}
    # A server that began to serve requests after its offer is lent once it is empty.
    due = [order for order in due if not _serving(offered[order.pk])]
    offered = {order.pk: offered[order.pk] for order in due}
    longest_wait = timedelta(seconds=inference_cluster.minimum_hold_seconds)
    if not due or (
        sum(len(servers) for servers in offered.values()) < inference_cluster.minimum_gain_servers
        and now - due[0].created_at < longest_wait
    ):
        return 0
    for order in due:
        move_servers(offered[order.pk], LendingState.ON_LOAN, now)
        _finish(order, LoanState.DONE, now)
    servers = [server for order in due for server in offered[order.pk]]
    names = [server.name for server in servers]
    note_event(
        inference_cluster, MoveKind.LENT, f"Lent {len(names)}: {', '.join(names)}.", now,
        servers=names, orders=[str(order.pk) for order in due],
    )  # fmt: skip
    planning_fact_changed(cluster)
    hint(f"cluster:{cluster.pk}", kind="servers")
    hint_orders(inference_cluster)
    wake("plan", trigger=f"{len(names)} servers of {inference_cluster.name} are on loan")
    return len(servers)


def withdraw_offers(inference_cluster: InferenceCluster, wanted: int, now: datetime) -> int:
    """Give back servers that were offered but not lent yet, newest offers first. The caller holds the
    cluster's lock.

    Returns how many, at most ``wanted``.
    """
    withdrawn = 0
    pending = inference_cluster.loan_orders.filter(state=LoanState.PENDING).order_by("-created_at", "-id")
    for order in pending:
        for server in order.servers.order_by("-id")[: wanted - withdrawn]:
            order.servers.remove(server)
            withdrawn += 1
        if not order.servers.exists():
            _finish(order, LoanState.WITHDRAWN, now, "Its servers were asked back before they were lent.")
        if withdrawn == wanted:
            break
    return withdrawn


def _finish(order: LoanOrder, state: LoanState, now: datetime, reason: str = "") -> None:
    order.state, order.finished_at, order.reason = state, now, reason
    order.save(update_fields=["state", "finished_at", "reason"])
