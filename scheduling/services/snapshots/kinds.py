"""The cluster's own kinds of GPU, tried in turn for a job (`scheduling.core.question.kinds`): the present
one, and the refusals of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet

from cluster.models import Cluster, Gpu
from projects.errors import Unavailable
from projects.prepared import PreparedValues
from scheduling.choices import TERMINAL_STATES, CurveState, JobEventKind, ServiceClass
from scheduling.core.question.kinds import KindOfGpu, asking_order, next_kind
from scheduling.models import Job, ScalingCurve
from scheduling.services.rows.borrowed import curve_on, curves_made_on
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.records import JobNote, record_all
from scheduling.stored_verdict import AnswerCode, pending


@dataclass(frozen=True)
class KindRefusal:
    """Why a kind of GPU does not take a job."""

    kind: str
    code: str
    reason: str

    def as_json(self) -> dict[str, str]:
        """Return the form in which a job's row stores it under the kind's name."""
        return {"reason_code": self.code, "reason": self.reason}

    @classmethod
    def from_json(cls, kind: str, kept: Mapping[str, str]) -> KindRefusal:
        """Return the refusal stored by `as_json`."""
        return cls(kind, kept["reason_code"], kept["reason"])


def refusals_of(job: Job) -> dict[str, KindRefusal]:
    """Return the refusals of kinds that were tried before the present one."""
    return {kind: KindRefusal.from_json(kind, kept) for kind, kept in job.refused_kinds.items()}


def kinds_to_ask(cluster: Cluster, service_class: str) -> tuple[str, ...]:
    """Return the present kinds in the order in which they are tried for the class. Borrowed GPUs do not
    count."""
    return _in_order(cluster.pk, Gpu.objects.own(cluster).working().by_kind(), service_class)


def _in_order(cluster_id: int, counts: Mapping[str, int], service_class: str) -> tuple[str, ...]:
    jobs: Mapping[str, int] = {}
    if service_class == ServiceClass.BEST_EFFORT and len(counts) > 1:
        unfinished = Job.objects.filter(cluster=cluster_id, curve__gpu_kind__in=counts).exclude(
            state__in=TERMINAL_STATES
        )
        jobs = dict(unfinished.order_by().values_list("curve__gpu_kind").annotate(count=Count("pk")))
    kinds = [KindOfGpu(name, count, jobs.get(name, 0)) for name, count in counts.items()]
    return asking_order(kinds, deadline=service_class != ServiceClass.BEST_EFFORT)


def first_kind(cluster: Cluster, service_class: str) -> str:
    """Return the kind that is tried first for a new job.

    Raises:
        Unavailable: no GPU is connected.
    """
    kinds = kinds_to_ask(cluster, service_class)
    if not kinds:
        raise Unavailable("No server with GPUs is connected; try again later.")
    return kinds[0]


def _working_gpus() -> QuerySet[Gpu, tuple[int, str, int]]:
    """Return the default cluster's id with each kind of its own GPUs and the number of working ones."""
    default = Cluster.objects.order_by("pk").values("pk")[:1]
    own = Gpu.objects.own(default).working().order_by().values_list("server__cluster", "kind")
    return own.annotate(count=Count("pk"))


_WORKING_GPUS = PreparedValues(_working_gpus)


def newcomers_kind(service_class: str) -> tuple[int, str] | None:
    """Return the default cluster's id and the kind of GPU tried first for a new job; None without any. One
    query, since every submission needs it."""
    rows = _WORKING_GPUS.ask()
    if not rows:
        return None
    cluster_id = rows[0][0]
    return cluster_id, _in_order(cluster_id, {kind: count for _, kind, count in rows}, service_class)[0]


def kind_left(
    order: Sequence[str],
    job: Job,
    *,
    measured: bool,
    curve_of: Callable[[Job, str], ScalingCurve | None] = curve_on,
) -> str | None:
    """Return the next kind to try after the one that has just refused, or None.

    ``measured``: only a kind on which the job's speed is known. ``curve_of``: how to find the job's curve on
    a kind.
    """
    refused = {*job.refused_kinds, *([job.curve.gpu_kind] if job.curve else [])}
    while True:
        kind = next_kind(order, refused)
        if kind is None or not measured:
            return kind
        curve = curve_of(job, kind)
        if curve is not None and curve.state == CurveState.READY:
            return kind
        refused.add(kind)


def ask_all_elsewhere(asked: Sequence[tuple[Job, str, KindRefusal]]) -> None:
    """Move undecided jobs to other kinds of GPU. Each entry has the kind to try and the last refusal.

    The caller holds the cluster's row.
    """
    by_kind: dict[str, list[Job]] = defaultdict(list)
    for job, kind, _ in asked:
        by_kind[kind].append(job)
    curves = {kind: curves_made_on(jobs, kind) for kind, jobs in by_kind.items()}
    notes = []
    for job, kind, refusal in asked:
        text = (
            f"{refusal.kind} GPUs cannot take it: {refusal.reason.rstrip('.')}. It is asked for on {kind} "
            f"GPUs now."
        )
        job.refused_kinds = {**job.refused_kinds, refusal.kind: refusal.as_json()}
        job.curve = curves[kind][job.pk]
        job.awaits_levels = False
        job.verdict = pending(AnswerCode.OTHER_KIND, text).as_json()
        detail = {"refused_by": refusal.kind, "gpu_kind": kind, "code": refusal.code}
        notes.append(JobNote(job, JobEventKind.ASKED_ELSEWHERE, text, detail))
    update_rows([job for job, _, _ in asked], ["refused_kinds", "curve", "awaits_levels", "verdict"])
    record_all(notes)


def all_reasons(job: Job, reason: str) -> str:
    """Return the last kind's refusal with those of earlier kinds; unchanged if there is one kind only."""
    kind = job.curve.gpu_kind if job.curve is not None else ""
    others = {name: said.reason for name, said in refusals_of(job).items() if name != kind}
    if not others:
        return reason
    return reasons_in_turn([*others.items(), (kind, reason)])


def reasons_in_turn(said: Sequence[tuple[str, str]]) -> str:
    """Return the texts of all kinds of GPU as one sentence."""
    return "; ".join(f"on {name} GPUs: {text.rstrip('.')}" for name, text in said)
