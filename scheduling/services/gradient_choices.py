"""The communication plan of each family for a profile's inputs, as rows keep it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from communication.combined.choosing import PlanChoice, choose
from communication.combined.grouping import others
from communication.combined.plan import CandidatePlan
from communication.combined.question import PlanQuestion
from communication.combined.timeline import predicted_spans
from communication.plan import PredictedSpan
from scheduling.core.runtime_plans.choosing import CARRIED_OUT
from scheduling.core.runtime_plans.plan import codecs_of_family
from scheduling.gradient_records import codecs_of, known_codecs, model_of, sparse_of
from scheduling.models import GradientProfile

if TYPE_CHECKING:
    from scheduling.services.plan_inputs import PlanInputs

#: Of a predicted timeline.
MOST_SPANS = 512
#: Gradients travel as FP32.
FP32_BYTES = 4


def choices(profile: GradientProfile, inputs: PlanInputs) -> Iterator[tuple[str, dict[str, Any]]]:
    """The choice of each family, as its row has it. Models whose gradients do not travel as they are computed
    have none."""
    content = profile.content
    if content["bytes_per_element"] != FP32_BYTES:
        return
    model, sparse = model_of(content), sparse_of(content)
    codecs = known_codecs(codecs_of(content))
    for family in inputs.families:
        named = codecs_of_family(family)
        question = PlanQuestion(
            profile.key,
            model,
            inputs.shape,
            inputs.links,
            sparse,
            codecs,
            lossy=bool(named),
            codec_names=named,
            memory_bytes=inputs.memory_bytes,
            planners=CARRIED_OUT,
        )
        yield family, _row(question, choose(question))


def _row(question: PlanQuestion, choice: PlanChoice) -> dict[str, Any]:
    """A choice as its row has it. What lost before may be tried again under other inputs."""
    chosen = choice.chosen
    rest = others(question, chosen)
    #: Names of those that are not sparse, in order of readiness.
    gradients = () if rest is None else rest.tensor_names
    messages = {name: dict(message) for name, message in chosen.messages.items()}
    return {
        "question": choice.question,
        "planner": chosen.planner,
        "codec": chosen.codec,
        "chosen": candidate_as_json(chosen),
        "messages": {**messages, "gradients": list(gradients)} if messages else {},
        "beaten": [candidate_as_json(each) for each in choice.beaten],
        "spans": spans_as_json(predicted_spans(question, chosen)),
        "speedup": choice.speedup,
        "made_at": timezone.now(),
        "measured_seconds": None,
        "given_up": "",
    }


def spans_as_json(spans: Sequence[PredictedSpan]) -> list[dict[str, Any]]:
    """A predicted timeline in order of begin; of one with more spans than are kept the longest."""
    kept = sorted(spans, key=lambda span: span.begin_seconds - span.end_seconds)[:MOST_SPANS]
    return [asdict(span) for span in sorted(kept, key=lambda span: span.begin_seconds)]


def candidate_as_json(candidate: CandidatePlan) -> dict[str, Any]:
    """What a plan is, for people: not what ranks carry out."""
    return {
        "planner": candidate.planner,
        "codec": candidate.codec,
        "lossless": candidate.lossless,
        "buffer_bytes": candidate.buffer_bytes,
        "predicted": asdict(candidate.predicted),
    }
