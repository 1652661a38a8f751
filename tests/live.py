"""`python -m tests.live [--slow] [paths]`: runs the tests marked `live`, one after the other.

They depend on the real clock and need an otherwise idle machine. A test that fails runs once more, alone, in
a pytest of its own. If it passes then, both outputs are printed and `tests/flaky.json` counts it as flaky.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

TESTS = Path(__file__).parent
FLAKY = TESTS / "flaky.json"
QUICK = "live and not slow and not images"
ALL = "live and not images"
PYTEST_NO_TESTS = 5


@dataclass(frozen=True)
class Outcome:
    """One run of pytest: its exit status, the counts of its closing line, and the output of its tests."""

    status: int
    passed: int = 0
    skipped: int = 0
    #: Node ids.
    failed: Sequence[str] = ()
    #: By class name and name, as in a junit report.
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)

    def output_of(self, node_id: str) -> str:
        """Return traceback and captured output of a test."""
        path, _, name = node_id.partition("::")
        return self.outputs.get((path.removesuffix(".py").replace("/", "."), name), "no output was recorded")


def run(markers: str, selected: Sequence[str]) -> Outcome:
    """Run pytest on ``selected`` paths or node ids, printing as it goes."""
    with tempfile.TemporaryDirectory(prefix="punctual-live-") as folder:
        report, cache = Path(folder) / "report.xml", Path(folder) / "cache"
        command = [sys.executable, "-m", "pytest", "-m", markers, f"--junitxml={report}"]
        command += ["-o", f"cache_dir={cache}", "-o", "junit_logging=all", *selected]
        status = subprocess.run(command, check=False).returncode
        if not report.exists():
            return Outcome(status or 1)
        last_failed = cache / "v" / "cache" / "lastfailed"
        failed = list(json.loads(last_failed.read_text())) if last_failed.exists() else []
        cases = list(ET.parse(report).getroot().iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    broken = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    outputs = {
        (case.get("classname", ""), case.get("name", "")): "\n".join(part.text or "" for part in case)
        for case in cases
    }
    return Outcome(status, len(cases) - skipped - broken, skipped, failed, outputs)


def record_flaky(flaky: dict[str, tuple[str, str]]) -> None:
    """Count each flaky test, with the day and the first line of its failure."""
    counts = json.loads(FLAKY.read_text()) if FLAKY.exists() else {}
    for name, (first, _) in sorted(flaky.items()):
        lines = [line.strip() for line in first.splitlines() if line.startswith("E ")]
        counts[name] = {
            "times": counts.get(name, {}).get("times", 0) + 1,
            "last": datetime.now(UTC).date().isoformat(),
            "failure": (lines or first.strip().splitlines() or [""])[0][:300],
        }
    if flaky:
        FLAKY.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Run all live tests, then each failed one alone; return 0 if every test passed in its last run."""
    parser = argparse.ArgumentParser(prog="python -m tests.live", description=__doc__)
    parser.add_argument("--slow", action="store_true", help="run the slow ones too")
    parser.add_argument("paths", nargs="*", default=["tests"], help="folders, files or node ids")
    asked = parser.parse_args(arguments)
    markers = ALL if asked.slow else QUICK
    whole = run(markers, asked.paths)
    if whole.status not in (0, 1, PYTEST_NO_TESTS):
        print(f"FAILED: pytest ended with status {whole.status}", file=sys.stderr)
        return 1
    flaky: dict[str, tuple[str, str]] = {}
    failed = []
    for name in whole.failed:
        print(f"== once more, alone: {name}", flush=True)
        again = run(ALL, [name])
        if again.status == 0:
            flaky[name] = (whole.output_of(name), again.output_of(name))
        else:
            failed.append(name)
    record_flaky(flaky)
    return _summary(whole, flaky, failed)


def _summary(whole: Outcome, flaky: dict[str, tuple[str, str]], failed: Sequence[str]) -> int:
    for name, (first, second) in flaky.items():
        print(f"== flaky: {name}\n-- first\n{first}\n-- alone\n{second}")
    for name in failed:
        print(f"FAILED {name} (twice)")
    for name in flaky:
        print(f"FLAKY {name}")
    if flaky:
        print(f"{len(flaky)} flaky: see tests/flaky.json")
    passed = whole.passed + len(flaky)
    print(f"{passed} passed, {len(failed)} failed, {whole.skipped} skipped")
    return int(bool(failed) or whole.status not in (0, 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
