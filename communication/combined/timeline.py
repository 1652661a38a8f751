"""The predicted timeline of an iteration under a plan: what computes, encodes, communicates and decodes when.

The spans come from the engine of each planner, so the last span ends with the predicted iteration, except for
time that belongs to neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from communication.combined.grouping import groups_as_tensors, others, travelling_apart
from communication.combined.plan import NO_CODEC, CandidatePlan, GroupPlan
from communication.combined.question import PlanQuestion
from communication.cupcake.exchange import Exchange
from communication.cupcake.plan import FusionPlan
from communication.cupcake.timeline import timeline_of
from communication.espresso.costs import CostModel
from communication.espresso.operations import operations
from communication.espresso.options import Task
from communication.espresso.plan import EspressoPlan
from communication.espresso.question import question_of
from communication.plan import PredictedSpan, Resource, Stage
from communication.profiles.model import ModelProfile
from communication.zen.choosing import TensorChoice
from communication.zen.iteration import all_reduces


def predicted_spans(question: PlanQuestion, plan: CandidatePlan) -> tuple[PredictedSpan, ...]:
    """Return the timeline of a plan for a question, in order of begin.

    Seconds count from the beginning of the backward pass. Groups are numbered in order of readiness, sparse
    gradients first. In a fusion plan a group's encoding and decoding are one span.
    """
    choices = travelling_apart(question, plan)
    backward = PredictedSpan("backward", "gpu", 0, 0.0, question.model.backward_seconds)
    numbered = (replace(span, group=span.group + len(choices)) for span in _rest(question, plan))
    found = [backward, *(span for span in numbered if span.end_seconds > span.begin_seconds)]
    if question.placement.workers > 1:
        found += _sparse(question, choices, max(span.end_seconds for span in found))
    return tuple(sorted(found, key=lambda span: (span.begin_seconds, span.end_seconds)))


def _rest(question: PlanQuestion, plan: CandidatePlan) -> Iterable[PredictedSpan]:
    rest = others(question, plan)
    if question.placement.workers == 1 or rest is None:
        return ()
    if isinstance(plan.rest, FusionPlan):
        return _fused(question, rest, plan.rest)
    if isinstance(plan.rest, EspressoPlan):
        return _by_option(question, rest, plan.rest)
    if isinstance(plan.rest, GroupPlan):
        return _by_option(question, groups_as_tensors(rest, plan.rest.boundaries), plan.rest.options)
    return _all_reduced(question, plan)


def _all_reduced(question: PlanQuestion, plan: CandidatePlan) -> Iterator[PredictedSpan]:
    """Yield all-reduced buckets as without a plan, including what Zen all-reduces."""
    apart = {each.profile.tensor for each in travelling_apart(question, plan)}
    model = question.dense_model if plan.sparse is None else question.model
    buckets = all_reduces(model, question.placement, question.links, apart)
    for number, (begin, one) in enumerate(buckets):
        yield PredictedSpan("exchange", _network(question), number, begin, begin + one.end_seconds)


def _fused(question: PlanQuestion, rest: ModelProfile, plan: FusionPlan) -> Iterator[PredictedSpan]:
    named = question.allowed_codecs.get(plan.codec, ())
    codec = None if plan.codec == NO_CODEC else next(one for one in named if one.device is plan.device)
    exchange = Exchange(rest, question.placement, question.links, codec)
    problem = exchange.problem()
    timeline = timeline_of(problem, plan.boundaries)
    coding = exchange.coding_seconds(np.diff(problem.bytes_until[[0, *plan.boundaries]]))
    device: Resource = "processors" if plan.device.value == "cpu" else "gpu"
    for number, encoded in enumerate(timeline.encoded.tolist()):
        yield PredictedSpan("encode", device, number, encoded - float(coding[number]), encoded)
        begin, end = float(timeline.sent_from[number]), float(timeline.sent_until[number])
        yield PredictedSpan("exchange", _network(question), number, begin, end)


def _by_option(question: PlanQuestion, model: ModelProfile, plan: EspressoPlan) -> Iterator[PredictedSpan]:
    """Yield the spans of Espresso's engine for the chosen options only."""
    named = question.allowed_codecs.get(plan.codec, ())
    costs = CostModel(question.placement, question.links, {codec.device: codec for codec in named})
    asked = question_of(model, costs, tuple(dict.fromkeys(one.option for one in plan.tensors)))
    columns = asked.table.columns
    strategy = np.array([columns[one.option] for one in plan.tensors], dtype=np.int64)
    stages: dict[Task, Stage] = {Task.COMP: "encode", Task.DECOMP: "decode"}
    for span in asked.engine.spans(strategy):
        if span.number is None:
            continue
        step = operations(plan.tensors[span.tensor].option, question.placement)[span.number].step
        stage = stages.get(step.task, "exchange")
        yield PredictedSpan(stage, span.resource.told, span.tensor, span.start, span.end)


def _sparse(question: PlanQuestion, choices: Iterable[TensorChoice], begin: float) -> Iterator[PredictedSpan]:
    """Yield sparse gradients in sequence, after everything else."""
    for number, choice in enumerate(choices):
        own = choice.cost.operation_seconds
        end = begin + choice.cost.seconds
        if own > 0.0:
            yield PredictedSpan("encode", "gpu", number, begin, begin + own)
        yield PredictedSpan("exchange", _network(question), number, begin + own, end)
        begin = end


def _network(question: PlanQuestion) -> Resource:
    return "between" if question.placement.spread else "within"
