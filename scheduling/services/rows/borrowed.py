"""Servers that training borrows, and how fast jobs are on their kind of GPU (Lyra section 3.2; design section
4).

Borrowed servers join the pool of the cluster's own kind of GPU: the one that has most. They are of one kind
at a time; where several inference clusters lend different kinds, the kind with most GPUs on loan is used and
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
    """What is on loan now, servers on their way back included. ``gpus``: by server, in a fixed order."""

    kind: str
    gpus: tuple[tuple[Gpu, ...], ...]

    @property
    def total(self) -> int:
        """GPUs of all these servers."""
        return sum(len(server) for server in self.gpus)


def borrowing_kind(cluster: Cluster) -> str | None:
    """The kind of most of the cluster's own GPUs: its pool is the one that borrows. None without any."""
    return main_kind(Gpu.objects.known().own(cluster).by_kind())


_ON_LOAN = PreparedRows(
    lambda cluster_id: Gpu.objects.on_loan(cluster_id).select_related("server").order_by("server_id", "index")
)


def borrowed_by(cluster: Cluster, kind: str) -> Borrowed | None:
    """What the pool of ``kind`` borrows; None where that is nothing."""
    by_kind: dict[str, dict[int, list[Gpu]]] = defaultdict(lambda: defaultdict(list))
    for gpu in _ON_LOAN.ask(cluster.pk):
        by_kind[gpu.kind][gpu.server_id].append(gpu)
    if not by_kind or kind != borrowing_kind(cluster):
        return None
    chosen = main_kind({name: sum(map(len, servers.values())) for name, servers in by_kind.items()})
    assert chosen is not None
    return Borrowed(chosen, tuple(tuple(gpus) for gpus in by_kind[chosen].values()))


def key_on(job: Job, kind: str) -> str:
    """The key of the job's curve on a kind of GPU: of the same family of runtime plans as its own."""
    family = choose_plan_family() if job.curve is None else job.curve.plan_family
    return key_of_family(function_key_on(job, kind), family)


def curve_on(job: Job, kind: str) -> ScalingCurve | None:
    """The job's curve on a kind of GPU, measured or not; None where nobody ever asked for it."""
    if job.curve is None or job.curve.gpu_kind == kind:
        return job.curve
    return ScalingCurve.objects.filter(key=key_on(job, kind)).first()


def curves_on(jobs: Sequence[Job], kind: str) -> dict[str, ScalingCurve]:
    """`curve_on` for many jobs in one query, by job id."""
    own = {job.pk: job.curve for job in jobs if job.curve is not None and job.curve.gpu_kind == kind}
    keys = {job.pk: key_on(job, kind) for job in jobs if job.curve is not None and job.pk not in own}
    if not keys:
        return own
    by_key = {curve.key: curve for curve in ScalingCurve.objects.filter(key__in=set(keys.values()))}
    return own | {job_id: by_key[key] for job_id, key in keys.items() if key in by_key}


def curve_made_on(job: Job, kind: str) -> ScalingCurve:
    """The job's curve on a kind of GPU, made where there is none yet."""
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
    """`curve_made_on` for many jobs in a few queries, by job id."""
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
    # Somebody may just submit another job with the same key.
    ScalingCurve.objects.bulk_create(made.values(), ignore_conflicts=True)
    return curves_on(jobs, kind)


def measured_curves_on(jobs: Sequence[Job], kind: str) -> dict[str, ScalingCurve]:
    """Curves on a kind of GPU by job id, of those jobs that were measured there."""
    own = {job.pk: job.curve for job in jobs if job.curve is not None and job.curve.gpu_kind == kind}
    keys = {job.pk: key_on(job, kind) for job in jobs if job.pk not in own}
    known = ScalingCurve.objects.filter(key__in=keys.values(), state=CurveState.READY).prefetch_related(
        "levels"
    )
    by_key = {curve.key: curve for curve in known}
    return own | {job_id: by_key[key] for job_id, key in keys.items() if key in by_key}
