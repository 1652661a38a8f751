"""Host memory beside GPUs: what a worker is sure of wherever it is placed, and the levels that fit into it.

Each GPU of a server owns an equal share of the server's host memory, and a worker has one GPU. A pool
*guarantees* its smallest share: a number of GPUs on which a worker takes more is no level there. So no
placement can overcommit a server, whoever is beside whom, and blocks stay all that placing has to think of
(decision 0038). A server that comes later with less is not used while plans count on more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from scheduling.core.question.snapshot import HeldOffer, JobSnapshot, ScalingCurve, ServerSnapshot, Snapshot


def memory_share(server: ServerSnapshot) -> float:
    """Bytes of host memory that one worker may take there; infinity where nobody says."""
    return server.memory_bytes / server.gpus if server.gpus else inf


def guaranteed_share(snapshot: Snapshot) -> float:
    """Bytes of host memory that one worker may take wherever the pool places it.

    The smallest share of the usable servers that may back promises, those with less than the operator's least
    left out; and never less than plans that were made count on, as far as any server has that.
    """
    least = snapshot.settings.worker_memory_bytes
    own = [server for server in snapshot.servers if server.usable and not server.on_loan]
    shares = [share for share in map(memory_share, own) if share >= least]
    counted_on = max(_counted_on(snapshot), default=0.0)
    return max(min(shares, default=inf), min(counted_on, max(shares, default=inf)))


def within_host_memory(snapshot: Snapshot) -> Snapshot:
    """The snapshot without servers that guarantee too little, and without levels that take too much."""
    if not _asks(snapshot):
        return snapshot
    share = guaranteed_share(snapshot)
    least = max(share if share < inf else 0.0, snapshot.settings.worker_memory_bytes)
    return replace(
        snapshot,
        servers=tuple(
            replace(server, usable=False) if server.usable and memory_share(server) < least else server
            for server in snapshot.servers
        ),
        jobs=tuple(_fitting(job, share) for job in snapshot.jobs),
        held_offers=tuple(_fitting_offer(offer, share) for offer in snapshot.held_offers),
    )


def short_of_memory(snapshot: Snapshot) -> dict[str, float]:
    """Newcomers that fit on no number of GPUs: the least that a worker of each takes, in bytes."""
    share = guaranteed_share(snapshot) if _asks(snapshot) else inf
    return {
        job.id: float(job.curve.memory_bytes.min())
        for job in snapshot.jobs
        if job.newcomer and job.curve.memory_bytes is not None and job.curve.levels.size
        and job.curve.memory_bytes.min() > share
    }  # fmt: skip


def _asks(snapshot: Snapshot) -> bool:
    """Whether host memory is known of anything here."""
    return snapshot.settings.worker_memory_bytes > 0 or any(
        server.memory_bytes < inf for server in snapshot.servers
    )


def _counted_on(snapshot: Snapshot) -> Iterator[float]:
    """What plans that were made count on: each with the largest worker of the levels it holds, and one level
    at least for everybody who was let in."""
    for job in snapshot.jobs:
        needs = job.curve.memory_bytes
        if needs is None or not needs.size:
            continue
        plan = job.stored_plan
        held = np.zeros(0, dtype=np.int64) if plan is None else plan.gpus
        counted = np.isin(job.curve.levels, [*held.tolist(), job.gpus_now])
        yield float(needs[counted].max(initial=0.0))
        if not job.newcomer:
            yield float(needs.min())
    for offer in snapshot.held_offers:
        if offer.job is not None and offer.job.curve.memory_bytes is not None:
            counted = np.isin(offer.job.curve.levels, offer.plan.gpus)
            yield float(offer.job.curve.memory_bytes[counted].max(initial=0.0))


def _fitting(job: JobSnapshot, share: float) -> JobSnapshot:
    curve = levels_within(job.curve, share)
    lent, measured = (
        None if of is None else levels_within(of, share) for of in (job.lent_curve, job.measured)
    )
    if curve is job.curve and lent is job.lent_curve and measured is job.measured:
        return job  # nearly everybody; a copy of each of thousands takes a while
    return replace(job, curve=curve, lent_curve=lent, measured=measured)


def _fitting_offer(offer: HeldOffer, share: float) -> HeldOffer:
    if offer.job is None:
        return offer
    return replace(offer, job=_fitting(offer.job, share))


def levels_within(curve: ScalingCurve, share: float) -> ScalingCurve:
    """The levels of a curve on which a worker takes at most so many bytes."""
    if curve.memory_bytes is None:
        return curve
    fits = curve.memory_bytes <= share
    if fits.all():
        return curve
    return ScalingCurve(
        curve.levels[fits], curve.throughput[fits], curve.pause_seconds[fits], curve.memory_bytes[fits]
    )
