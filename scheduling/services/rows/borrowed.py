"""Servers that training borrows, and jobs' speed on their kind of GPU (Lyra section 3.2; design section 4).

Borrowed servers join the pool of the cluster's most frequent own kind of GPU. All borrowed servers in use are
of one kind: if several inference clusters lend different kinds, the kind with most GPUs on loan is used and
the others wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.models import Cluster, Gpu
from projects.prepared import PreparedRows
from scheduling.choices import CurveState
from scheduling.core.question.kinds import main_kind
from scheduling.core.runtime_plans.choosing import choose_plan_family
from scheduling.curve_keys import function_key_on, key_of_family
from scheduling.models import Job, ScalingCurve


@dataclass(frozen=True)
class Borrowed:
    """Servers on loan now, including those on their way back. ``gpus``: by server, in a fixed order."""

    kind: str
    gpus: tuple[tuple[Gpu, ...], ...]

    @property
    def total(self) -> int:
        """Number of GPUs of these servers."""
        return sum(len(server) for server in self.gpus)


def borrowing_kind(cluster: Cluster) -> str | None:
    """Return the most frequent kind of the cluster's own GPUs, whose pool borrows; None without any."""
    return main_kind(Gpu.objects.known().own(cluster).by_kind())


_ON_LOAN = PreparedRows(
    lambda cluster_id: Gpu.objects.on_loan(cluster_id).select_related("server").order_by("server_id", "index")
)


def borrowed_by(cluster: Cluster, kind: str) -> Borrowed | None:
    """Return the servers that the pool of ``kind`` borrows, or None."""
    by_kind: dict[str, dict[int, list[Gpu]]] = defaultdict(lambda: defaultdict(list))
    for gpu in _ON_LOAN.ask(cluster.pk):
        by_kind[gpu.kind][gpu.server_id].append(gpu)
    if not by_kind or kind != borrowing_kind(cluster):
        return None
    chosen = main_kind({name: sum(map(len, servers.values())) for name, servers in by_kind.items()})
    assert chosen is not None
    return Borrowed(chosen, tuple(tuple(gpus) for gpus in by_kind[chosen].values()))


def key_on(job: Job, kind: str) -> str:
    """Return the key of the job's curve on a kind of GPU, of the same plan family as its own curve."""
    family = choose_plan_family() if job.curve is None else job.curve.plan_family
    return key_of_family(function_key_on(job, kind), family)


def curve_on(job: Job, kind: str) -> ScalingCurve | None:
    """Return the job's curve on a kind of GPU, measured or not; None if there is none."""
    if job.curve is None or job.curve.gpu_kind == kind:
        return job.curve
    return ScalingCurve.objects.filter(key=key_on(job, kind)).first()


def curves_on(jobs: Sequence[Job], kind: str) -> dict[str, ScalingCurve]:
    """Return `curve_on` of many jobs in one query, by job id."""
    own = {job.pk: job.curve for job in jobs if job.curve is not None and job.curve.gpu_kind == kind}
    keys = {job.pk: key_on(job, kind) for job in jobs if job.curve is not None and job.pk not in own}
    if not keys:
        return own
    by_key = {curve.key: curve for curve in ScalingCurve.objects.filter(key__in=set(keys.values()))}
    return own | {job_id: by_key[key] for job_id, key in keys.items() if key in by_key}


def curve_made_on(job: Job, kind: str) -> ScalingCurve:
    """Return the job's curve on a kind of GPU; create it if needed."""
    assert job.curve is not None
    if job.curve.gpu_kind == kind:
        return job.curve
    return ScalingCurve.objects.get_or_create(
        key=key_on(job, kind),
        defaults={
            "function_digest": job.curve.function_digest,
            "data_digest": job.curve.data_digest,
            "gpu_kind": kind,
            "plan_family": job.curve.plan_family,
            "hyperparameters": job.curve.hyperparameters,
        },
    )[0]


def curves_made_on(jobs: Sequence[Job], kind: str) -> dict[str, ScalingCurve]:
    """Return `curve_made_on` of many jobs in a few queries, by job id."""
    found = curves_on(jobs, kind)
    missing = {job.pk: key_on(job, kind) for job in jobs if job.pk not in found}
    if not missing:
        return found
    made: dict[str, ScalingCurve] = {}
    for job in jobs:
        if job.pk in missing and missing[job.pk] not in made:
            assert job.curve is not None
            made[missing[job.pk]] = ScalingCurve(
                key=missing[job.pk],
                function_digest=job.curve.function_digest,
                data_digest=job.curve.data_digest,
                gpu_kind=kind,
                plan_family=job.curve.plan_family,
                hyperparameters=job.curve.hyperparameters,
            )
    # A concurrent submission may create the same key.
    ScalingCurve.objects.bulk_create(made.values(), ignore_conflicts=True)
    return curves_on(jobs, kind)


def measured_curves_on(jobs: Sequence[Job], kind: str) -> dict[str, ScalingCurve]:
    """Return the curves of jobs that were measured on a kind of GPU, by job id."""
    own = {job.pk: job.curve for job in jobs if job.curve is not None and job.curve.gpu_kind == kind}
    keys = {job.pk: key_on(job, kind) for job in jobs if job.pk not in own}
    known = ScalingCurve.objects.filter(key__in=keys.values(), state=CurveState.READY).prefetch_related(
        "levels"
    )
    by_key = {curve.key: curve for curve in known}
    return own | {job_id: by_key[key] for job_id, key in keys.items() if key in by_key}
