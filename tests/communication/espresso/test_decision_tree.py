"""The decision tree: its number of options, and the form of its paths."""

from __future__ import annotations

from collections import Counter

import pytest

from communication.espresso.decision_tree import belongs, gpu_options, options
from communication.espresso.options import (
    SECOND_ROUTINE,
    Level,
    Option,
    Routine,
    Step,
    Task,
    compressions,
    devices_of,
    is_hierarchical,
    on_device,
    option_code,
    option_from_code,
)
from communication.profiles.codec import Device


def test_it_has_4341_options_as_published() -> None:
    assert len(options()) == len(set(options())) == 4341
    assert Counter(map(compressions, options())) == {0: 9, 1: 236, 2: 1152, 3: 1920, 4: 1024}


def test_it_has_174_options_for_gpus_of_which_165_compress() -> None:
    assert Counter(map(compressions, gpu_options())) == {0: 9, 1: 59, 2: 72, 3: 30, 4: 4}
    assert len(gpu_options()) == 174
    assert sum(compressions(option) > 0 for option in gpu_options()) == 165
    assert set(gpu_options()) < set(options())


def test_flat_and_hierarchical_options_are_as_many_as_derived() -> None:
    assert sum(option[0].level is Level.FLAT or not is_hierarchical(option) for option in options()) == 63
    assert sum(map(is_hierarchical, options())) == 4278
    assert sum(map(is_hierarchical, gpu_options())) == 162


def test_steps_never_compress_twice_and_end_uncompressed() -> None:
    for option in options():
        compressed = False
        for step in option:
            if step.is_codec:
                assert compressed == (step.task is Task.DECOMP)
                compressed = not compressed
            else:
                assert compressed == step.task.value.endswith("_c")
        assert not compressed


def test_second_steps_mirror_the_first_ones() -> None:
    for option in options():
        waiting: list[Step] = []
        for step in option:
            if step.task in (Task.COMM1, Task.COMM1_C):
                waiting.append(step)
            elif step.task in (Task.COMM2, Task.COMM2_C):
                first = waiting.pop()
                assert (SECOND_ROUTINE[first.routine], first.level) == (step.routine, step.level)
        assert not waiting


def test_each_option_has_a_code_of_its_own() -> None:
    codes = {option_code(option) for option in options()}
    assert len(codes) == 4341
    for option in gpu_options():
        assert option_from_code(option_code(option)) == option


def test_on_the_other_device_an_option_stays_in_the_tree() -> None:
    for option in gpu_options():
        moved = on_device(option, Device.CPU)
        assert belongs(moved)
        assert devices_of(moved) == ({Device.CPU} if compressions(option) else set())


REDUCTION: Option = (Step(Task.COMM1, Routine.REDUCE, Level.INTRA),)


def test_an_invalid_path_is_not_in_the_tree() -> None:
    assert not belongs(REDUCTION)
    assert not belongs(())


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("", "1 to 1000 characters"),
        ("x" * 1001, "1 to 1000 characters"),
        (7, "1 to 1000 characters"),
        ("Comm", "task/routine/place"),
        ("Comm1/reduce/moon", "moon"),
        ("Comm1/all-to-all/intra", "Comm1 has no routine all-to-all"),
        ("Comp/encode/intra", "intra"),
        ("Comm/all-reduce/gpu", "gpu"),
    ],
)
def test_invalid_codes_are_refused(code: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        option_from_code(code)


@pytest.mark.parametrize(
    ("task", "routine", "level", "device"),
    [
        (Task.COMP, Routine.ENCODE, None, None),
        (Task.COMP, Routine.ENCODE, Level.INTRA, Device.GPU),
        (Task.COMM, Routine.ALL_REDUCE, None, None),
        (Task.COMM, Routine.ALL_REDUCE, Level.FLAT, Device.GPU),
    ],
)
def test_a_step_has_a_level_or_a_device(
    task: Task, routine: Routine, level: Level | None, device: Device | None
) -> None:
    with pytest.raises(ValueError, match="and nothing else"):
        Step(task, routine, level, device)
