"""`python -m tests.lanes [pytest's arguments]`: all tests in four lanes beside each other.

The end-to-end tests spend most of their time waiting for emulated accelerators, and those of agents and pages
for workers, servers and browsers; what computes runs meanwhile. There are more lanes than processors, because
all of them but one wait for a third of their time. Everything but the tests that are done by a clock has a
lower priority. What the buffered lanes print comes at the end, whole.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
#: What is done by a clock, and with real processes: these tests wait more than they compute.
BY_THE_CLOCK = ("end_to_end", "chaos", "agent")
#: Folders of one lane each, of about the same length. All that is not named here is in the lane that prints
#: as it goes.
LANES = (
    BY_THE_CLOCK,
    ("control_plane", "lending/control_plane"),
    ("api", "dashboard", "platform", "simulation/product", "streams"),
)
#: So low that the tests by the clock have most of the processors' time, whatever the other lanes compute.
LOWER_PRIORITY = ["nice", "-n", "10"]


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
    pytest = [sys.executable, "-m", "pytest", *arguments]
    commands = [
        [*([] if lane is BY_THE_CLOCK else LOWER_PRIORITY), *pytest, *(str(TESTS / name) for name in lane)]
        for lane in LANES
    ]
    ignored = [f"--ignore={TESTS / name}" for lane in LANES for name in lane]
    with ExitStack() as folders:
        lanes = [
            Lane(command, Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="tests-"))))
            for command in commands
        ]
        running = [lane.start() for lane in lanes]
        try:
            status, last = _stream([*LOWER_PRIORITY, *pytest, str(TESTS), *ignored])
            statuses = [status, *(process.wait() for process in running)]
        except KeyboardInterrupt:
            for process in running:
                process.wait()
            return 130
        printed = [lane.printed() for lane in lanes]
    print(*printed, sep="", end="", flush=True)
    print(_together([last, *(text.strip().rsplit("\n", 1)[-1] for text in printed)]))
    return int(any(statuses))


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
