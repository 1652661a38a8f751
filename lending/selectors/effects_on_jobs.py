"""Effects of lending on jobs: promised jobs whose servers went back, and use of borrowed GPU time. Names no
job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Func, Q, TextField

from cluster.models import Gpu
from lending.core.history import Span, seconds_in
from lending.models import InferenceCluster
from lending.selectors.history import borrowed_time
from scheduling.choices import PromiseOutcome
from scheduling.models import Assignment, Job


@dataclass(frozen=True, slots=True)
class PromisesTouched:
    """Number of promised jobs with GPUs on a reclaimed server, and of those that missed their deadline
    afterwards."""

    #: Promised jobs with GPUs on a reclaimed server.
    touched: int
    #: Those among `touched` that missed their deadline afterwards.
    broken: int


@dataclass(frozen=True, slots=True)
class BorrowedUse:
    """Borrowed GPU time, and the part of it that held training work, in seconds."""

    borrowed_gpu_seconds: float
    used_gpu_seconds: float

    @property
    def share(self) -> float | None:
        """Used over borrowed time, 0 to 1; None if nothing was borrowed."""
        if not self.borrowed_gpu_seconds:
            return None
        return min(1.0, self.used_gpu_seconds / self.borrowed_gpu_seconds)


def promises_touched(inference_cluster: InferenceCluster) -> PromisesTouched:
    """Count over all reclaims. A job that was late before its server was reclaimed does not count as
    broken."""
    orders = inference_cluster.reclaim_orders.filter(begun_at__isnull=False)
    concerned = orders.order_by().annotate(
        job=Func(F("choice__jobs"), function="jsonb_array_elements_text", output_field=TextField())
    )
    promised = Job.objects.filter(pk__in=concerned.values("job")).exclude(promise_outcome=PromiseOutcome.NONE)
    missed = dict(promised.filter(promise_outcome=PromiseOutcome.MISSED).values_list("pk", "deadline_at"))
    broken: set[str] = set()
    if missed:
        found = orders.filter(choice__jobs__has_any_keys=list(missed)).values_list("begun_at", "choice__jobs")
        for begun_at, jobs in found:
            broken |= {job for job in jobs if begun_at and (missed.get(job) or begun_at) > begun_at}
    return PromisesTouched(touched=promised.count(), broken=len(broken))


def borrowed_use(inference_cluster: InferenceCluster, since: datetime, until: datetime) -> BorrowedUse:
    """Return how much of the GPU time borrowed between two times held training work. ``until`` is now."""
    gpus_of: dict[str, list[int]] = {}
    for gpu_id, name in Gpu.objects.filter(server__inference_cluster=inference_cluster).values_list(
        "pk", "server__name"
    ):
        gpus_of.setdefault(name, []).append(gpu_id)
    borrowed = [
        Span(str(gpu_id), span.since, span.until)
        for span in borrowed_time(inference_cluster, since, until)
        for gpu_id in gpus_of.get(span.key, ())
    ]
    held = Assignment.objects.filter(
        Q(released_at__isnull=True) | Q(released_at__gt=since),
        gpu__server__inference_cluster=inference_cluster,
        held_at__lt=until,
    ).values_list("gpu_id", "held_at", "released_at")
    used = [
        Span(str(gpu_id), max(since, held_at), min(until, released_at or until))
        for gpu_id, held_at, released_at in held
        if held_at is not None
    ]
    return BorrowedUse(seconds_in(borrowed), seconds_in(used))
