"""The record of all schedules, a line of JSON for each seed, and the report made from it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: The longest line of a page.
COLUMNS = 110


@dataclass
class Entry:
    """The result of one schedule. ``kept``: the folder of its evidence, if an invariant broke.

    ``platform``: the platform that ran it, and its ordinal there, since one platform runs several schedules.
    """

    seed: int
    seconds: float
    faults: int
    carried_out: int
    jobs: int
    promised: int
    beyond_the_reserve: int
    violations: list[str]
    calm_seconds: float
    wall_seconds: float
    load: float
    at: str
    kept: str | None = None
    reserve: int = 1
    covered: bool = False
    judged: int = 0
    left_seconds: float | None = None
    planted: str = ""
    platform: str = ""
    place: int = 0
    without: list[str] = field(default_factory=list)

    def to_line(self) -> str:
        return json.dumps(asdict(self))


def append(record: Path, entry: Entry) -> None:
    """Append a line; existing lines stay."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as file:
        file.write(entry.to_line() + "\n")


def read(record: Path) -> list[Entry]:
    """Return the last entry of each seed. A line truncated by an interruption is ignored."""
    if not record.exists():
        return []
    entries: dict[int, Entry] = {}
    for line in record.read_text(encoding="utf-8").splitlines():
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError):
            continue
        entries[entry.seed] = entry
    return list(entries.values())


def to_do(entries: Sequence[Entry], first_seed: int, schedules: int, seconds: float) -> list[int]:
    """Return the seeds without a run of that length."""
    done = {entry.seed for entry in entries if entry.seconds == seconds}
    return [seed for seed in range(first_seed, first_seed + schedules) if seed not in done]


def write_report(file: Path) -> Path:
    """Write the report of a record beside it; return its path."""
    page = file.with_suffix(".md")
    page.write_text("\n".join([*report(read(file)), ""]), encoding="utf-8")
    return page


_COLUMNS = (
    "seed", "faults", "covered", "promises", "covered promises", "least left", "calm after", "seconds",
    "load", "platform", "violations",
)  # fmt: skip


def report(entries: Sequence[Entry]) -> list[str]:
    """Return the report as a page with a row for every seed. "covered": by the reserve for a job that lived
    through the whole schedule. "least left": seconds from the end of a covered job to its deadline."""
    broken = [entry for entry in entries if entry.violations]
    done = (
        f"{len(entries)} schedules, {sum(e.carried_out for e in entries)} faults carried out, "
        f"{sum(e.jobs for e in entries)} jobs, {sum(e.promised for e in entries)} promises, "
        f"{sum(e.judged for e in entries)} of them covered by the reserve."
    )
    summary = (
        f"{sum(e.covered for e in entries)} schedules covered throughout, "
        f"{len(broken)} schedules with a violation, "
        f"{sum(e.beyond_the_reserve for e in entries)} promises broken by faults beyond the reserve."
    )
    lines = [line for text in (done, summary) for line in textwrap.wrap(text, COLUMNS)]
    for name in sorted({entry.planted for entry in entries if entry.planted}):
        finder = next((e.seed for e in entries if e.planted == name and e.violations), None)
        lines.append(
            f"Planted defect {name}: {'not found' if finder is None else f'found by seed {finder}'}."
        )
    lines += ["", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    lines += [_row(entry) for entry in sorted(entries, key=lambda entry: entry.seed)]
    for entry in broken:
        lines += ["", f"Seed {entry.seed} (again: `make chaos SEED={entry.seed}`):", ""]
        for violation in entry.violations:
            lines += textwrap.wrap(f"* {violation}", COLUMNS, subsequent_indent="  ")
    for text in sorted({text for entry in entries for text in entry.without}):
        lines += ["", f"On this machine {text}."]
    return lines


def _row(entry: Entry) -> str:
    left = "" if entry.left_seconds is None else f"{entry.left_seconds:.0f} s"
    cells = (
        entry.seed, entry.carried_out, "yes" if entry.covered else "no", entry.promised, entry.judged, left,
        f"{entry.calm_seconds:.0f} s", f"{entry.wall_seconds:.0f}", f"{entry.load:.1f}",
        f"{entry.platform} ({entry.place})", len(entry.violations) or "none",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"
