"""Host memory of workers: what a server guarantees each of its GPUs, and what is reserved for a level.

The rule is the core's (`scheduling/core/question/host_memory.py`, decision 0017); this module supplies the
figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import ceil, inf

from django.db.models import Count, Max

from cluster.models import Cluster, Gpu, Server
from projects.prepared import PreparedValues
from punctual.protocol.limits import LARGEST_COUNT
from scheduling.choices import GenerationState, JobEventKind, JobState, Purpose
from scheduling.core.question.quantities import gpus_text, memory_text
from scheduling.models import CurveLevel, Generation, Job, JobMetric
from scheduling.services.rows.records import record

#: Reserved beyond the observed peak: runs last longer than measurements.
MARGIN = 0.1


def memory_of_worker(server: Server, gpus: int) -> float:
    """Return the bytes of host memory for the worker of one of a server's ``gpus``: an equal share of what
    its in-memory store leaves, at most the agent's limit for a worker; infinity if unknown.

    The store's whole limit is set aside: copies of states come and go, and workers stay.
    """
    known = [float(server.worker_memory_bytes)] if server.worker_memory_bytes > 0 else []
    if gpus and server.memory_bytes > 0:
        known.append(max(0, server.memory_bytes - server.memory_store_bytes) / gpus)
    return min(known, default=inf)


def gpus_by_server(server_ids: list[int]) -> dict[int, int]:
    """Return the number of GPUs of each server, of all kinds."""
    return dict(_COUNTED.ask(server_ids))


_COUNTED = PreparedValues(
    lambda server_ids: (
        Gpu.objects.filter(server__pk__any_of=server_ids)
        .order_by()
        .values_list("server")
        .annotate(count=Count("pk"))
    )
)


def smallest_share(cluster: Cluster, kind: str) -> float:
    """Return the host memory that every owned server with GPUs of that kind guarantees a worker; infinity
    if unknown."""
    own = Server.objects.filter(cluster=cluster, inference_cluster__isnull=True, gpus__kind=kind).distinct()
    servers = list(own.known())
    gpus = gpus_by_server([server.pk for server in servers])
    shares = (memory_of_worker(server, gpus[server.pk]) for server in servers)
    return min((share for share in shares if share >= cluster.worker_memory_bytes), default=inf)


def memory_of_all(generation: Generation) -> int:
    """Return the memory of all hosts and GPUs of a generation's servers, an upper bound for what its
    workers report. If a host's memory is unknown, return the largest count of the protocol."""
    gpus = Gpu.objects.filter(assignments__generation=generation)
    hosts = dict(gpus.values_list("server_id", "server__memory_bytes"))
    if not all(hosts.values()):
        return LARGEST_COUNT
    return sum(hosts.values()) + sum(gpus.values_list("memory_bytes", flat=True))


def to_reserve(peak_bytes: int) -> int:
    """Return the bytes to reserve for a worker with this peak; 0 if unmeasured."""
    return ceil(peak_bytes * (1.0 + MARGIN))


def raised(level: CurveLevel, peak_bytes: int, share: float) -> int:
    """Return the bytes to reserve for each worker of a known level after a peak of ``peak_bytes``.

    Never less than before, nor more than the guaranteed share because of this peak: a growing job must not
    take servers from others, and beyond its share it is ended.
    """
    return max(level.reserved_memory_bytes, int(min(float(to_reserve(peak_bytes)), share)))


@dataclass(frozen=True)
class MemoryGrowth:
    """A level on which a running job takes more host memory than was seen before."""

    level: CurveLevel
    job: Job
    peak_bytes: int
    reserved_bytes: int


def growth_of_running_jobs(cluster: Cluster, since: datetime) -> list[MemoryGrowth]:
    """Return levels whose running jobs recently reported more host memory than was seen before."""
    live = Generation.objects.filter(
        job__cluster=cluster,
        job__state=JobState.RUNNING,
        state=GenerationState.LIVE,
        purpose=Purpose.TRAINING,
        curve__isnull=False,
    ).select_related("job", "curve")
    running = {(generation.job_id, generation.number): generation for generation in live}
    told = (
        JobMetric.objects.filter(
            job__in={job_id for job_id, _ in running}, measured_at__gt=since, host_memory_bytes__gt=0
        )
        .order_by()
        .values_list("job_id", "generation")
        .annotate(peak=Max("host_memory_bytes"))
    )
    levels = {
        (level.curve_id, level.gpus): level
        for level in CurveLevel.objects.filter(curve__in={one.curve_id for one in running.values()})
    }
    shares: dict[str, float] = {}
    grown: dict[int, MemoryGrowth] = {}
    for job_id, number, peak in told:
        generation = running.get((job_id, number))
        if generation is None or generation.curve is None:
            continue
        level = levels.get((generation.curve.pk, generation.world_size))
        known = grown[level.pk].peak_bytes if level is not None and level.pk in grown else 0
        if level is None or peak <= max(level.host_memory_bytes, known):
            continue
        kind = generation.curve.gpu_kind
        if kind not in shares:
            shares[kind] = smallest_share(cluster, kind)
        grown[level.pk] = MemoryGrowth(level, generation.job, peak, raised(level, peak, shares[kind]))
    return list(grown.values())


def note_growth(grown: list[MemoryGrowth]) -> bool:
    """Store the growth, and record it in jobs for which more is reserved. Return whether there are any."""
    any_more = False
    for one in grown:
        more = one.reserved_bytes > one.level.reserved_memory_bytes
        known = one.level.reserved_memory_bytes > 0
        CurveLevel.objects.filter(pk=one.level.pk).update(
            host_memory_bytes=one.peak_bytes, reserved_memory_bytes=one.reserved_bytes
        )
        any_more |= more
        if more and known:
            record(
                one.job,
                JobEventKind.MEMORY_RAISED,
                f"A worker has taken {memory_text(one.peak_bytes)} of host memory on "
                f"{gpus_text(one.level.gpus)}, more than was measured; {memory_text(one.reserved_bytes)} is "
                "reserved for each from now on.",
            )
    return any_more
