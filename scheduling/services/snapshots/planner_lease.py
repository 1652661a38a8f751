"""The planner's lease: one planner at a time, fenced.

A session advisory lock keeps two planners apart and ends with its holder's connection. The epoch grows
whenever another process takes over. Every generation carries it to the agents, which refuse an older one, and
a commit checks that the epoch is still its own.
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
    """Jobs that broke every plan were set aside, so the question has changed."""


Answer = TypeVar("Answer")
LEASE = timedelta(seconds=30)
#: A pass renews a lease of this age; passes in between write nothing.
RENEWED_AFTER = timedelta(seconds=10)
_LOCK_CLASS = 0x50554E43  # "PUNC": separates these advisory locks from others in a shared database
_process_token = ""
_process_id = 0


def process_token() -> str:
    """Return a token of this process; a forked child gets its own."""
    global _process_token, _process_id
    if _process_id != os.getpid():
        _process_id = os.getpid()
        _process_token = secrets.token_hex(16)
    return _process_token


@contextmanager
def planner_lease(cluster_id: int) -> Iterator[int | None]:
    """Yield the epoch as the cluster's planner, or None while another process is the planner."""
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
    # Writing waits for the row's lock, which every report takes.
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
    """Open a transaction that commits only if facts and planner are those of the computation.

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
    """Open a transaction during which no planning fact changes: changes wait for the cluster's row.

    Raises:
        SetAside: as the body raises; what it stored about the job is committed.
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
    """Attempt something outside any transaction. If facts change meanwhile, attempt it again while changes
    wait (decision 0005): on a busy cluster some fact changes during every attempt.

    Args:
        attempt: takes the number of times that facts overtook it, 0 or 1.

    Raises:
        Moved: as the second attempt raises; another planner took over.
        SetAside: as either attempt raises.
    """
    try:
        return attempt(0)
    except SetAside:
        raise
    except Moved:
        with undisturbed(cluster_id):
            return attempt(1)
