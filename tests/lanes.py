"""`python -m tests.lanes [--compiling PID] [pytest's arguments]`: all tests in six lanes beside each other.

The end-to-end tests spend most of their time waiting for emulated accelerators, and those of agents and pages
for workers, servers and browsers; what computes runs meanwhile. There are more lanes than processors, because
all of them but one wait for a third of their time. Everything but the tests that are done by a clock has a
lower priority. What the buffered lanes print comes at the end, whole.

While the decision core is compiled by the process `PID`, agents are tested: they decide nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

TESTS = Path(__file__).parent
#: What is done by a clock, and with real processes: these tests wait more than they compute.
BY_THE_CLOCK = ("end_to_end", "chaos")
AGENTS = ("agent",)
#: Folders of one lane each, of about the same length. All that is not named here is in the lane that prints
#: as it goes.
LANES = (
    AGENTS,
    BY_THE_CLOCK,
    ("control_plane", "lending/control_plane"),
    ("api", "dashboard", "platform", "simulation/product", "streams"),
    ("core", "policies"),
)
#: So low that the tests by the clock have most of the processors' time, and not so low that what is computed
#: beside them starves.
LOWER_PRIORITY = ["nice", "-n", "5"]


@dataclass(frozen=True)
class Lane:
    """One run of pytest whose output is kept in ``folder``, and its temporary files too: pytest closes the
    folder that they would otherwise have in common whenever one begins.
    """

    command: list[str]
    folder: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Begin, printing into a file."""
        self.folder.chmod(0o755)
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(self.folder)}
        with (self.folder / "printed").open("wb") as output:
            return subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def printed(self) -> str:
        """All that it has printed."""
        return (self.folder / "printed").read_text(errors="replace")


def main(arguments: list[str]) -> int:
    """Run all lanes; returns 0 when every one passed."""
    own = argparse.ArgumentParser(prog="tests.lanes", add_help=False, allow_abbrev=False)
    own.add_argument("--compiling", type=int, metavar="PID")
    options, arguments = own.parse_known_args(arguments)
    pytest = [sys.executable, "-m", "pytest", *arguments]
    computing = [*LOWER_PRIORITY, *pytest]
    commands = [
        [*(pytest if lane in (AGENTS, BY_THE_CLOCK) else computing), *(str(TESTS / name) for name in lane)]
        for lane in LANES
    ]
    ignored = [f"--ignore={TESTS / name}" for lane in LANES for name in lane]
    with ExitStack() as folders:
        lanes = [
            Lane(command, Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="tests-"))))
            for command in commands
        ]
        running = [lanes[0].start()]
        _wait_for(options.compiling)
        running += [lane.start() for lane in lanes[1:]]
        try:
            status, last = _stream([*computing, str(TESTS), *ignored])
            statuses = [status, *(process.wait() for process in running)]
        except KeyboardInterrupt:
            for process in running:
                process.wait()
            return 130
        printed = [lane.printed() for lane in lanes]
    print(*printed, sep="", end="", flush=True)
    print(_together([last, *(text.strip().rsplit("\n", 1)[-1] for text in printed)]))
    return int(any(statuses))


def _wait_for(pid: int | None) -> None:
    """Until the process has ended; its parent may look at it later."""
    with suppress(psutil.Error):
        while pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.5)


def _stream(command: list[str]) -> tuple[int, str]:
    """Run, printing as it goes. Returns the exit status and the last line."""
    line = last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        # By character: the dots of a running file are to be seen as they come.
        while character := process.stdout.read(1):
            print(character, end="", flush=True)
            if character == "\n":
                line, last = "", line
            else:
                line += character
    return process.returncode, last


def _together(closing: list[str]) -> str:
    """One closing line for all lanes."""
    counts: Counter[str] = Counter()
    for line in closing:
        for number, what in re.findall(
            r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|warnings?)", line
        ):
            counts[what] += int(number)
    return "all lanes: " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
