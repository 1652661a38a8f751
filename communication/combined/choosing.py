"""The choice of a job's plan: the fastest allowed plan of all planners.

Planners predict with their own engines. To compare them fairly, separately exchanged sparse gradients are
charged alike: they follow the backward pass and all other exchanges. Ties go to the simpler plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from communication.combined.grouping import gathered, groups_as_tensors
from communication.combined.plan import NO_CODEC, CandidatePlan, GroupPlan
from communication.combined.question import PLANNERS, PlanQuestion
from communication.cupcake.exchange import Exchange
from communication.cupcake.partitions import Boundaries
from communication.cupcake.plan import FusionPlan, plan_under
from communication.espresso.plan import EspressoPlan
from communication.espresso.planner import plan_compression
from communication.plan import Prediction
from communication.profiles.codec import CodecProfile
from communication.profiles.model import ModelProfile
from communication.zen.choosing import TensorChoice
from communication.zen.iteration import dense_traffic
from communication.zen.plan import ZenPlan, plan_sparse
from communication.zen.profile import SparsityProfile

#: Predictions that differ by less are considered equal.
EQUAL_SECONDS = 1e-9


@dataclass(frozen=True)
class PlanChoice:
    """The chosen plan. ``beaten``: the best plan of each other planner, fastest first.

    ``too_large``: planners whose plans exceed the memory for buffers."""

    question: str
    chosen: CandidatePlan
    beaten: tuple[CandidatePlan, ...]
    too_large: tuple[str, ...] = ()

    @property
    def dense(self) -> CandidatePlan:
        """The baseline without any plan."""
        return next(each for each in (self.chosen, *self.beaten) if each.planner == "dense")

    @property
    def speedup(self) -> float:
        """Predicted speedup over no plan; at least 1."""
        chosen = self.chosen.predicted.iteration_seconds
        return self.dense.predicted.iteration_seconds / chosen if chosen > 0.0 else 1.0


def choose(question: PlanQuestion) -> PlanChoice:
    """Return the fastest allowed plan; by prediction never slower than any other candidate.

    Deterministic. Models with too many tensors for a planner are planned in merged groups.
    """
    order = (*PLANNERS, *(each.planner for each in question.offered))
    best: dict[str, CandidatePlan] = {}
    too_large = set()
    for candidate in _candidates(question):
        if question.memory_bytes is not None and candidate.buffer_bytes > question.memory_bytes:
            too_large.add(candidate.planner)
            continue
        known = best.get(candidate.planner)
        if known is None or _seconds(candidate) < _seconds(known) - EQUAL_SECONDS:
            best[candidate.planner] = candidate
    chosen = best["dense"]
    for planner in order:
        if planner in best and _seconds(best[planner]) < _seconds(chosen) - EQUAL_SECONDS:
            chosen = best[planner]
    beaten = sorted(
        (each for each in best.values() if each is not chosen),
        key=lambda each: (_seconds(each), order.index(each.planner)),
    )
    without = tuple(name for name in order if name in too_large - set(best))
    return PlanChoice(question.digest, chosen, tuple(beaten), without)


def _seconds(candidate: CandidatePlan) -> float:
    return candidate.predicted.iteration_seconds


def _candidates(question: PlanQuestion) -> Iterator[CandidatePlan]:
    """Yield every plan to try, except those that cannot be executed. A job on one GPU exchanges nothing."""
    yield without_plan(question)
    if question.placement.workers == 1:
        return
    yield from question.offered
    if question.sparse and "zen" in question.planners:
        zen = _zen(question, question.sparse)
        yield CandidatePlan("zen", NO_CODEC, True, zen.predicted, zen.buffer_bytes, sparse=zen)
        apart = tuple(each.profile for each in zen.sparse_tensors)
        if apart != question.rows:
            yield from _of_others(question, _zen(question, apart))
    # With a lossy codec, a sparse gradient may be faster in a group with others.
    follows = bool(question.rows) and "zen" in question.planners
    yield from _of_others(question, _zen(question, question.rows) if follows else None)


def _zen(question: PlanQuestion, sparse: tuple[SparsityProfile, ...]) -> ZenPlan:
    return plan_sparse(question.job, question.model, sparse, question.placement, question.links)


def _of_others(question: PlanQuestion, zen: ZenPlan | None) -> Iterator[CandidatePlan]:
    """Yield plans of all gradients except those in ``zen``; without it, except those kept as rows."""
    apart = gathered(question) if zen is None else zen.sparse_tensors
    rest = question.beside({each.profile.tensor for each in apart})
    if rest is None:
        return
    fused = [plan_under(Exchange(rest, question.placement, question.links, one)) for one in _each(question)]
    if "cupcake" in question.planners:
        for plan in fused:
            yield _beside(question, "cupcake", plan, plan.codec, zen)
    if "espresso" in question.planners and len(rest) <= question.most_one_by_one:
        for codecs in ((), *question.allowed_codecs.values()):
            options = _espresso(question, rest, codecs)
            yield _beside(question, "espresso", options, options.codec, zen)
    if "combined" in question.planners:
        for groups in _grouped(question, rest, fused):
            yield _beside(question, "combined", groups, groups.options.codec, zen)


def _each(question: PlanQuestion) -> list[CodecProfile | None]:
    return [None, *(codec for codecs in question.allowed_codecs.values() for codec in codecs)]


def without_plan(question: PlanQuestion) -> CandidatePlan:
    """Return an iteration in which all gradients are exchanged without any plan."""
    rows = gathered(question)
    apart = {one.tensor for one in question.rows}
    traffic = dense_traffic(question.dense_model, question.placement, question.links, apart)
    other = question.model.other_seconds
    alone = Prediction(
        iteration_seconds=other + max(question.model.backward_seconds, traffic.end_seconds),
        bytes_between=traffic.bytes_between,
        bytes_within=traffic.bytes_within,
        exposed_seconds=max(0.0, traffic.end_seconds - question.model.backward_seconds),
    )
    return CandidatePlan("dense", NO_CODEC, True, _with_sparse(question, alone, rows))


def _with_sparse(question: PlanQuestion, rest: Prediction, sparse: Sequence[TensorChoice]) -> Prediction:
    """Add to a prediction sparse gradients that are exchanged after everything else."""
    if not sparse:
        return rest
    ended = max(rest.iteration_seconds, question.model.compute_seconds)
    spread = question.placement.spread
    exchanged = sum(each.cost.seconds for each in sparse) if question.placement.workers > 1 else 0.0
    operations = sum(each.cost.operation_seconds for each in sparse)
    received = sum(each.cost.received_bytes for each in sparse)
    within = sum(each.within_bytes for each in sparse)
    return Prediction(
        iteration_seconds=ended + exchanged,
        bytes_between=rest.bytes_between + (received if spread else 0.0),
        bytes_within=rest.bytes_within + within + (0.0 if spread else received),
        device_seconds=rest.device_seconds + operations,
        host_seconds=rest.host_seconds,
        exposed_seconds=rest.exposed_seconds + max(0.0, exchanged - operations),
    )


def _beside(
    question: PlanQuestion,
    planner: str,
    plan: FusionPlan | EspressoPlan | GroupPlan,
    codec: str,
    zen: ZenPlan | None,
) -> CandidatePlan:
    made = plan.options if isinstance(plan, GroupPlan) else plan
    return CandidatePlan(
        planner,
        codec,
        made.lossless,
        _with_sparse(question, made.predicted, gathered(question) if zen is None else zen.sparse_tensors),
        made.buffer_bytes + (0 if zen is None else zen.buffer_bytes),
        sparse=zen,
        rest=plan,
    )


def _espresso(question: PlanQuestion, model: ModelProfile, codecs: tuple[CodecProfile, ...]) -> EspressoPlan:
    return plan_compression(
        model, question.placement, question.links, {codec.device: codec for codec in codecs}
    )


def _grouped(question: PlanQuestion, rest: ModelProfile, fused: list[FusionPlan]) -> Iterator[GroupPlan]:
    """Yield Espresso plans over the groups that Cupcake chose with each codec and without a codec."""
    plain = fused[0].boundaries
    tried: set[tuple[str, Boundaries]] = set()
    for plan in fused:
        codecs = question.allowed_codecs.get(plan.codec, ())
        for boundaries in (plan.boundaries, plain):
            if (plan.codec, boundaries) in tried or len(boundaries) > question.most_one_by_one:
                continue
            tried.add((plan.codec, boundaries))
            groups = groups_as_tensors(rest, boundaries)
            yield GroupPlan(boundaries, rest.layout, _espresso(question, groups, codecs))
