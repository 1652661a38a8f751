"""The timeline engine: hand vectors, exclusive resources, and comparisons with simulations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.espresso.operations import Resource
from communication.espresso.timeline import TimelineEngine
from tests.communication.espresso.timelines import (
    BETWEEN,
    GPU,
    NONE,
    ON_CPU,
    ON_GPU,
    WITHIN,
    Chain,
    compressible,
    engine_of,
    gaps_of_channel,
    plain_end,
)


def vector_e2() -> TimelineEngine:
    return engine_of(
        (2, 3, 3), [compressible(2, 1, 3, 0.5), compressible(5, 1, 3, 2), compressible(5, 1, 3, 2)]
    )


@pytest.mark.parametrize(
    ("strategy", "seconds", "bubbles"),
    [
        ((NONE, NONE, NONE), 15, [(4, 5)]),
        ((ON_GPU, NONE, NONE), 16, None),
        ((NONE, ON_GPU, NONE), 14, [(4, 6), (8, 9)]),
        ((NONE, NONE, ON_GPU), 12, [(4, 5)]),
        ((NONE, ON_GPU, ON_GPU), 12, None),
        ((ON_GPU, ON_GPU, ON_GPU), 13, None),
        ((NONE, ON_CPU, NONE), 15, None),
        ((NONE, NONE, ON_CPU), 13, None),
        ((NONE, ON_CPU, ON_GPU), 12, None),
    ],
)
def test_vector_e2(strategy: tuple[int, ...], seconds: float, bubbles: list[tuple[float, float]]) -> None:
    engine, chosen = vector_e2(), np.array(strategy)
    assert engine.seconds(chosen) == seconds
    if bubbles is not None:
        assert gaps_of_channel(engine, chosen) == bubbles


def test_bubbles_of_vector_e2_lie_before_the_tensor_that_ends_them() -> None:
    engine = vector_e2()
    assert engine.last_bubble(np.array([NONE, NONE, NONE])) == 1
    assert engine.last_bubble(np.array([NONE, ON_GPU, NONE])) == 2


@pytest.mark.parametrize(
    ("chain", "completions"),
    [
        ([(WITHIN, 1), (BETWEEN, 4), (WITHIN, 1)], (7, 11)),
        ([(WITHIN, 1), (GPU, 0.5), (BETWEEN, 1), (GPU, 0.5), (WITHIN, 1)], (5, 6)),
    ],
)
def test_vector_e3_pipelines_two_channels(chain: Chain, completions: tuple[float, float]) -> None:
    engine = engine_of((1, 1), [[chain], [chain]])
    strategy = np.zeros(2, dtype=np.int64)
    assert engine.seconds(strategy) == completions[1]
    last = {span.tensor: span.end for span in engine.spans(strategy) if span.number == len(chain) - 1}
    assert (last[0], last[1]) == completions


@pytest.mark.parametrize(
    ("offloaded", "seconds"),
    [("000", 22), ("100", 20), ("010", 22), ("001", 25), ("110", 21), ("101", 23), ("011", 24), ("111", 23)],
)
def test_vector_e4(offloaded: str, seconds: float) -> None:
    engine = engine_of((1, 4, 4, 4), [compressible(1, 1, 1, 1)] + [compressible(9, 2, 5, 3)] * 3)
    strategy = [NONE, *(ON_CPU if each == "1" else ON_GPU for each in offloaded)]
    assert engine.seconds(np.array(strategy)) == seconds


def test_vector_e5() -> None:
    engine = engine_of((0.5, 2), [compressible(9, 1, 2, 4)] * 2)
    assert engine.seconds(np.array([ON_CPU, ON_GPU])) == 10.5
    assert engine.seconds(np.array([ON_GPU, ON_CPU])) == 9.5


def test_an_iteration_without_sends_is_its_computation() -> None:
    engine = engine_of((1, 2), [[[]], [[]]], other_seconds=4.0)
    assert engine.seconds(np.zeros(2, dtype=np.int64)) == 7.0
    assert engine.last_bubble(np.zeros(2, dtype=np.int64)) == 0


#: Whole quarters: sums are exact, and many completions fall together.
quarters = st.integers(0, 12).map(lambda whole: whole / 4)
chains = st.lists(st.sampled_from(list(Resource)), max_size=6)


@st.composite
def engines(draw: st.DrawFn, cpu_servers: int = 1) -> tuple[TimelineEngine, np.ndarray]:
    tensors = draw(st.integers(1, 7))
    kinds = draw(st.lists(chains, min_size=1, max_size=3))
    each = [
        [[(resource, draw(quarters.filter(bool))) for resource in kind] for kind in kinds]
        for _ in range(tensors)
    ]
    gaps = draw(st.lists(quarters.filter(bool), min_size=tensors, max_size=tensors))
    strategy = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=tensors, max_size=tensors))
    return engine_of(gaps, each, cpu_servers=cpu_servers), np.array(strategy, dtype=np.int64)


@given(engines())
def test_the_timeline_ends_when_a_queue_simulation_does(given_: tuple[TimelineEngine, np.ndarray]) -> None:
    engine, strategy = given_
    assert engine.seconds(strategy) == plain_end(engine, list(strategy))


@given(engines(cpu_servers=2))
def test_a_cpu_may_serve_two_operations_at_once(given_: tuple[TimelineEngine, np.ndarray]) -> None:
    engine, strategy = given_
    assert engine.seconds(strategy) == plain_end(engine, list(strategy), cpu_servers=2)


@given(engines())
def test_resources_serve_one_operation_and_chains_keep_their_order(
    given_: tuple[TimelineEngine, np.ndarray],
) -> None:
    engine, strategy = given_
    spans = engine.spans(strategy)
    assert max(span.end for span in spans) == engine.seconds(strategy)
    for resource in Resource:
        mine = sorted((span.start, span.end) for span in spans if span.resource is resource)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))
    by_place = {(span.tensor, span.number): span for span in spans}
    for (tensor, number), span in by_place.items():
        before = by_place[tensor, None if number == 0 else number - 1] if number is not None else None
        assert before is None or before.end <= span.start
        if number is None and tensor:
            assert by_place[tensor - 1, None].end <= span.start


@given(st.lists(st.tuples(quarters, quarters), min_size=1, max_size=20))
def test_single_exchanges_are_a_flow_shop_of_two_machines(jobs: list[tuple[float, float]]) -> None:
    """Its closed form: the longest path, from computing to sending at one of the tensors."""
    engine = engine_of([gap for gap, _ in jobs], [[[(BETWEEN, sent)]] for _, sent in jobs])
    closed = max(
        sum(gap for gap, _ in jobs[: turn + 1]) + sum(sent for _, sent in jobs[turn:])
        for turn in range(len(jobs))
    )
    assert engine.seconds(np.zeros(len(jobs), dtype=np.int64)) == closed


@given(engines(), st.data())
def test_the_best_candidate_equals_that_of_full_evaluations(
    given_: tuple[TimelineEngine, np.ndarray], data: st.DataObject
) -> None:
    """Although the prefix before the tensor is evaluated once, and hopeless candidates are abandoned
    early."""
    engine, strategy = given_
    tensor = data.draw(st.integers(0, len(engine) - 1))
    candidates = np.arange(len(engine.chains.lengths))
    now = engine.seconds(strategy)
    column, seconds = engine.best_candidate(strategy, tensor, candidates, now)
    found: dict[int, float] = {}
    for candidate in (int(strategy[tensor]), *candidates.tolist()):
        changed = strategy.copy()
        changed[tensor] = candidate
        found.setdefault(candidate, engine.seconds(changed))
    best = min(found.values())
    assert seconds == best == found[column]
    assert column == next(candidate for candidate, taken in found.items() if taken == best)
