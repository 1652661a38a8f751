"""Names cannot look like other names."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punctual.names import name_problem, normalised, shown
from punctual.protocol.limits import artifact_name_problem, metric_name_problem

DECEITFUL = {
    "right-to-left override": "photo\u202egpj.exe",
    "isolate": "a\u2066b",
    "zero-width space": "vis\u200bion",
    "zero-width joiner": "a\u200db",
    "byte order mark": "\ufeffvision",
    "soft hyphen": "vi\u00adsion",
    "line break": "a\nb",
    "carriage return": "a\rb",
    "escape": "\x1b[31mred",
    "C1 control": "a\x9bb",
    "line separator": "a\u2028b",
    "other space": "a\u00a0b",
    "half surrogate": "a\ud800",
    "unassigned": "a\u0378",
    "private": "a\ue000",
    "Hangul filler": "\u3164",
    "blank of Braille": "\u2800",
    "variation selector": "a\ufe0f",
    "tag": "a\U000e0041",
    "mark without a letter": "\u0301a",
    "heap of marks": "a" + "\u0301" * 9,
}


@pytest.mark.parametrize("name", DECEITFUL.values(), ids=DECEITFUL.keys())
def test_deceptive_names_are_refused(name: str) -> None:
    assert name_problem(name)
    assert metric_name_problem(name)
    assert artifact_name_problem(name)


@pytest.mark.parametrize(
    "name",
    ["nightly #3", "Übung", "研究", "भाषा", "ngữ nghĩa", "مشروع", "🚀 launch", "naïve/été.pt", "a_b-c.d"],
)
def test_names_in_all_languages_are_accepted(name: str) -> None:
    for spelling in ("NFC", "NFD"):
        assert name_problem(unicodedata.normalize(spelling, name)) is None
    assert normalised(unicodedata.normalize("NFD", name)) == unicodedata.normalize("NFC", name)


@given(st.text())
def test_shown_text_has_no_hidden_characters(text: str) -> None:
    clean = shown(text)
    assert len(clean) == len(text)
    assert not any(name_problem("x" + character) for character in clean)
    if name_problem(text) is None:
        assert clean == text


def test_multi_line_texts_keep_only_their_line_breaks() -> None:
    assert name_problem("first\nsecond\tthird", line_breaks=True) is None
    assert name_problem("first\r\x1b[2J", line_breaks=True)
    assert shown("a\nb\u202e", line_breaks=True) == "a\nb\N{REPLACEMENT CHARACTER}"
