"""Communication of a job's gradients: its plan, the plan's prediction and rivals, and measurements."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from communication.library.codec_names import FAITHFUL
from scheduling.choices import GenerationState, Purpose
from scheduling.core.runtime_plans.expert_families import gradients_of
from scheduling.core.runtime_plans.plan import PlanFamily
from scheduling.curve_keys import function_key_on, keys_without_plan
from scheduling.models import CurveLevel, Generation, GradientPlan, GradientProfile, Job
from scheduling.selectors.network.link_profiles import known_links


def communication_of(job: Job) -> dict[str, Any]:
    """Return what a job's page and `GET /jobs/{id}/communication/` show.

    Predictions only choose a plan; promises depend on the measured levels of the family's curve.
    """
    family = job.curve.plan_family if job.curve else PlanFamily.DENSE.value
    kind = job.curve.gpu_kind if job.curve else ""
    key = function_key_on(job, kind)
    generation = _shown_generation(job)
    plans = GradientPlan.objects.filter(profile__key=key, family=gradients_of(family)).select_related(
        "profile"
    )
    rows = [_level(plan) for plan in plans.order_by("profile__gpus")]
    followed = None
    if generation is not None and generation.communication:
        # A newer plan in the same row says nothing of this generation.
        told = generation.communication
        followed = plans.filter(pk=told["plan"], made_at=told["made_at"]).first()
    newest = GradientProfile.objects.filter(key=key).order_by("-confirmed_at").first()
    links = known_links(kind) if kind else None
    return {
        "lossy": job.lossy,
        "codecs": _codecs(job),
        "family": family,
        "generation": None if generation is None else generation.number,
        "gpus": 0 if generation is None else generation.world_size,
        "chosen": _of_generation(generation, "chosen"),
        "beaten": _of_generation(generation, "beaten") or [],
        "speedup": _of_generation(generation, "speedup"),
        "made_at": _of_generation(generation, "made_at"),
        "given_up": followed.given_up if followed is not None else "",
        "measured_seconds": _measured_seconds(generation, followed),
        "seconds_without_plan": _seconds_without(key, 0 if generation is None else generation.world_size),
        "window": (generation.communication_window or None) if generation is not None else None,
        "predicted_spans": [] if followed is None else list(followed.spans),
        "profile": None
        if newest is None
        else {"measured_at": newest.measured_at, "confirmed_at": newest.confirmed_at, "gpus": newest.gpus},
        "links": None
        if links is None
        else {
            "told_by": links.source,
            "emulated": links.emulated,
            "since": links.since,
            "between": asdict(links.profile.between),
            "within": asdict(links.profile.within),
        },
        "levels": rows,
    }


def _codecs(job: Job) -> list[str]:
    if job.lossy != "allowed":
        return []
    return list(job.codecs) or list(FAITHFUL)


def _shown_generation(job: Job) -> Generation | None:
    """Return the live training generation, else the newest."""
    training = job.generations.filter(purpose=Purpose.TRAINING)
    live = training.filter(state=GenerationState.LIVE).first()
    return live or training.order_by("-number").first()


def _of_generation(generation: Generation | None, name: str) -> Any:
    return None if generation is None else generation.communication.get(name)


def _measured_seconds(generation: Generation | None, plan: GradientPlan | None) -> float | None:
    """Return the seconds of an iteration from the last reported window, else from running jobs."""
    if generation is not None and generation.communication_window:
        return float(median(generation.communication_window["iteration_seconds"]))
    return None if plan is None else plan.measured_seconds


def _seconds_without(key: str, gpus: int) -> float | None:
    """Return the seconds of an iteration without a plan, measured on as many GPUs; None if not measured."""
    level = CurveLevel.objects.filter(curve__key__in=keys_without_plan(key), gpus=gpus).first()
    return None if level is None else 1.0 / level.iterations_per_second


def _level(plan: GradientPlan) -> dict[str, Any]:
    return {
        "gpus": plan.profile.gpus,
        "servers": plan.servers,
        "gpus_per_server": plan.gpus_per_server,
        "planner": plan.planner,
        "codec": plan.codec,
        "predicted_seconds": plan.chosen["predicted"]["iteration_seconds"],
        "measured_seconds": plan.measured_seconds,
        "speedup": plan.speedup,
        "given_up": plan.given_up,
    }
