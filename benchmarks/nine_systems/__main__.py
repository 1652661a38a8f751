"""All nine systems at once: a live run on emulated devices, or simulated days.

    python -m benchmarks.nine_systems --live [--minutes 20] [--seed 1] [--write docs/nine_systems.md]
    python -m benchmarks.nine_systems --simulated [--write docs/nine_systems.md]

`docs/nine_systems.md` describes the runs. Prints tables at the end; exits with 1 if a promise was missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from pathlib import Path
from textwrap import fill

from benchmarks.nine_systems.tables import Table, write_section

LIVE, SIMULATED = "live run", "simulated day"
#: Number of simulated days, each with the next seed.
DAYS = 3
#: Characters of a line of text in the document.
LINE = 110


def main() -> int:
    """Run the requested mode; return the exit status."""
    options = _options()
    if options.live:
        from benchmarks.nine_systems.live import run_live  # starts processes: not for the simulation

        # A shell's background commands ignore SIGINT; SIGTERM has to remove the platform too.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            result = run_live(options.minutes, options.seed)
        except KeyboardInterrupt:
            print("interrupted; the platform has been stopped", file=sys.stderr)
            return 130
        heading = (
            f"Measured on {platform.machine()} with {os.cpu_count()} cores, emulated devices and links, "
            f"{options.minutes:g} minutes, seed {options.seed}."
        )
        return _end(options.write, LIVE, heading, result.tables, result.missed)
    from benchmarks.nine_systems.serving import latency_table
    from benchmarks.nine_systems.simulated import simulate_day

    day = simulate_day(range(options.seed, options.seed + DAYS))
    return _end(options.write, SIMULATED, day.heading, [*day.tables, latency_table(options.seed)], day.missed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nine_systems", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--live", action="store_true", help="on a platform of its own")
    which.add_argument("--simulated", action="store_true", help="three days on a virtual clock")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of the live run, after measuring")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the faults, or of the first simulated day"
    )
    parser.add_argument("--write", type=Path, help="write the tables into this document")
    options = parser.parse_args()
    if not 1.0 <= options.minutes <= 600.0:
        parser.error(f"--minutes is {options.minutes:g}; it must be between 1 and 600")
    return options


def _end(document: Path | None, name: str, heading: str, tables: list[Table], missed: list[str]) -> int:
    text = "\n\n".join([fill(heading, LINE), *(table.text() for table in tables)])
    print(f"\n{text}\n")
    if document is not None:
        write_section(document, name, text)
    for each in missed:
        print(f"promise missed: {each}", file=sys.stderr)
    print("every promise was met" if not missed else f"{len(missed)} promises were missed", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
