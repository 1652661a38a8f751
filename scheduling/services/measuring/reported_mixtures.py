"""Sizes of models with mixture-of-experts layers. A measurement ends on workers that cannot hold the
model, and a job that fits on no number of workers is declined."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from django.db.models import QuerySet

from cluster.models import Cluster
from projects.prepared import PreparedValues
from punctual.protocol.mixtures import Mixture
from scheduling.choices import (
    UNDECIDED_STATES,
    CurveState,
    GenerationState,
    JobEventKind,
    Purpose,
    RetireReason,
)
from scheduling.core.question.quantities import gpus_text
from scheduling.models import Generation, Job
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.services.generations.generations import retire
from scheduling.services.measuring.unfit_levels import measuring_ended
from scheduling.services.memory.expert_levels import unfit_workers, why_no_level
from scheduling.services.memory.tier_options import tier_options
from scheduling.services.rows.records import planning_fact_changed, record
from scheduling.services.rows.wakeups import wake
from scheduling.services.snapshots.kinds import (
    KindRefusal,
    all_reasons,
    ask_all_elsewhere,
    kind_left,
    kinds_to_ask,
)
from scheduling.services.verdicts.declining import decline_all
from scheduling.stored_verdict import AnswerCode


def note_mixture(job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster) -> None:
    """Store the sizes of a measured model. If it cannot fit on some of the levels, end the measurement;
    the next one covers the others. The caller holds the cluster's row."""
    curve = generation.measured_curve()
    if (
        curve is None
        or generation.purpose != Purpose.PROFILING
        or generation.state == GenerationState.RETIRED
    ):
        return
    curve.mixture = {name: event[name] for name in Mixture.model_fields}
    curve.save(update_fields=["mixture"])
    unfit = unfit_workers(cluster, curve)
    levels = [int(level) for level in (generation.profile or {}).get("levels", [])]
    short = [level for level in levels if level <= unfit]
    if not short:
        return
    sentence = f"The model does not fit on {gpus_text(max(short))}: no level."
    retire(generation, RetireReason.MEASURED, sentence)
    record(job, JobEventKind.PROFILED, sentence, gpus=max(short))
    measuring_ended(curve)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"the model of {job.pk} does not fit on some levels")


def _reported(cluster_id: int) -> QuerySet[Job]:
    """Return undecided jobs with known sizes and unknown speed."""
    undecided = Job.objects.filter(cluster=cluster_id, state__in=UNDECIDED_STATES)
    return undecided.filter(curve__mixture__isnull=False).exclude(curve__state=CurveState.READY)


_REPORTED = PreparedValues(lambda cluster_id: _reported(cluster_id).order_by().values_list("pk")[:1])


def decline_unfit(cluster: Cluster, now: datetime, most: int) -> int:
    """Move up to ``most`` undecided jobs whose model fits on no number of workers to another kind of GPU,
    or decline them. Return their number. The caller holds the cluster's row."""
    if not _REPORTED.any(cluster.pk):  # as in most passes
        return 0
    jobs = _reported(cluster.pk).select_related("curve", "function_version").defer(UNREAD_OF_VERSION)
    elsewhere: list[tuple[Job, str, KindRefusal]] = []
    refused: list[tuple[Job, str]] = []
    order = cache(lambda service_class: kinds_to_ask(cluster, service_class))
    for job in jobs.order_by("submitted_at", "id")[:most]:
        assert job.curve is not None
        reason = why_no_level(cluster, job.function_version, job.curve, job.global_batch_size)
        if reason is None:
            continue
        kind = kind_left(order(job.service_class), job, measured=False)
        if kind is None:
            refused.append((job, all_reasons(job, reason)))
        else:
            refusal = KindRefusal(job.curve.gpu_kind, AnswerCode.MODEL_DOES_NOT_FIT, reason)
            elsewhere.append((job, kind, refusal))
    if elsewhere:
        ask_all_elsewhere(elsewhere)
    if refused:
        tiers = {
            job.pk: tier_options(cluster, job.curve, (), job.global_batch_size)
            for job, _ in refused
            if job.curve is not None
        }
        decline_all(refused, AnswerCode.MODEL_DOES_NOT_FIT, now, tiers)
    return len(elsewhere) + len(refused)
