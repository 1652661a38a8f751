"""A small simulated day with all nine systems, and with each one switched off."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nine_systems.curves import System, curve, fewest_gpus
from benchmarks.nine_systems.evidence import recovered_from
from benchmarks.nine_systems.simulated import COLUMNS, DaySize, simulate_day
from benchmarks.nine_systems.tables import Table, write_section
from punctual.client.models import Recovery

#: Kinds of jobs with curves that need no gradient planner.
SMALL = DaySize(
    servers=4, inference_servers=2, jobs=8, failures=1, seconds=4 * 3600.0,
    kinds=("experts", "tiers", "tasks", "adaptive"),
)  # fmt: skip


def test_a_small_day_keeps_its_promises_without_any_system() -> None:
    off = (System.ELASTICFLOW, System.LYRA, System.GEMINI, System.MOESYS)
    day = simulate_day([3], SMALL, off)
    assert day.missed == []
    rows = day.tables[0].rows
    assert [row[0] for row in rows] == ["all nine", *(f"without {system}" for system in off)]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    promised = {row[0]: row[COLUMNS.index("promises, missed")] for row in rows}
    assert promised["all nine"].endswith(", 0")
    assert promised["all nine"] != "0, 0"
    assert promised["without ElasticFlow"] == "0, 0"


@pytest.mark.parametrize(
    ("kind", "system"),
    [
        ("experts", System.LINA),
        ("adaptive", System.LINA),
        ("adaptive", System.ADAPTIVE_GATING),
        ("sparse", System.ZEN),
        ("tasks", System.MOESYS),
    ],
)
def test_a_system_makes_its_jobs_faster(kind: str, system: System) -> None:
    with_it, without = curve(kind, None), curve(kind, system)
    rates = dict(zip(with_it.gpus.tolist(), with_it.iterations_per_second.tolist(), strict=True))
    pairs = [
        (rates[gpus], rate)
        for gpus, rate in zip(without.gpus.tolist(), without.iterations_per_second.tolist(), strict=True)
    ]
    assert all(fast >= slow for fast, slow in pairs)
    assert any(fast > 1.01 * slow for fast, slow in pairs)


def test_a_model_in_tiers_needs_fewer_gpus() -> None:
    assert fewest_gpus(has_tiers=True) < fewest_gpus(has_tiers=False)


def test_tables_go_between_the_marks_of_a_document(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- day -->\nold\n<!-- end of day -->\nafter\n")
    write_section(document, "day", Table("Title", ("a", "long"), [("1", "2")]).text())
    table = "**Title**\n\n| a | long |\n|---|------|\n| 1 | 2    |"
    assert document.read_text() == f"before\n<!-- day -->\n{table}\n<!-- end of day -->\nafter\n"
    with pytest.raises(ValueError, match="has no <!-- night -->"):
        write_section(document, "night", "")


@pytest.mark.parametrize(
    ("source", "outcome", "words"),
    [
        ("peer_memory", "recovered", "a peer's memory"),
        ("none", "recovered", "the beginning: it had no state yet"),
        ("", "broken_off", "broken off"),
    ],
)
def test_recovery_source_is_described_in_words(source: str, outcome: str, words: str) -> None:
    assert recovered_from(Recovery(source=source, outcome=outcome)) == words


def test_the_page_has_a_place_for_both_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "nine_systems.md").read_text()
    for name in ("live run", "simulated day"):
        assert page.index(f"<!-- {name} -->") < page.index(f"<!-- end of {name} -->")
