"""The best communication plan of each family for a profile's inputs, in the form of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from communication.combined.choosing import PlanChoice, choose
from communication.combined.grouping import others
from communication.combined.plan import CandidatePlan
from communication.combined.question import PLANNERS, PlanQuestion
from communication.combined.timeline import predicted_spans
from communication.plan import PredictedSpan
from communication.profiles.link import LinkProfile
from communication.profiles.placement import PlacementShape
from moe.lina.shared_link import Rates
from scheduling.core.runtime_plans.choosing import CARRIED_OUT
from scheduling.core.runtime_plans.plan import codecs_of_family
from scheduling.gradient_records import codecs_of, known_codecs, model_of, sparse_of
from scheduling.models import GradientProfile
from scheduling.services.gradients.expert_schedules import schedule_of

if TYPE_CHECKING:
    from scheduling.services.gradients.plan_inputs import PlanInputs

#: Limit of spans in a stored timeline.
MOST_SPANS = 512
#: Gradients are sent as FP32 under a plan.
FP32_BYTES = 4


def choices(profile: GradientProfile, inputs: PlanInputs) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the choice of each family in the form of its row. Models whose gradients have more bits than
    FP32 get none: no plan can carry them."""
    if profile.content["bytes_per_element"] > FP32_BYTES:
        return
    for family in inputs.families:
        question = question_of(profile, family, inputs.shape, inputs.links)
        question = with_schedule(question, profile, inputs.rates, inputs.expert_bytes)
        question = replace(question, memory_bytes=inputs.memory_bytes)
        yield family, _row(question, choose(question))


def question_of(
    profile: GradientProfile, family: str, shape: PlacementShape, links: LinkProfile
) -> PlanQuestion:
    """Return the planners' question about a profile's gradients. Raise ValueError for an invalid record."""
    content = profile.content
    named = codecs_of_family(family)
    element_bytes = int(content["bytes_per_element"])
    can_be_carried = element_bytes <= FP32_BYTES
    return PlanQuestion(
        profile.key,
        replace(model_of(content), bytes_per_element=FP32_BYTES),
        shape,
        links,
        sparse_of(content),
        known_codecs(codecs_of(content)) if named else (),
        lossy=bool(named),
        codec_names=named,
        planners=tuple(each for each in CARRIED_OUT if each in PLANNERS) if can_be_carried else PLANNERS[:1],
        dense_element_bytes=element_bytes,
    )


def with_schedule(
    question: PlanQuestion, profile: GradientProfile, rates: Rates, expert_bytes: int | None = None
) -> PlanQuestion:
    """Return the question with Lina's schedule on offer, if the profile has experts and a plan can carry its
    gradients (`schedule_of`)."""
    if question.dense_element_bytes > FP32_BYTES:
        return question
    schedule = schedule_of(question, profile.content.get("experts"), rates, expert_bytes)
    return replace(question, offered=() if schedule is None else (schedule,))


def _row(question: PlanQuestion, choice: PlanChoice) -> dict[str, Any]:
    """Return a choice in the form of its row. A plan that lost before may be tried again with other
    inputs."""
    chosen = choice.chosen
    rest = others(question, chosen)
    #: Names of tensors that are not sparse, in order of readiness.
    gradients = () if rest is None else rest.tensor_names
    messages = {name: dict(message) for name, message in chosen.messages.items()}
    return {
        "question": choice.question,
        "planner": chosen.planner,
        "codec": chosen.codec,
        "chosen": candidate_as_json(chosen),
        "messages": {**messages, "gradients": list(gradients)} if messages else {},
        "beaten": [candidate_as_json(each) for each in choice.beaten],
        # SIM-T predicts the duration of an iteration, not when each gradient is sent.
        "spans": spans_as_json(() if chosen.experts is not None else predicted_spans(question, chosen)),
        "speedup": choice.speedup,
        "made_at": timezone.now(),
        "measured_seconds": None,
        "given_up": "",
    }


def spans_as_json(spans: Sequence[PredictedSpan]) -> list[dict[str, Any]]:
    """Return a predicted timeline ordered by begin; if it is too long, only the longest spans."""
    kept = sorted(spans, key=lambda span: span.begin_seconds - span.end_seconds)[:MOST_SPANS]
    return [asdict(span) for span in sorted(kept, key=lambda span: span.begin_seconds)]


def candidate_as_json(candidate: CandidatePlan) -> dict[str, Any]:
    """Return a description of a plan for people, without the ranks' orders."""
    return {
        "planner": candidate.planner,
        "codec": candidate.codec,
        "lossless": candidate.lossless,
        "buffer_bytes": candidate.buffer_bytes,
        "predicted": asdict(candidate.predicted),
    }
