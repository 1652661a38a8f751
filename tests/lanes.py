"""`python -m tests.lanes [pytest's arguments]`: all tests in two lanes beside each other.

The end-to-end tests spend most of their time waiting for emulated accelerators, so everything else runs meanwhile, at a
lower priority: deadlines of the end-to-end tests do not depend on it. What the end-to-end lane prints comes at the end, whole.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
END_TO_END = TESTS / "end_to_end"
LOWER_PRIORITY = 5


def main(arguments: list[str]) -> int:
    """Run both lanes; returns 0 when both passed."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        tempfile.TemporaryDirectory(prefix="end-to-end-") as folder,
    ):
        # Each lane has temporary files of its own: pytest closes their common folder to others whenever one begins.
        Path(folder).chmod(0o755)
        end_to_end = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments, str(END_TO_END)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTEST_DEBUG_TEMPROOT": folder},
        )
        try:
            rest = _run([sys.executable, "-m", "pytest", *arguments, str(TESTS), f"--ignore={END_TO_END}"])
            status = end_to_end.wait()
        except KeyboardInterrupt:
            end_to_end.wait()
            return 130
        output.seek(0)
        printed = output.read()
    print(printed, end="", flush=True)
    print(_both(rest[1], printed))
    return int(bool(rest[0] or status))


def _run(command: list[str]) -> tuple[int, str]:
    """Run at a lower priority, printing as it goes. Returns the exit status and the last line."""
    lower = ["nice", "-n", str(LOWER_PRIORITY), *command]
    line = last = ""
    with subprocess.Popen(lower, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        # By character: the dots of a running file are to be seen as they come.
        while character := process.stdout.read(1):
            print(character, end="", flush=True)
            if character == "\n":
                line, last = "", line
            else:
                line += character
    return process.returncode, last


def _both(first: str, second: str) -> str:
    """One closing line for both lanes."""
    counts: Counter[str] = Counter()
    for line in (first, second.strip().rsplit("\n", 1)[-1]):
        for number, what in re.findall(
            r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|warnings?)", line
        ):
            counts[what] += int(number)
    return "both lanes: " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
