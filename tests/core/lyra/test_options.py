"""Options from dataclass fields: values are read within bounds and printed in the form of the option."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scheduling.core.question.options import option, options_of, share


@dataclass(frozen=True)
class Choices:
    known_to_nobody: int = 7
    grouped: bool = option(True, "how they stand", offered_as="standing", words=("apart", "together"))
    part: float | None = share(None, "part of it")
    count: int = option(3, "how many", least=1)
    seconds: float = option(2.5, "how long", above_least=True)


OFFERED = options_of(Choices)


def test_only_described_fields_are_offered_under_their_offered_name() -> None:
    assert list(OFFERED) == ["standing", "part", "count", "seconds"]
    assert [offered.name for offered in OFFERED.values()] == ["grouped", "part", "count", "seconds"]
    assert Choices().count == OFFERED["count"].usual == 3


def test_words_numbers_and_truth_values_become_what_the_field_holds() -> None:
    assert OFFERED["standing"].read("together") is True
    assert OFFERED["standing"].read("apart") is False
    assert OFFERED["standing"].read(0.0) is False
    count = OFFERED["count"].read(2.0)
    assert (count, type(count)) == (2, int)
    assert OFFERED["part"].read(1) == 1.0


def test_value_is_printed_in_the_form_of_its_option() -> None:
    assert OFFERED["standing"].said(True) == "together"
    assert OFFERED["seconds"].said(2.5) == "2.5"


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("part", 1.5, "must be from 0 to 1, not 1.5"),
        ("part", -0.1, "must be from 0 to 1"),
        ("part", float("nan"), "must be from 0 to 1"),
        ("count", 0, "must be at least 1, not 0"),
        ("seconds", 0.0, "must be above 0, not 0"),
        ("seconds", float("inf"), "must be above 0, not inf"),
    ],
)
def test_value_out_of_bounds_is_refused_with_the_bounds(name: str, value: float, right: str) -> None:
    with pytest.raises(ValueError, match=right):
        OFFERED[name].read(value)
