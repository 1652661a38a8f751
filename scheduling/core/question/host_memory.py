"""Host memory of workers: the share that a pool guarantees each worker, and the levels that fit into it.

Each GPU of a server has an equal share of the server's host memory, and a worker uses one GPU. A pool
*guarantees* the smallest share of its servers. A GPU count on which a worker needs more is not a level there.
So no placement overcommits a server, and placement has to consider only blocks of GPUs (decision 0017). A
server that joins later with a smaller share is not used while plans need more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from scheduling.core.question.snapshot import HeldOffer, JobSnapshot, ScalingCurve, ServerSnapshot, Snapshot


def memory_share(server: ServerSnapshot) -> float:
    """Bytes of host memory for one worker on this server; infinity where the server reports none."""
    return server.memory_bytes / server.gpus if server.gpus else inf


def guaranteed_share(snapshot: Snapshot) -> float:
    """Bytes of host memory that one worker gets wherever the pool places it.

    `share_of` the snapshot's servers and plans.
    """
    least = snapshot.settings.worker_memory_bytes
    return share_of(snapshot.servers, least, max(_counted_on(snapshot), default=0.0))


def share_of(servers: Sequence[ServerSnapshot], least: float, counted_on: float) -> float:
    """The smallest share of the servers that may back promises now or as standby servers, in bytes.

    Servers below the operator's ``least`` are excluded. The share is at least ``counted_on``, what existing
    plans need, as far as any server has that much.
    """
    own = [server for server in servers if (server.usable or server.standby) and not server.on_loan]
    shares = [share for share in map(memory_share, own) if share >= least]
    return max(min(shares, default=inf), min(counted_on, max(shares, default=inf)))


def servers_with_share(
    servers: Sequence[ServerSnapshot], share: float, least: float
) -> tuple[ServerSnapshot, ...]:
    """The servers; those with less than the guaranteed share or the operator's ``least`` are not usable."""
    least = max(share if share < inf else 0.0, least)
    return tuple(
        replace(server, usable=False, standby=False)
        if (server.usable or server.standby) and memory_share(server) < least
        else server
        for server in servers
    )


def within_host_memory(snapshot: Snapshot) -> Snapshot:
    """The snapshot without servers below the guaranteed share and without levels above it."""
    if not states_memory(snapshot.servers, snapshot.settings.worker_memory_bytes):
        return snapshot
    share = guaranteed_share(snapshot)
    return replace(
        snapshot,
        servers=servers_with_share(snapshot.servers, share, snapshot.settings.worker_memory_bytes),
        jobs=tuple(_fitting(job, share) for job in snapshot.jobs),
        held_offers=tuple(_fitting_offer(offer, share) for offer in snapshot.held_offers),
    )


def short_of_memory(snapshot: Snapshot) -> dict[str, float]:
    """Newcomers that fit on no GPU count: by id, the least host memory of one worker, in bytes."""
    asks = states_memory(snapshot.servers, snapshot.settings.worker_memory_bytes)
    share = guaranteed_share(snapshot) if asks else inf
    found = {job.id: least_beyond(job.curve, share) for job in snapshot.jobs if job.newcomer}
    return {job_id: needed for job_id, needed in found.items() if needed}


def states_memory(servers: Sequence[ServerSnapshot], least: float) -> bool:
    """Whether a server states its host memory, or the operator the ``least`` for one worker."""
    return least > 0 or any(server.memory_bytes < inf for server in servers)


def least_beyond(curve: ScalingCurve, share: float) -> float:
    """The least bytes that one worker needs on any level, where no level needs at most ``share``; else 0."""
    if curve.memory_bytes is None or not curve.levels.size:
        return 0.0
    least = float(curve.memory_bytes.min())
    return least if least > share else 0.0


def _counted_on(snapshot: Snapshot) -> Iterator[float]:
    """Bytes for one worker that existing plans need: the most over the levels of each plan, and at least one
    level of every admitted job."""
    for job in snapshot.jobs:
        needs = job.curve.memory_bytes
        if needs is None or not needs.size:
            continue
        plan = job.stored_plan
        held = [] if plan is None else plan.gpus.tolist()
        yield counted_on_by(job.curve, [*held, job.gpus_now], newcomer=job.newcomer)
    for offer in snapshot.held_offers:
        if offer.job is not None and offer.job.curve.memory_bytes is not None:
            counted = np.isin(offer.job.curve.levels, offer.plan.gpus)
            yield float(offer.job.curve.memory_bytes[counted].max(initial=0.0))


def counted_on_by(curve: ScalingCurve, held: Sequence[int], *, newcomer: bool) -> float:
    """Bytes for one worker that one job counts on: the most over the levels that it holds now or by its plan
    (``held``), and its least where it is admitted."""
    needs = curve.memory_bytes
    if needs is None or not needs.size:
        return 0.0
    most = float(needs[np.isin(curve.levels, held)].max(initial=0.0))
    return most if newcomer else max(most, float(needs.min()))


def _fitting(job: JobSnapshot, share: float) -> JobSnapshot:
    """The job without levels on which a worker needs more than ``share`` bytes."""
    curve = levels_within(job.curve, share)
    lent, measured = (
        None if of is None else levels_within(of, share) for of in (job.lent_curve, job.measured)
    )
    if curve is job.curve and lent is job.lent_curve and measured is job.measured:
        return job  # nearly every job: copying thousands of them takes long
    return replace(job, curve=curve, lent_curve=lent, measured=measured)


def _fitting_offer(offer: HeldOffer, share: float) -> HeldOffer:
    """The offer with its job's levels limited to ``share`` bytes for one worker."""
    if offer.job is None:
        return offer
    return replace(offer, job=_fitting(offer.job, share))


def levels_within(curve: ScalingCurve, share: float) -> ScalingCurve:
    """The levels of a curve on which a worker needs at most ``share`` bytes."""
    if curve.memory_bytes is None:
        return curve
    fits = curve.memory_bytes <= share
    if fits.all():
        return curve
    return ScalingCurve(
        curve.levels[fits], curve.throughput[fits], curve.pause_seconds[fits], curve.memory_bytes[fits]
    )
