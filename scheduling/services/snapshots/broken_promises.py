"""Finds promises that a change of a server would break, by planning with and without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from django.utils import timezone

from cluster.models import Server
from scheduling.core.question.snapshot import ServerSnapshot
from scheduling.services.snapshots.isolating import answered_now
from scheduling.services.snapshots.snapshots import Pool, cluster_policy, pool_kinds, pool_snapshot


def jobs_newly_at_risk(server: Server, change: Callable[[ServerSnapshot], ServerSnapshot]) -> set[str]:
    """Return the ids of jobs whose promises would break if the server were as ``change`` says.

    Raises:
        Unavailable: no plan can be computed at present.
    """
    cluster = server.cluster
    now = timezone.now()
    broken: set[str] = set()
    policy = cluster_policy(cluster)

    def at_risk(pool: Pool) -> set[str]:
        return set(policy.replan(pool.snapshot).at_risk)

    for kind in pool_kinds(cluster):
        pool = pool_snapshot(cluster, kind, now)
        if all(known.id != server.name for known in pool.snapshot.servers):
            continue
        before = answered_now(pool, at_risk)
        without = tuple(
            change(known) if known.id == server.name else known for known in pool.snapshot.servers
        )
        changed = dataclasses.replace(pool, snapshot=dataclasses.replace(pool.snapshot, servers=without))
        broken |= answered_now(changed, at_risk) - before
    return broken
