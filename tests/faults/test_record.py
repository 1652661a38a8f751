"""The record resumes where it was stopped, and the report has every seed."""

from __future__ import annotations

from pathlib import Path

from tests.faults import record
from tests.faults.record import Entry


def entry(seed: int, *violations: str, seconds: float = 30.0) -> Entry:
    return Entry(
        seed=seed, seconds=seconds, faults=5, carried_out=4, jobs=3, promised=2, beyond_the_reserve=0,
        violations=list(violations), calm_seconds=9.0, wall_seconds=40.0, load=1.0, at="2026-01-01T00:00:00",
        platform="abc", place=seed,
    )  # fmt: skip


def test_recorded_seeds_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "record.jsonl"
    assert record.to_do(record.read(file), 1, 4, 30.0) == [1, 2, 3, 4]
    for seed in (1, 3):
        record.append(file, entry(seed))
    assert record.to_do(record.read(file), 1, 4, 30.0) == [2, 4]
    assert record.to_do(record.read(file), 1, 4, 60.0) == [1, 2, 3, 4]


def test_a_truncated_line_is_run_again_and_the_last_run_counts(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    record.append(file, entry(1, "no job lost: work 1"))
    with file.open("a") as out:
        out.write(entry(2).to_line()[:40] + "\n")
    record.append(file, entry(1))
    assert [(found.seed, found.violations) for found in record.read(file)] == [(1, [])]


def test_the_report_lies_beside_the_record(tmp_path: Path) -> None:
    file = tmp_path / "schedules.jsonl"
    for seed in (5, 6):
        record.append(file, entry(seed))
    page = record.write_report(file)
    assert page == tmp_path / "schedules.md"
    assert page.read_text().splitlines() == record.report([entry(5), entry(6)])


def test_the_report_lists_seeds_with_commands_to_repeat_failures() -> None:
    broken = entry(7, "no job lost: work 1")
    broken.covered, broken.judged, broken.left_seconds = True, 2, -3.0
    text = "\n".join(record.report([entry(3), broken]))
    assert "2 schedules, 8 faults carried out, 6 jobs, 4 promises, 2 of them covered" in text
    assert "1 schedules covered throughout, 1 schedules with a violation" in text
    assert "| 3 | 4 | no | 2 | 0 |  | 9 s | 40 | 1.0 | abc (3) | none |" in text
    assert "| 7 | 4 | yes | 2 | 2 | -3 s | 9 s | 40 | 1.0 | abc (7) | 1 |" in text
    assert "make chaos SEED=7" in text
    assert "no job lost: work 1" in text


def test_the_report_says_which_seed_found_a_planted_defect() -> None:
    quiet, loud = entry(1), entry(2, "nobody trained twice: job 1")
    quiet.planted = loud.planted = "short-fence"
    assert "Planted defect short-fence: found by seed 2." in record.report([quiet, loud])
    assert "Planted defect short-fence: not found." in record.report([quiet])
