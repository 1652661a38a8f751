"""`python -m tests.faults [--schedules 200] [--seed N] [--record FILE]`: what `make chaos` runs.

Resumes where it was stopped: seeds in the record are not run again. Ends with 1 if an invariant broke.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from faults.clocks import NoClocksError
from launch.errors import LaunchError
from tests.faults import record
from tests.faults.planted import DEFECTS
from tests.faults.record import Entry
from tests.faults.run import measure, run_schedule
from tests.faults.scene import RESERVE_SERVERS, Scene, running_scene

RECORDS = Path("data/chaos")
#: After this many schedules a platform has enough logs, rows and history; the next schedule gets a new one.
PER_PLATFORM = 20


def main() -> int:
    """Run and report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200, help="how many seeds [200]")
    parser.add_argument("--first-seed", type=int, default=1, help="the first of them [1]")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one schedule [30]")
    parser.add_argument("--seed", type=int, help="run this seed alone, also when it is in the record")
    parser.add_argument("--clock", action="store_true", help="let clocks jump too; needs libfaketime")
    parser.add_argument(
        "--reserve", type=int, choices=(1, 2), default=RESERVE_SERVERS, help="servers in reserve [1]"
    )
    parser.add_argument(
        "--plant", choices=sorted(DEFECTS), default="", help="plant this defect; stops when it is found"
    )
    parser.add_argument("--servers", action="store_true", help="let faults befall whole servers too")
    parser.add_argument(
        "--record",
        type=Path,
        help=f"[{RECORDS}/schedules.jsonl, or a name of the other options]",
    )
    parser.add_argument(
        "--evidence", type=Path, help="where to keep what is known of broken schedules [/tmp]"
    )
    parser.add_argument("--report", action="store_true", help="only print the report of the record")
    chosen = parser.parse_args()
    if chosen.schedules < 1 or chosen.first_seed < 0 or not 1.0 <= chosen.seconds <= 3600.0:
        parser.error("--schedules is at least 1, --first-seed at least 0, --seconds from 1 to 3600")
    if chosen.evidence is not None:
        chosen.evidence.mkdir(parents=True, exist_ok=True)
    file = chosen.record or _usual_record(chosen.clock, chosen.servers, chosen.reserve, chosen.plant)
    done = record.read(file)
    seeds = record.to_do(done, chosen.first_seed, chosen.schedules, chosen.seconds)
    if chosen.seed is not None:
        seeds = [chosen.seed]
    if chosen.report:
        seeds = []
    ran: list[int] = []
    try:
        while seeds:
            with running_scene(
                with_clocks=chosen.clock,
                whole_servers=chosen.servers,
                reserve_servers=chosen.reserve,
                planted=chosen.plant,
            ) as scene:
                ran += _on_one_platform(scene, seeds, chosen.seconds, file, chosen.evidence, _say)
            seeds = [seed for seed in seeds if seed not in ran]
            if chosen.plant and any(entry.violations for entry in record.read(file)):
                break
    except KeyboardInterrupt:
        _say("stopped; the same command goes on with the next seed")
    except NoClocksError as error:
        print(f"no clock can be turned: {error} (pip install libfaketime)", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"the platform could not be started: {error}", file=sys.stderr)
        return 2
    entries = record.read(file)
    if chosen.seed is not None:
        entries = [entry for entry in entries if entry.seed == chosen.seed]
    print("\n".join(["", *record.report(entries)]), flush=True)
    return int(any(entry.violations for entry in entries))


def _usual_record(clocks: bool, servers: bool, reserve: int, planted: str) -> Path:
    name = "servers" if servers else "clocks" if clocks else "schedules"
    more = [f"reserve-{reserve}"] if reserve != RESERVE_SERVERS else []
    return RECORDS / f"{'-'.join([name, *more, *([planted] if planted else [])])}.jsonl"


def _on_one_platform(
    scene: Scene,
    seeds: list[int],
    seconds: float,
    file: Path,
    evidence: Path | None,
    say: Callable[[str], None],
) -> list[int]:
    """Run as many of the seeds as one platform serves; a schedule that broke an invariant is its last."""
    name = uuid.uuid4().hex[:6]
    ran: list[int] = []
    say(f"platform {name} runs")
    for text in scene.without:
        say(f"on this machine {text}")
    speed = measure(scene)
    say(f"measured in peace: {speed:.1f} iterations a second at two GPUs")
    for place, seed in enumerate(seeds[:PER_PLATFORM], start=1):
        say(f"seed {seed}")
        entry = run_schedule(
            scene, seed, seconds, speed, evidence_folder=evidence, say=lambda text: say(f"  {text}")
        )
        entry.platform, entry.place, entry.without = name, place, scene.without
        record.append(file, entry)
        record.write_report(file)
        ran.append(seed)
        say(_describe(entry))
        if entry.violations:
            break
    return ran


def _describe(entry: Entry) -> str:
    end = "holds" if not entry.violations else "BROKEN: " + "; ".join(entry.violations)
    return f"seed {entry.seed}: {entry.carried_out} faults, calm after {entry.calm_seconds:.0f} s, {end}"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
