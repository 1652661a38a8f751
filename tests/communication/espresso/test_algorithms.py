"""Algorithms 4.1 and 4.2: hand vectors, and which candidates they may and may not skip."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from communication.espresso.choices import Choices
from communication.espresso.gpu_decision import decide, passes
from communication.espresso.offloading import offload, offload_groups, swap
from tests.communication.espresso.timelines import (
    NONE,
    ON_CPU,
    ON_GPU,
    choices_of,
    compressible,
    engine_of,
)

EQUAL = 1e-9


def vector_e2() -> Choices:
    engine = engine_of(
        (2, 3, 3), [compressible(2, 1, 3, 0.5), compressible(5, 1, 3, 2), compressible(5, 1, 3, 2)]
    )
    return choices_of(engine, (2, 5, 5))


def nothing(choices: Choices) -> np.ndarray:
    return np.full(len(choices.sizes), NONE, dtype=np.int64)


def on_gpu(choices: Choices) -> list[np.ndarray]:
    return [np.array([NONE, ON_GPU])] * len(choices.sizes)


def test_tensors_are_decided_by_size_then_by_lateness() -> None:
    assert vector_e2().order.tolist() == [2, 1, 0]


def test_vector_e2_compresses_the_last_tensor_alone() -> None:
    choices = vector_e2()
    strategy, seconds = decide(choices, nothing(choices), on_gpu(choices))
    assert (strategy.tolist(), seconds) == ([NONE, NONE, ON_GPU], 12)
    again, offloaded = offload(choices, strategy)
    assert (again.tolist(), offloaded) == ([NONE, NONE, ON_GPU], 12)


def test_tensors_before_the_last_bubble_are_not_tried() -> None:
    """T0 of E2 is dropped before any trial: two tensors with two candidates each remain."""
    choices = vector_e2()
    before = choices.engine.evaluations
    decide(choices, nothing(choices), on_gpu(choices))
    with_removal = choices.engine.evaluations - before
    decide(choices, nothing(choices), on_gpu(choices), removes=False)
    without = choices.engine.evaluations - before - with_removal
    assert with_removal == 2 * 2 + 3
    assert without == 3 * 2 + 1


def test_starting_all_compressed_finds_what_starting_with_none_misses() -> None:
    """The tensor decided first is compressed, after which compressing the other one is too late."""
    engine = engine_of((8, 1), [compressible(8, 2, 99, 1), compressible(8, 6, 99, 6)])
    choices = choices_of(engine, (8, 8))
    strategy, seconds = passes(choices, nothing(choices), on_gpu(choices))
    assert (strategy.tolist(), seconds) == ([NONE, ON_GPU], 22)
    strategy, seconds = passes(choices, np.array([ON_GPU, ON_GPU]), on_gpu(choices))
    assert (strategy.tolist(), seconds) == ([ON_GPU, NONE], 19)


def e4() -> Choices:
    engine = engine_of((1, 4, 4, 4), [compressible(1, 1, 1, 1)] + [compressible(9, 2, 5, 3)] * 3)
    # Equal tensors share a row, as those of a question do.
    return Choices(
        engine,
        np.array([1, 9, 9, 9]),
        np.array([0, 1, 1, 1]),
        np.array([0, 1, 1]),
        np.array([-1, ON_CPU, -1]),
    )


def test_vector_e4_offloads_the_first_of_its_group() -> None:
    choices = e4()
    start = np.array([NONE, ON_GPU, ON_GPU, ON_GPU])
    assert [group.tolist() for group in offload_groups(choices, start)] == [[1, 2, 3]]
    strategy, seconds = offload(choices, start)
    assert (strategy.tolist(), seconds) == ([NONE, ON_CPU, ON_GPU, ON_GPU], 20)


def test_vector_e5_is_mended_by_a_swap() -> None:
    """Lemma 4.1 offloads the first; the second is better."""
    engine = engine_of((0.5, 2), [compressible(9, 1, 2, 4)] * 2)
    choices = choices_of(engine, (9, 9))
    group = np.array([0, 1])
    strategy, seconds = swap(choices, np.array([ON_CPU, ON_GPU]), (group,))
    assert (strategy.tolist(), seconds) == ([ON_GPU, ON_CPU], 9.5)
    unchanged, as_before = swap(choices, np.array([ON_CPU, ON_GPU]), (group,), most_swaps=0)
    assert (unchanged.tolist(), as_before) == ([ON_CPU, ON_GPU], 10.5)


quarters = st.integers(1, 24).map(lambda whole: whole / 4)


@st.composite
def instances(draw: st.DrawFn, tensors: int, *, kinds: int | None = None, decodes: bool = True) -> Choices:
    """Draw tensors over one channel. ``kinds``: the number of different sizes."""
    gaps = draw(st.lists(quarters, min_size=tensors, max_size=tensors))
    rows = [
        compressible(
            draw(quarters),
            draw(quarters),
            draw(quarters),
            draw(quarters),
            draw(quarters) if decodes else None,
        )
        for _ in range(kinds or tensors)
    ]
    size_of = np.array(
        [draw(st.integers(0, kinds - 1)) if kinds else tensor for tensor in range(tensors)], dtype=np.int64
    )
    engine = engine_of(gaps, [rows[size] for size in size_of])
    return Choices(engine, size_of + 1, size_of, np.array([0, 1, 1]), np.array([-1, ON_CPU, -1]))


def wrongly_removed(choices: Choices, strategy: np.ndarray, columns: Sequence[int]) -> int:
    """Count the changes ruled out by Remove(S) that would lower F."""
    engine = choices.engine
    seconds, bubble = engine.seconds(strategy), engine.last_bubble(strategy)
    found = 0
    for tensor in np.flatnonzero(strategy[:bubble] == NONE):
        for column in columns:
            changed = strategy.copy()
            changed[tensor] = column
            found += engine.seconds(changed) < seconds - EQUAL
    return found


@given(instances(5, decodes=False))
def test_no_tensor_before_a_bubble_would_help(choices: Choices) -> None:
    """Whatever the others do, compressing a tensor that Remove drops would not lower F on any device."""
    for strategy in product((NONE, ON_GPU, ON_CPU), repeat=5):
        assert not wrongly_removed(choices, np.array(strategy), (ON_GPU, ON_CPU))


def test_removal_on_decoding_gpus_is_wrong_less_than_once_in_1000() -> None:
    """Compressing a tensor before a bubble may move another one's decoding behind a backward operation that
    others wait for. So the last passes of a selection remove nothing."""
    rng = np.random.default_rng(1)
    wrong = removed = 0
    for _ in range(400):
        times = rng.integers(1, 25, (5, 6)) / 4
        rows = [compressible(*(float(one) for one in row[:5])) for row in times]
        choices = choices_of(engine_of(times[:, 5].tolist(), rows), range(1, 6))
        for strategy in rng.integers(NONE, ON_GPU + 1, (10, 5)):
            bubble = choices.engine.last_bubble(strategy)
            removed += int((strategy[:bubble] == NONE).sum())
            wrong += wrongly_removed(choices, strategy, (ON_GPU,))
    assert removed > 2_000
    assert wrong < removed / 1_000


@given(instances(6, decodes=False))
def test_a_pass_never_lengthens_an_iteration(choices: Choices) -> None:
    start = nothing(choices)
    strategy, seconds = decide(choices, start, on_gpu(choices))
    assert seconds == choices.engine.seconds(strategy) <= choices.engine.seconds(start)
    assert decide(choices, start, on_gpu(choices), removes=False)[1] == seconds


def prefixes(
    choices: Choices, strategy: np.ndarray, groups: Sequence[np.ndarray]
) -> dict[tuple[int, ...], float]:
    """Return F of every vector of Algorithm 4.2, evaluated one by one."""
    found = {}
    for vector in product(*(range(len(group) + 1) for group in groups)):
        changed = strategy.copy()
        for group, count in zip(groups, vector, strict=True):
            changed[group[:count]] = ON_CPU
        found[vector] = choices.engine.seconds(changed)
    return found


@given(instances(7, kinds=2), st.data())
def test_offloading_is_the_best_of_all_vectors(choices: Choices, data: st.DataObject) -> None:
    start = np.array(data.draw(st.lists(st.sampled_from([NONE, ON_GPU]), min_size=7, max_size=7)))
    groups = offload_groups(choices, start)
    every = prefixes(choices, start, groups)
    best = min(every, key=lambda vector: (every[vector], sum(vector), vector))
    strategy, seconds = offload(choices, start)
    assert seconds == every[best] == choices.engine.seconds(strategy)
    assert tuple(int((strategy[group] == ON_CPU).sum()) for group in groups) == best
    grouped, grouped_seconds = offload(choices, start, most_vectors=0)
    assert every[best] <= grouped_seconds == choices.engine.seconds(grouped) <= choices.engine.seconds(start)
    assert swap(choices, strategy, groups)[1] <= seconds
