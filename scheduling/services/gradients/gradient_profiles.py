"""Measurements of gradients, stored for each function, hyperparameters and number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from communication.zen.drift import with_densities
from punctual.protocol.communication import CommunicationProfile, CommunicationWindow
from scheduling.choices import GenerationState, Purpose
from scheduling.curve_keys import function_key_on
from scheduling.link_drift import MOST_DRIFT
from scheduling.models import Generation, GradientPlan, GradientProfile, Job
from scheduling.services.rows.report_refusals import RefusedEvent

#: Limit of requested families besides the common ones; each costs planning.
MOST_FAMILIES = 8
#: Predicted speedup over no plan, below which measuring a curve for a family costs more than it gains.
WORTH_MEASURING = 1.05


def note_profile(job: Job, generation: Generation, event: Mapping[str, Any]) -> None:
    """Store a record of gradients; if it agrees with the known one, store the confirmation.

    Raises:
        RefusedEvent: the generation does not train on this number of GPUs, or the gradients are impossible.
    """
    # Imported here: few reports hold a record, and the agents' API uses arrays for nothing else.
    from scheduling.gradient_records import codecs_of, drift, model_of, sparse_of

    possible = (generation.profile or {}).get("levels", []) if generation.purpose == Purpose.PROFILING else []
    if event["gpus"] not in {*possible, generation.world_size}:
        raise RefusedEvent(f"gpus: {event['gpus']}, but the generation trains on {generation.world_size}")
    content = {name: event[name] for name in CommunicationProfile.model_fields}
    try:
        for read in (model_of, sparse_of, codecs_of):
            read(content)
    except ValueError as error:
        raise RefusedEvent(f"gradients: {error}") from error
    kind = generation.assignments.select_related("gpu").order_by("rank")[0].gpu.kind
    now = timezone.now()
    profile, new = GradientProfile.objects.get_or_create(
        key=function_key_on(job, kind),
        gpus=event["gpus"],
        defaults={"gpu_kind": kind, "content": content, "measured_at": now, "confirmed_at": now},
    )
    if new:
        return
    profile.confirmed_at = now
    if drift(profile.content, content) > MOST_DRIFT:
        profile.content, profile.measured_at, profile.planned_from = content, now, ""
    profile.save(update_fields=["content", "measured_at", "confirmed_at", "planned_from"])


def note_window(generation: Generation, event: Mapping[str, Any], happened_at: datetime) -> None:
    """Store the latest measurements of a generation's plan. Ignore those of another plan."""
    plan = generation.runtime_plan
    if generation.purpose != Purpose.TRAINING or event["plan"] != plan.get("digest"):
        return
    told = {name: event[name] for name in CommunicationWindow.model_fields}
    generation.communication_window = {**told, "told_at": happened_at.isoformat()}
    generation.save(update_fields=["communication_window"])
    # A late window of a replaced generation is older than what its successor measured.
    if generation.state != GenerationState.RETIRED:
        _note_densities(generation, {each["name"]: each["density"] for each in told["densities"]})


def _note_densities(generation: Generation, densities: Mapping[str, float]) -> None:
    """Have plans made again for the present densities of gradients, if these have drifted."""
    if not densities:
        return
    plan = GradientPlan.objects.filter(pk=generation.communication.get("plan")).first()
    if plan is None:
        return
    with transaction.atomic():
        profile = GradientProfile.objects.select_for_update().get(pk=plan.profile_id)
        sparse = with_densities(profile.content["sparse"], densities)
        if sparse is not None:
            profile.content = {**profile.content, "sparse": sparse}
            profile.measured_at, profile.planned_from = timezone.now(), ""
            profile.save(update_fields=["content", "measured_at", "planned_from"])


def ask_for_family(key: str, family: str) -> None:
    """Have plans of a family made for a function's gradients, besides the common families."""
    for profile in GradientProfile.objects.filter(key=key).only("families"):
        if family not in profile.families and len(profile.families) < MOST_FAMILIES:
            profile.families = [*profile.families, family]
            profile.planned_from = ""
            profile.save(update_fields=["families", "planned_from"])


def has_winning_plan(key: str, family: str) -> bool:
    """Return whether a plan of the family is worth measuring: it is predicted to win and was not given up."""
    plans = GradientPlan.objects.filter(profile__key=key, family=family, given_up="")
    return plans.exclude(planner="dense").filter(speedup__gte=WORTH_MEASURING).exists()
