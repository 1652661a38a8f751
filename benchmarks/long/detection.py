"""Time from an agent's death until its server is suspect, over many deaths, against the settings' band.

    python -m benchmarks.long.detection [--kills 50] [--agents 5] [--suspect-seconds 10] [--report-seconds 1]
                                   [--seed 1] [--json OUT]

It runs its own platform, with agents that have no work. In each round all die, each at a seeded moment within
a period of its reports; when all are suspect they are started again and report. A supervisor would restart a
dead agent at once, so each is first stopped (SIGSTOP) and killed after it was missed: the control plane
cannot distinguish the two.

The band: the last report is up to one period old when an agent dies, so the required silence
(`suspect_seconds`) may end that much earlier; leases are checked every second, so it may be noticed one check
later. Delays of a busy machine are not included.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from config.celery import app
from faults.reading import reader
from launch import Platform, PlatformSettings
from launch.waiting import wait_until

LOOK_SECONDS = float(app.conf.beat_schedule["expire-leases"]["schedule"])
_STATES = "select name, state, state_changed_at from cluster_server"


def main() -> None:
    options = argparse.ArgumentParser(prog="benchmarks.long.detection", description=__doc__.split("\n\n")[0])
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--agents", type=int, default=5)
    options.add_argument("--suspect-seconds", type=float, default=10.0)
    options.add_argument("--report-seconds", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    chance = random.Random(chosen.seed)
    found: list[float] = []
    with running(chosen.agents, chosen.suspect_seconds, chosen.report_seconds) as platform:
        while len(found) < chosen.kills:
            names = [f"node-{number}" for number in range(1, chosen.agents + 1)]
            found += one_round(platform, names[: chosen.kills - len(found)], chosen.report_seconds, chance)
            print(" ".join(f"{seconds:.2f}" for seconds in found[-len(names) :]), flush=True)
    low, high = chosen.suspect_seconds - chosen.report_seconds, chosen.suspect_seconds + LOOK_SECONDS
    outside = [seconds for seconds in found if not low <= seconds <= high]
    print(
        f"{len(found)} deaths, seconds until suspect: least {min(found):.2f}, mean "
        f"{statistics.mean(found):.2f}, most {max(found):.2f}; the band is {low:.2f} to {high:.2f}, "
        f"{len(outside)} outside"
    )
    if chosen.json:
        written = {"seconds": found, "band": [low, high], "outside": len(outside)}
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")


@contextmanager
def running(agents: int, suspect_seconds: float, report_seconds: float) -> Iterator[Platform]:
    """Run a platform with ``agents`` agents, all of them up."""
    data = Path(tempfile.mkdtemp(prefix="punctual-detection-"))
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18850, first_worker_port=29500, agents=agents, slots=1, warm_workers=0,
            examples=False,
            environment={
                "SUSPECT_SECONDS": str(suspect_seconds), "REPORT_SECONDS": str(report_seconds),
                "FENCE_SECONDS": str(10 * suspect_seconds),
            },
        )
    )  # fmt: skip
    try:
        platform.start()
        yield platform
    finally:
        if platform.is_running:
            platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)


def one_round(
    platform: Platform, names: list[str], report_seconds: float, chance: random.Random
) -> list[float]:
    """Let these agents die, and restart them when they were missed. Return the seconds until each was."""
    rows = reader(platform.database_url)

    def changed_at(state: str) -> dict[str, datetime]:
        return {row["name"]: row["state_changed_at"] for row in rows(_STATES) if row["state"] == state}

    wait_for(lambda: changed_at("up").keys() >= set(names), "all servers are up")
    # By now each has reported a few times.
    time.sleep(2 * report_seconds)
    died_at: dict[str, datetime] = {}
    began = time.monotonic()
    for moment, name in sorted((chance.uniform(0.0, report_seconds), name) for name in names):
        time.sleep(max(0.0, moment - (time.monotonic() - began)))
        platform.process(f"agent-{name}").signal(signal.SIGSTOP)
        died_at[name] = datetime.now(UTC)
    wait_for(lambda: changed_at("suspect").keys() >= set(names), "all servers are suspect")
    missed_at = changed_at("suspect")
    for name in names:
        platform.process(f"agent-{name}").signal(signal.SIGKILL)
    return [(missed_at[name] - died_at[name]).total_seconds() for name in names]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    if not wait_until(condition, timeout_seconds=120.0, interval_seconds=0.1):
        raise SystemExit(f"not within 120 s: {what}")


if __name__ == "__main__":
    main()
