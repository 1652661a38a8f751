"""`manage.py chaos`: kill and freeze processes of one's own cluster by a seeded schedule, and check
invariants."""

from __future__ import annotations

import random
import signal
import threading
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg2
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from faults.injecting import Means, carry_out
from faults.on_a_cluster import ChaosRefusedError, confirm, database, judge, look, targets
from faults.processes import find
from faults.schedule import SEVERAL_PROCESSES, schedule
from launch.folders import Folders

LONGEST_SECONDS = 3600.0


class Command(BaseCommand):
    """The generator and the invariants of `make chaos`, on the processes of this machine alone."""

    help = (
        "Kill and freeze processes of a platform on this machine by a seeded schedule, and say what did not "
        "hold. Agents on other machines, links and disks are left alone."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What, for how long, and on which cluster."""
        parser.add_argument(
            "--seed", type=int, help="seed of the schedule; the same seed gives the same schedule"
        )
        parser.add_argument("--seconds", type=float, default=60.0, help="length of the schedule (60)")
        parser.add_argument(
            "--wait", type=float, default=300.0, help="longest wait for recovery afterwards, in seconds (300)"
        )
        parser.add_argument("--data", type=Path, help="the platform's data folder (PUNCTUAL_DATA)")
        parser.add_argument(
            "--part", action="append", default=[], help="only this kind of process; repeatable"
        )
        parser.add_argument("--dry-run", action="store_true", help="print the schedule and do nothing")
        parser.add_argument(
            "--yes-i-mean-this-cluster", metavar="NAME", help="the name of the cluster whose jobs may suffer"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Ends with an error where something did not hold."""
        seconds, wait, seed = options["seconds"], options["wait"], options["seed"]
        if not 1.0 <= seconds <= LONGEST_SECONDS or not 1.0 <= wait <= LONGEST_SECONDS:
            raise CommandError(f"--seconds and --wait are from 1 to {LONGEST_SECONDS:.0f}")
        if seed is not None and seed < 0:
            raise CommandError("--seed is a whole number that is not negative")
        seed = random.SystemRandom().randrange(10**6) if seed is None else seed
        folders = Folders(Path(options["data"] or settings.DATA_DIR).absolute())
        try:
            found = targets(folders, options["part"])
            several = {target for target in found if target.part in SEVERAL_PROCESSES}
            faults = schedule(seed, seconds, set(found) - several, servers=several)
            self.stdout.write(f"seed {seed}: {len(faults)} faults in {seconds:g} s on {folders.data}")
            if options["dry_run"]:
                for fault in faults:
                    self.stdout.write(str(fault))
                return
            rows = database(folders)
            confirm(options["yes_i_mean_this_cluster"], rows)
            before = look(rows)
            carry_out(
                faults, Means(find=lambda: find(folders)), stop=_stopped_by_signals(), say=self.stdout.write
            )
            self.stdout.write(f"waiting for calm, {wait:g} s at most")
            broken = judge(folders, rows, before, wait)
        except ChaosRefusedError as error:
            raise CommandError(str(error)) from None
        except psycopg2.OperationalError as error:
            raise CommandError(f"the platform's database does not answer: {error}".strip()) from None
        for violation in broken:
            self.stdout.write(f"BROKEN  {violation}")
        if broken:
            raise CommandError(f"{len(broken)} violations; the same schedule again: --seed {seed}")
        self.stdout.write(
            f"everything holds ({len(before.jobs)} unfinished jobs, {len(before.servers)} servers looked at)"
        )


def _stopped_by_signals() -> threading.Event:
    """Return an event that Ctrl-C or SIGTERM sets: frozen processes then continue, and the result is
    judged."""
    stop = threading.Event()

    def request(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, request)
    return stop
