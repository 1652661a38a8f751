"""A plan's predicted timeline ends with the predicted iteration, and shows which operation waits for
which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from communication.combined.choosing import choose
from communication.combined.question import PLANNERS, PlanQuestion
from communication.combined.timeline import predicted_spans
from communication.library.models import measured_model
from communication.plan import PredictedSpan
from communication.profiles.placement import PlacementShape
from tests.communication.combined.test_choosing import TABLE, question, recommender

ONE_SERVER, SIXTEEN = PlacementShape(1, 4), PlacementShape(16, 1)
DENSE_MODEL = question(lossy=True)
SPARSE_MODEL = question(model=recommender(), sparse=(TABLE,), placement=SIXTEEN, lossy=True)


def end_of(spans: tuple[PredictedSpan, ...]) -> float:
    return max(span.end_seconds for span in spans)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("asked", [DENSE_MODEL, SPARSE_MODEL], ids=["dense model", "sparse model"])
def test_every_planners_timeline_ends_at_its_predicted_iteration(asked: PlanQuestion, planner: str) -> None:
    beside = ("zen",) if asked.sparse else ()
    only = replace(asked, planners=tuple(dict.fromkeys(("dense", planner, *beside))))
    for shape in (asked.placement, ONE_SERVER):
        here = replace(only, placement=shape)
        choice = choose(here)
        for plan in (choice.chosen, *choice.beaten):
            seconds = asked.model.other_seconds + end_of(predicted_spans(here, plan))
            assert seconds == pytest.approx(plan.predicted.iteration_seconds, rel=1e-9)


def test_each_link_serves_one_group_at_a_time() -> None:
    asked = question(model=measured_model("VGG16", 0.05), lossy=True, planners=("dense", "espresso"))
    choice = choose(asked)
    assert choice.chosen.codec != "none"
    spans = predicted_spans(asked, choice.chosen)
    assert {span.stage for span in spans} >= {"backward", "encode", "exchange"}
    for resource in ("within", "between"):
        mine = sorted((span.begin_seconds, span.end_seconds) for span in spans if span.resource == resource)
        assert all(end <= begin + 1e-12 for (_, end), (begin, _) in zip(mine, mine[1:], strict=False))


def test_sparse_gradients_are_exchanged_last() -> None:
    choice = choose(SPARSE_MODEL)
    spans = predicted_spans(SPARSE_MODEL, choice.chosen)
    table = [span for span in spans if span.group == 0 and span.stage != "backward"]
    others = [span for span in spans if span not in table]
    assert table
    assert min(span.begin_seconds for span in table) >= end_of(tuple(others)) - 1e-12
    assert {span.resource for span in table if span.stage == "exchange"} == {"between"}


def test_on_one_gpu_there_is_nothing_but_the_backward_pass() -> None:
    alone = question(placement=PlacementShape(1, 1))
    (span,) = predicted_spans(alone, choose(alone).chosen)
    assert span.stage == "backward"
    assert span.end_seconds == pytest.approx(alone.model.backward_seconds)
