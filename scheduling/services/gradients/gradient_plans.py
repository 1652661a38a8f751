"""Makes communication plans in the background, once for each set of inputs (Zen, Espresso, Cupcake).

The planner's passes read these plans and wait for nothing. A plan's prediction decides which plan is tried
and measured; no promise depends on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import transaction

from cluster.models import Gpu, Server
from communication.plan import content_digest
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape
from moe.lina.shared_link import Rates
from scheduling.choices import UNDECIDED_STATES
from scheduling.core.runtime_plans.choosing import CARRIED_OUT
from scheduling.core.runtime_plans.plan import PlanFamily
from scheduling.curve_keys import keys_without_plan
from scheduling.link_drift import link_moved
from scheduling.models import CurveLevel, GradientPlan, GradientProfile, Job
from scheduling.selectors.network.link_profiles import known_links, known_rates
from scheduling.services.gradients.plan_inputs import PlanInputs
from scheduling.services.memory.expert_memory import bytes_of_experts
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import wake

log = structlog.get_logger(__name__)

COMMON_FAMILIES = (PlanFamily.LOSSLESS.value, PlanFamily.LOSSY.value)
#: Profiles per task; each takes seconds.
MOST_PROFILES = 1
#: Device memory for buffers is counted in multiples of this.
MEMORY_STEP_BYTES = 64 << 20


@dataclass(frozen=True)
class _Kind:
    """What plans need of a kind of GPU, read once for all its profiles. ``memory_bytes``: of the smallest
    device; None if unknown."""

    server_size: int
    links: LinkProfile
    rates: Rates
    memory_bytes: int | None


def make_plans(most: int = MOST_PROFILES) -> int:
    """Make the plans of profiles that have none, or whose inputs changed. Return the number of profiles.

    Plans are computed outside transactions, and discarded if the profile changed meanwhile.
    """
    made = 0
    kinds = {kind: _read(kind) for kind in _kinds()}
    for profile in GradientProfile.objects.order_by("measured_at"):
        kind = kinds.get(profile.gpu_kind)
        inputs = None if kind is None else _inputs(profile, kind)
        if inputs is None or inputs.digest == profile.planned_from:
            continue
        if made >= most:
            break
        made += 1
        # Imported here: most runs find nothing to plan, and the planners take more memory than everything
        # else.
        from scheduling.services.gradients.gradient_choices import choices

        try:
            found = list(choices(profile, inputs))
        except (ArithmeticError, LookupError, ValueError):
            log.exception("gradients_not_planned", key=profile.key, gpus=profile.gpus)
            found = []
        _store(profile, inputs, found)
        _decide_waiting(profile.key)
    return made


def _decide_waiting(function: str) -> None:
    """Have newcomers decided that waited for plans of a function's gradients (`plan_chances.py`)."""
    keys = keys_without_plan(function)
    waiting = Job.objects.filter(curve__key__in=keys, state__in=UNDECIDED_STATES, awaits_levels=True)
    for cluster_id in set(waiting.values_list("cluster", flat=True)):
        with transaction.atomic():
            cluster = lock_cluster(cluster_id)
            waiting.filter(cluster=cluster).update(awaits_levels=False)
            planning_fact_changed(cluster)
            wake("plan", trigger="communication plans were made")


def _kinds() -> list[str]:
    return list(GradientProfile.objects.order_by().values_list("gpu_kind", flat=True).distinct())


def _read(kind: str) -> _Kind:
    devices = Gpu.objects.known().filter(kind=kind, memory_bytes__gt=0).order_by("memory_bytes")
    return _Kind(
        server_size(kind),
        known_links(kind).profile,
        known_rates(kind),
        devices.values_list("memory_bytes", flat=True).first(),
    )


def server_size(kind: str) -> int:
    """Return the most frequent number of GPUs of a server with this kind; 0 without servers."""
    servers = Server.objects.known().filter(gpus__kind=kind)
    counts = Counter(
        Gpu.objects.filter(server__in=servers, kind=kind).order_by().values_list("server_id", flat=True)
    )
    sizes = Counter(counts.values())
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def shape_of_level(gpus: int, server_size: int) -> PlacementShape | None:
    """Return the placement of this many GPUs: on one server if they fit, else on whole servers; None if
    neither."""
    if 0 < gpus <= server_size:
        return PlacementShape(1, gpus)
    if server_size and gpus % server_size == 0:
        return PlacementShape(gpus // server_size, server_size)
    return None


def _inputs(profile: GradientProfile, kind: _Kind) -> PlanInputs | None:
    shape = shape_of_level(profile.gpus, kind.server_size)
    if shape is None:
        return None
    links = _links(profile, kind.links)
    families = (*COMMON_FAMILIES, *sorted(profile.families))
    level = _level_without_plan(profile)
    memory = _memory_left(kind, level)
    experts = bytes_of_experts(profile, level, memory, MEMORY_STEP_BYTES)
    digest = content_digest(
        {
            "measured_at": profile.measured_at.isoformat(),
            "shape": repr(shape),
            "links": repr(links),
            "families": families,
            "memory": memory,
            **({} if experts is None else {"experts": experts}),
            "rates": repr(kind.rates),
            "planners": list(CARRIED_OUT),
        }
    )
    return PlanInputs(shape, links, families, memory, digest, kind.rates, experts)


def _links(profile: GradientProfile, known: LinkProfile) -> LinkProfile:
    """Return the links of servers with the profile's kind of GPU: those of its plans, unless they moved by
    more than a fifth, since measurements vary."""
    for latency_seconds, bytes_per_second in profile.links[:1]:
        planned = LinkRate(latency_seconds, bytes_per_second)
        if not link_moved(planned, known.between):
            return LinkProfile(planned, known.within)
    return known


def _level_without_plan(profile: GradientProfile) -> CurveLevel | None:
    return CurveLevel.objects.filter(curve__key__in=keys_without_plan(profile.key), gpus=profile.gpus).first()


def _memory_left(kind: _Kind, level: CurveLevel | None) -> int | None:
    """Return the device memory that the function leaves on the smallest GPU of a kind, as measured without
    a plan on as many GPUs; all of it if that was not measured, None if GPU memory is unknown."""
    if kind.memory_bytes is None:
        return None
    left = kind.memory_bytes - (0 if level is None else level.memory_bytes)
    # In steps: a slightly higher peak is no reason to plan again.
    return max(0, left - left % MEMORY_STEP_BYTES)


def _store(profile: GradientProfile, inputs: PlanInputs, found: list[tuple[str, dict[str, Any]]]) -> None:
    with transaction.atomic():
        current = GradientProfile.objects.select_for_update().get(pk=profile.pk)
        if current.measured_at != profile.measured_at or current.families != profile.families:
            return
        between = inputs.links.between
        current.planned_from = inputs.digest
        current.links = [[between.latency_seconds, between.bytes_per_second]]
        current.save(update_fields=["planned_from", "links"])
        for family, row in found:
            place: dict[str, Any] = {
                "profile": current,
                "family": family,
                "servers": inputs.shape.servers,
                "gpus_per_server": inputs.shape.gpus_per_server,
            }
            known = GradientPlan.objects.filter(**place).first()
            if known is not None and known.question == row["question"]:
                continue
            GradientPlan.objects.update_or_create(**place, defaults=row)
