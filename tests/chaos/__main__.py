"""`python -m tests.chaos --minutes 10 [--seed N] [--json OUT]`: what `make hostile` runs.

Ends with 1 if an invariant broke."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.chaos.run import chaos


def main() -> int:
    """Run and report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of attacks, beside start and end [10]")
    parser.add_argument("--seed", type=int, default=None, help="the same order of the same attacks again")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--evidence", type=Path, help="keep what is known of the run in this folder, whatever it finds"
    )
    chosen = parser.parse_args()
    if not 0 < chosen.minutes <= 24 * 60:
        parser.error("--minutes must be above 0 and at most 1440")
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(10**6)
    report = chaos(
        chosen.minutes * 60,
        seed,
        timing=True,
        say=lambda text: print(text, flush=True),
        evidence_folder=chosen.evidence,
        keep_always=chosen.evidence is not None,
    )
    print("\n".join(["", *report.lines()]), flush=True)
    if chosen.json:
        chosen.json.write_text(report.to_json())
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
