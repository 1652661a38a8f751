"""Groups of servers that spread the experts of one model; each is started, replaced and ended as a whole.

`core.replacing` treats a group like a single replica: a deployment has one group. Callers hold the cluster's
row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from deployments.choices import ReplicaState
from deployments.core.places import choose_place
from deployments.core.replacing import Standing, next_steps
from deployments.models import Deployment, Replica, Rollout
from deployments.services.homes import Homes, has_to_leave
from deployments.services.records import hint_pages
from deployments.services.replicas import (
    PLACE_IS_FREED,
    GroupMember,
    drain_replica,
    is_one_ending,
    start_replica,
    stop_replica,
)

_PRESENT = (ReplicaState.STARTING, ReplicaState.SERVING)


def steer_group(
    deployment: Deployment,
    rollout: Rollout | None,
    replicas: Sequence[Replica],
    homes: Homes,
    now: datetime,
) -> str:
    """Take the next step towards one group of the wanted generation; return why it is not reached, or an
    empty text.

    Args:
        rollout: the wanted generation; None if all were given up.
        replicas: those that are not gone.
    """
    groups: dict[str, list[Replica]] = defaultdict(list)
    for replica in replicas:
        if replica.state in _PRESENT:
            groups[replica.group].append(replica)
    standings = [
        Standing(
            key,
            is_newest=rollout is not None
            and members[0].rollout_id == rollout.pk
            and not any(has_to_leave(member, homes) for member in members),
            is_serving=all(member.state == ReplicaState.SERVING for member in members),
        )
        for key, members in groups.items()
    ]
    size = 0 if rollout is None else rollout.group_servers
    has_room = homes.count_places(deployment.pk) >= size
    steps = next_steps(standings, int(rollout is not None), int(has_room))
    for key in steps.drain:
        for replica in groups[key]:
            drain_replica(replica, now)
    if rollout is None:
        return ""
    if steps.start and now < rollout.not_before:
        return f"A server of generation {rollout.number} failed; the group starts again soon."
    if steps.start:
        return _start(deployment, rollout, homes)
    if steps.blocked and is_one_ending(replicas):
        return PLACE_IS_FREED
    if steps.blocked:
        beside = " beside those of the generation that serves" if groups else ""
        return f"There is no place for a group of {size} servers{beside}."
    return ""


def _start(deployment: Deployment, rollout: Rollout, homes: Homes) -> str:
    """Start a group; return why it could not start, or an empty text."""
    started: list[Replica] = []
    for rank in range(rollout.group_servers):
        place = choose_place(deployment.pk, homes.homes.values())
        if place is None:
            raise AssertionError("there are places for the whole group")
        server, gpu = place
        replica = start_replica(
            deployment=deployment,
            rollout=rollout,
            server=homes.gpus[gpu].server,
            gpu=homes.gpus[gpu],
            member=GroupMember(rank, started[0].key if started else None),
        )
        homes.take(server, gpu, deployment.pk)
        if replica is None:
            for other in started:
                stop_replica(other)
            return f"Server {homes.gpus[gpu].server.name} has no free port."
        started.append(replica)
    hint_pages(deployment)
    return ""


def end_group(replica: Replica, reason: str) -> None:
    """End the rest of a replica's group, which cannot serve without it; its servers start again together."""
    if not replica.group:
        return
    others = Replica.objects.filter(group=replica.group).exclude(pk=replica.pk)
    for other in others.exclude(state=ReplicaState.GONE).select_related("server"):
        stop_replica(other, f"its group ended with {replica.server.name}: {reason}")


def is_whole(replica: Replica) -> bool:
    """Return whether all servers of a replica's group serve; True without a group."""
    if not replica.group:
        return True
    members = Replica.objects.filter(group=replica.group, state=ReplicaState.SERVING)
    return members.count() == replica.rollout.group_servers
