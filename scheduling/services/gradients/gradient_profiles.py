"""What workers measure of gradients, kept for each function, hyperparameters and number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from communication.zen.drift import with_densities
from punctual.protocol.communication import CommunicationProfile, CommunicationWindow
from scheduling.choices import Purpose
from scheduling.curve_keys import function_key_on
from scheduling.link_drift import MOST_DRIFT
from scheduling.models import Generation, GradientPlan, GradientProfile, Job
from scheduling.services.rows.report_refusals import RefusedEvent

#: That jobs may ask for beside the common ones: each costs planning.
MOST_FAMILIES = 8
#: Predicted, over no plan: below it measuring a curve for a family costs more than it brings.
WORTH_MEASURING = 1.05


def note_profile(job: Job, generation: Generation, event: Mapping[str, Any]) -> None:
    """Keep a record of gradients; one that says what is known already is noted as confirmed.

    Raises:
        RefusedEvent: it is of no number of GPUs that the generation trains on, or of no gradients that there
            can be.
    """
    # Imported here: few reports hold a record, and the agents' API computes nothing else with arrays.
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
    """Keep what became of a generation's plan; the newest counts. What is told of another plan is not its."""
    plan = generation.runtime_plan
    if generation.purpose != Purpose.TRAINING or event["plan"] != plan.get("digest"):
        return
    told = {name: event[name] for name in CommunicationWindow.model_fields}
    generation.communication_window = {**told, "told_at": happened_at.isoformat()}
    generation.save(update_fields=["communication_window"])
    _note_densities(generation, {each["name"]: each["density"] for each in told["densities"]})


def _note_densities(generation: Generation, densities: Mapping[str, float]) -> None:
    """Have plans made anew for the densities that gradients have now, if these have drifted."""
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
    """Have plans of a family made for a function's gradients, beside those of the common ones."""
    for profile in GradientProfile.objects.filter(key=key).only("families"):
        if family not in profile.families and len(profile.families) < MOST_FAMILIES:
            profile.families = [*profile.families, family]
            profile.planned_from = ""
            profile.save(update_fields=["families", "planned_from"])


def has_winning_plan(key: str, family: str) -> bool:
    """Whether a plan of the family is worth measuring for a function: it is predicted to win, and did not
    lose."""
    plans = GradientPlan.objects.filter(profile__key=key, family=family, given_up="")
    return plans.exclude(planner="dense").filter(speedup__gte=WORTH_MEASURING).exists()
