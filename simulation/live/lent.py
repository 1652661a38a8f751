"""The live inference cluster as input of a study: its kind of GPU, its measured usage, and its servers on
loan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.db.models import Count

from cluster.models import Cluster, Gpu
from lending.models import InferenceCluster, UsageSample
from lending.services.usage import recent_usage
from scheduling.choices import CurveState
from scheduling.core.question.kinds import main_kind
from scheduling.core.question.quantities import duration_text
from scheduling.models import Job, ScalingCurve
from scheduling.services.rows.borrowed import measured_curves_on
from scheduling.services.snapshots.jobs_of_pool import core_curve
from scheduling.services.snapshots.snapshots import Pool
from simulation.live.state import LiveInference

DAY_SECONDS = 86_400.0
#: A week holds every day of the week; a demonstration's samples, every few seconds, need not all be kept.
LONGEST_SECONDS, MOST_SAMPLES = 7 * DAY_SECONDS, 10_000
#: Fewer than an hour of five-minute samples allow no forecast.
FEWEST_SAMPLES = 12
#: Larger than any cluster: levels are cut later to the size of the simulated cluster.
ANY_SIZE = 2**20

#: GPU address of the live pool -> server as `LiveState` numbers it, and GPU on it.
Places = dict[int, tuple[int, int]]


@dataclass(frozen=True)
class LiveServing:
    """The live inference cluster, or defaults if there is none, with a sentence on each choice."""

    inference: LiveInference
    row: InferenceCluster | None
    notes: tuple[str, ...]


def serving_now(cluster: Cluster, now: datetime, *, gpu_kind: str = "") -> LiveServing:
    """Return the cluster's largest inference cluster. ``gpu_kind``: used instead of its own kind."""
    row = largest_inference_cluster(cluster)
    if row is None:
        return LiveServing(LiveInference(gpu_kind), None, ("There is no live inference cluster.",))
    usage, note = _measured(row, now)
    inference = LiveInference(
        gpu_kind=gpu_kind or kind_of(row),
        name=row.name,
        usage=usage,
        period_seconds=row.period_seconds,
        forecast_margin=row.forecast_margin_fraction,
        hysteresis=row.hysteresis_fraction,
        hold_seconds=row.minimum_hold_seconds,
    )
    return LiveServing(inference, row, (note,))


def largest_inference_cluster(cluster: Cluster) -> InferenceCluster | None:
    """Return the inference cluster with most servers among those that lend to the cluster."""
    found = InferenceCluster.objects.filter(cluster=cluster).annotate(count=Count("servers"))
    return found.order_by("-count", "id").first()


def kind_of(inference_cluster: InferenceCluster) -> str:
    """Return the kind of most of its GPUs; empty if it has none."""
    theirs = Gpu.objects.known().filter(server__inference_cluster=inference_cluster)
    return main_kind(theirs.by_kind()) or ""


def _measured(row: InferenceCluster, now: datetime) -> tuple[tuple[float, ...], str]:
    """Return usage from now on: that of its last whole days, at most a week, or all of it if there is less
    than a day."""
    most = min(MOST_SAMPLES, round(LONGEST_SECONDS / row.period_seconds))
    samples, ended_at = recent_usage(row, most) or ([], now)
    usage = np.array(samples, dtype=np.float64)
    if np.isfinite(usage).sum() < FEWEST_SAMPLES:
        return (), f"The live inference cluster {row.name} has too few samples of its usage to go by."
    known = np.flatnonzero(np.isfinite(usage))
    whole = np.interp(np.arange(usage.size), known, usage[known])
    a_day = round(DAY_SECONDS / row.period_seconds)
    if whole.size >= a_day:
        whole = whole[-(whole.size // a_day) * a_day :]
        # Keep the hours of the day: the series begins with the samples of this time of the day.
        whole = np.roll(whole, -round((now - ended_at).total_seconds() / row.period_seconds))
    sources = UsageSample.objects.filter(inference_cluster=row).order_by("-period_ends_at")
    named = {
        source or "of unknown origin" for source in sources.values_list("source", flat=True)[: whole.size]
    }
    shown = duration_text(whole.size * row.period_seconds)
    return tuple(whole.round(6).tolist()), (
        f"Usage of the live inference cluster {row.name} in its last {shown}, over and over (samples: "
        f"{', '.join(sorted(named))})."
    )


def places_of(pool: Pool, gpus_per_server: int, lent_kind: str) -> tuple[Places, int]:
    """Map GPUs of the live pool to servers as `LiveState` numbers them; also return how many servers on loan
    simulated ones can represent.

    Own servers count if they are usable and of the most common size; servers on loan are represented if they
    are usable, of that size and of the study's inference kind.
    """
    places: Places = {}
    own = sum(server.usable and not server.on_loan for server in pool.snapshot.servers)
    lent: list[range] = []
    others: list[range] = []
    numbered = address = 0
    for server in pool.snapshot.servers:
        addresses = range(address, address + server.gpus)
        address += server.gpus
        fits = server.usable and server.gpus == gpus_per_server
        if server.on_loan:
            same = pool.gpus[addresses[0]].kind == lent_kind
            (lent if fits and same else others).append(addresses)
        elif fits:
            places |= {gpu: (numbered, place) for place, gpu in enumerate(addresses)}
            numbered += 1
    for number, addresses in enumerate(lent + others):
        places |= {gpu: (own + number, place) for place, gpu in enumerate(addresses)}
    return places, len(lent)


def lent_levels(jobs: Sequence[Job], kind: str) -> dict[str, tuple[tuple[int, float, float], ...]]:
    """Return the levels measured on a kind of GPU, by job id, of the jobs that were measured there."""
    batch = {job.pk: job.global_batch_size for job in jobs}
    found = {}
    for job_id, measured in measured_curves_on(jobs, kind).items():
        curve = core_curve(list(measured.levels.all()), batch=batch[job_id], total=ANY_SIZE, margin=0.0)
        if curve is not None:
            found[job_id] = tuple(
                zip(
                    curve.levels.tolist(),
                    curve.throughput.tolist(),
                    curve.pause_seconds.tolist(),
                    strict=True,
                )
            )
    return found


def kinds_measured() -> list[str]:
    """Return the GPU kinds with any measurement."""
    ready = ScalingCurve.objects.filter(state=CurveState.READY)
    return sorted(ready.order_by().values_list("gpu_kind", flat=True).distinct())
