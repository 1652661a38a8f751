"""One planner at a time, fenced (contracts 4).

A session advisory lock keeps two planners apart and is gone the moment its holder's connection is. The epoch
grows whenever another process takes over; it travels with every generation to the agents, which refuse an
older one, and a commit checks that the epoch is still its own.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedValues
from scheduling.services.rows.records import lock_cluster


class Moved(Exception):
    """A planning fact changed while the plan was computed, or another planner took over."""


class SetAside(Moved):
    """Jobs with which no plan could be computed were set aside: the question is another one now."""


Answer = TypeVar("Answer")
LEASE = timedelta(seconds=30)
#: A lease is made longer by passes that find it as old; those between write nothing.
RENEWED_AFTER = timedelta(seconds=10)
_LOCK_CLASS = 0x50554E43  # "PUNC": keeps our advisory locks apart from others' in a shared database
_process_token = ""
_process_id = 0


def process_token() -> str:
    """Names this process; a forked child gets its own."""
    global _process_token, _process_id
    if _process_id != os.getpid():
        _process_id = os.getpid()
        _process_token = secrets.token_hex(16)
    return _process_token


@contextmanager
def planner_lease(cluster_id: int) -> Iterator[int | None]:
    """Be the planner of the cluster: yields the epoch, or None while another process is."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_try_advisory_lock(%s, %s)", [_LOCK_CLASS, cluster_id])
        (held,) = cursor.fetchone()
    if not held:
        yield None
        return
    try:
        yield _take_over(cluster_id)
    finally:
        # A broken connection has released the lock already.
        if connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("select pg_advisory_unlock(%s, %s)", [_LOCK_CLASS, cluster_id])


_LEASE = PreparedValues(
    lambda cluster_id: Cluster.objects.filter(pk=cluster_id).values_list(
        "epoch", "planner_token", "planner_lease_expires_at"
    )
)


def _take_over(cluster_id: int) -> int:
    token, now = process_token(), timezone.now()
    row = Cluster.objects.filter(pk=cluster_id)
    ((epoch, owner_token, expires_at),) = _LEASE.ask(cluster_id)
    mine = owner_token == token
    # Writing the row waits for whoever holds it, and every report does.
    if mine and expires_at is not None and now + LEASE - RENEWED_AFTER < expires_at <= now + LEASE:
        return int(epoch)
    if mine and row.filter(planner_token=token).update(planner_lease_expires_at=now + LEASE):
        return int(epoch)
    row.update(
        planner_token=token,
        planner_owner=f"{socket.gethostname()}:{os.getpid()}",
        planner_lease_expires_at=now + LEASE,
        epoch=F("epoch") + 1,
    )
    return row.values_list("epoch", flat=True).get()


@contextmanager
def unmoved(cluster: Cluster, epoch: int) -> Iterator[Cluster]:
    """A transaction that commits only if the facts and the planner are those that were computed with.

    Raises:
        Moved: they are not; nothing is written.
    """
    with transaction.atomic():
        current = lock_cluster(cluster.pk)
        same_planner = current.epoch == epoch and current.planner_token == process_token()
        if current.planning_version != cluster.planning_version or not same_planner:
            raise Moved
        yield current


@contextmanager
def undisturbed(cluster_id: int) -> Iterator[None]:
    """A transaction during which no planning fact changes: whoever changes one waits for the cluster's row.

    Raises:
        SetAside: as the body does; that somebody was set aside stays written.
    """
    aside = None
    with transaction.atomic():
        lock_cluster(cluster_id)
        try:
            yield
        except SetAside as told:
            aside = told
    if aside is not None:
        raise aside


def waited_for(cluster_id: int, attempt: Callable[[int], Answer]) -> Answer:
    """Attempt something outside any transaction; once facts have overtaken it, again while they wait
    (decision 0005). On a busy cluster something changes during every look.

    Args:
        attempt: takes how often it was overtaken, 0 or 1.

    Raises:
        Moved: as the second attempt does; another planner took over.
        SetAside: as either does.
    """
    try:
        return attempt(0)
    except SetAside:
        raise
    except Moved:
        with undisturbed(cluster_id):
            return attempt(1)
