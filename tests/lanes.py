"""`python -m tests.lanes [pytest's arguments]`: all that `make test` does, several things beside each other.

The decision core is compiled, a database made, code linted and checked, and the tests run in lanes: some
folders each, by a pytest of their own. The end-to-end tests spend most of their time waiting for emulated
accelerators, those of agents and pages for workers, servers and browsers; what computes runs meanwhile, at a
lower priority than what is done by a clock. One more than there are processors computes at a time, so that
none is idle while a lane waits, and two more once nothing is done by a clock; what takes longest begins
first. What each prints comes when it ends, whole.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.plugins.embedded_servers import CLUSTER_VARIABLE

TESTS = Path(__file__).parent
PROJECT = TESTS.parent
PYTEST = (sys.executable, "-m", "pytest")
#: So low that what is done by a clock has most of the processors' time, and not so low that what is computed
#: beside it starves.
LOWER_PRIORITY = ("nice", "-n", "5")
MOST_AT_ONCE = (os.cpu_count() or 1) + 1


@dataclass(frozen=True)
class Lane:
    """Something that runs by itself: a pytest on some tests, or a command."""

    name: str
    #: Patterns of folders and files.
    tests: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    #: It waits more than it computes, or others wait for it: it begins at once, and before the rest.
    by_the_clock: bool = False
    #: It begins once the core is compiled and the database is there: it would make them again.
    prepared: bool = True

    def paths(self) -> list[str]:
        """The folders and files of its tests."""
        return [str(path) for pattern in self.tests for path in sorted(TESTS.glob(pattern))]


COMPILATION = Lane(
    "compilation", command=(sys.executable, "-m", "launch.compile_core"), by_the_clock=True, prepared=False
)
#: In a folder of its own, from which test databases are copied.
DATABASE = Lane(
    "database",
    command=(sys.executable, "-m", "tests.plugins.migrated_cluster"),
    by_the_clock=True,
    prepared=False,
)
PREPARATIONS = (COMPILATION, DATABASE)
#: In the order in which they begin: what takes longest first, so that all end at about the same time.
LANES = (
    *PREPARATIONS,
    Lane("agents", ("agent",), by_the_clock=True, prepared=False),
    Lane("lint", command=("make", "--no-print-directory", "lint"), prepared=False),
    Lane("checks", command=("make", "--no-print-directory", "check"), prepared=False),
    # It needs neither the decision core nor a database: it fills the time until both are there.
    Lane("communication", ("communication",), prepared=False),
    # With real processes: these tests wait more than they compute.
    Lane("end to end", ("end_to_end", "chaos"), by_the_clock=True),
    Lane("control plane, m to z", ("control_plane/test_[m-z]*.py", "control_plane/recoveries")),
    Lane("simulation", ("simulation",)),
    Lane("control plane, a to l", ("control_plane/test_[a-l]*.py", "lending/control_plane")),
    Lane("dashboard", ("dashboard",)),
    Lane("runtime", ("runtime",)),
    Lane("platform", ("platform", "streams")),
    Lane("api", ("api",)),
    Lane("core", ("core", "policies")),
)
#: All tests that no other lane has.
REST = Lane("rest", (".",))
SHORTER_THAN_THE_REST = 2
ALL_LANES = (*LANES[:-SHORTER_THAN_THE_REST], REST, *LANES[-SHORTER_THAN_THE_REST:])


@dataclass
class Running:
    """A lane that has begun. What it prints goes into ``folder``, and its temporary files too: pytest closes
    the folder that runs would otherwise have in common whenever one begins.
    """

    lane: Lane
    folder: Path
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, lane: Lane, command: Sequence[str], folder: Path, **environment: str) -> Running:
        """Begin, printing into a file. ``environment``: what it has beside this process's."""
        folder.chmod(0o755)
        priority = () if lane.by_the_clock else LOWER_PRIORITY
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(folder), **environment}
        with (folder / "printed").open("wb") as output:
            process = subprocess.Popen(
                [*priority, *command], stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=PROJECT
            )
        return cls(lane, folder, process)

    def printed(self) -> str:
        """All that it has printed."""
        return (self.folder / "printed").read_text(errors="replace")


@dataclass
class Run:
    """All lanes, those that wait, those that run, and what became of those that ended."""

    commands: dict[Lane, Sequence[str]]
    folders: ExitStack
    environment: dict[str, str] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    closing: list[str] = field(default_factory=list)

    def go_on(self) -> bool:
        """Begin what may begin and look at what has ended; False when nothing is left."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            self._ended(one)
        for lane in [lane for lane in self.commands if self._may_begin(lane)]:
            if lane.by_the_clock or self._computing() < self._most_at_once():
                folder = Path(self.folders.enter_context(tempfile.TemporaryDirectory(prefix="tests-")))
                command = self.commands.pop(lane)
                if lane == DATABASE:
                    command = [*command, str(folder)]
                self.running.append(Running.begin(lane, command, folder, **self.environment))
        return bool(self.running)

    def _may_begin(self, lane: Lane) -> bool:
        under_way = {*self.commands, *(one.lane for one in self.running)}
        return not (lane.prepared and under_way.intersection(PREPARATIONS))

    def _most_at_once(self) -> int:
        """Of lanes that compute. Once nothing is done by a clock, those that are left wait now and then."""
        return MOST_AT_ONCE + (not any(one.lane.by_the_clock for one in self.running))

    def _computing(self) -> int:
        return sum(not one.lane.by_the_clock for one in self.running)

    def _ended(self, one: Running) -> None:
        printed = one.printed()
        status = one.process.returncode
        seconds = time.monotonic() - one.began
        outcome = f"exit {status}" if status else "passed"
        print(f"== {one.lane.name}: {outcome} after {seconds:.0f} s", printed, sep="\n", flush=True)
        if status:
            self.failed.append(one.lane.name)
        elif one.lane == DATABASE:
            self.environment[CLUSTER_VARIABLE] = str(one.folder)
        if one.lane.tests:
            self.closing.append(printed.strip().rsplit("\n", 1)[-1])


def main(arguments: Sequence[str]) -> int:
    """Run all lanes; returns 0 when every one passed."""
    print(f"beside each other: {', '.join(lane.name for lane in ALL_LANES)}", flush=True)
    with ExitStack() as folders:
        run = Run({lane: command_of(lane, arguments) for lane in ALL_LANES}, folders)
        try:
            while run.go_on():
                time.sleep(0.2)
        except KeyboardInterrupt:
            for one in run.running:
                one.process.wait()
            return 130
    print(together(run.closing))
    if run.failed:
        print(f"FAILED: {', '.join(run.failed)} (see above)", file=sys.stderr)
    return int(bool(run.failed))


def command_of(lane: Lane, arguments: Sequence[str]) -> Sequence[str]:
    """What the lane runs, with pytest's ``arguments``."""
    if not lane.tests:
        return lane.command
    if lane == REST:
        others = [path for other in LANES for path in other.paths()]
        return [*PYTEST, *arguments, str(TESTS), *(f"--ignore={path}" for path in others)]
    return [*PYTEST, *arguments, *lane.paths()]


def together(closing: Sequence[str]) -> str:
    """One closing line for all lanes, from those of each."""
    counts: Counter[str] = Counter()
    for line in closing:
        for number, what in re.findall(
            r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|warnings?)", line
        ):
            counts[what] += int(number)
    return "all lanes: " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
