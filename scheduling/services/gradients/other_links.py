"""Predicts a function's speed on other links: measured levels, scaled by the ratio of plans' predictions.

Only for questions; no promise depends on it.
"""

from __future__ import annotations

from dataclasses import replace

from communication.combined.choosing import choose
from communication.combined.plan import CandidatePlan
from communication.combined.question import PlanQuestion
from communication.profiles.link import LinkProfile, LinkRate
from scheduling.core.runtime_plans.expert_families import gradients_of
from scheduling.models import CurveLevel, GradientPlan, GradientProfile, ScalingCurve
from scheduling.selectors.network.link_profiles import known_links, known_rates
from scheduling.services.gradients.gradient_choices import question_of, with_schedule
from scheduling.services.gradients.gradient_plans import shape_of_level

#: Limit with which all planners answer within a request: Espresso takes seconds for more tensors.
MOST_ONE_BY_ONE = 40


def levels_on(
    curve: ScalingCurve, function: str, family: str, server_size: int, bytes_per_second: float
) -> list[CurveLevel]:
    """Return the curve's levels at this bandwidth between servers, under the best plan of a family. Levels
    without measured gradients are left out.

    Args:
        function: key of the function with its hyperparameters. server_size: GPUs of a server.
    """
    here = known_links(curve.gpu_kind).profile
    rates = known_rates(curve.gpu_kind)
    there = LinkProfile(LinkRate(here.between.latency_seconds, bytes_per_second), here.within)
    profiles = {one.gpus: one for one in GradientProfile.objects.filter(key=function)}
    found = []
    for level in curve.levels.all():
        profile = profiles.get(level.gpus)
        asked = None if profile is None else _question(profile, family, server_size, here)
        if profile is None or asked is None:
            continue
        now = _predicted_now(profile, gradients_of(curve.plan_family), asked)
        then = _seconds(choose(with_schedule(replace(asked, links=there), profile, rates)).chosen)
        level.iterations_per_second *= now / then
        found.append(level)
    return found


def _question(
    profile: GradientProfile, family: str, server_size: int, links: LinkProfile
) -> PlanQuestion | None:
    shape = shape_of_level(profile.gpus, server_size)
    if shape is None:
        return None
    return replace(question_of(profile, family, shape, links), most_one_by_one=MOST_ONE_BY_ONE)


def _predicted_now(profile: GradientProfile, family: str, asked: PlanQuestion) -> float:
    """Return the predicted seconds of an iteration under the plan with which the curve's levels were
    measured."""
    plans = GradientPlan.objects.filter(
        profile=profile,
        family=family,
        servers=asked.placement.servers,
        gpus_per_server=asked.placement.gpus_per_server,
    )
    for plan in plans:
        if plan.carried_out:
            return float(plan.chosen["predicted"]["iteration_seconds"])
    return _seconds(choose(replace(asked, planners=("dense",), codecs=())).dense)


def _seconds(candidate: CandidatePlan) -> float:
    return candidate.predicted.iteration_seconds
