"""Measures against moving servers back and forth: the lending rule with hysteresis and a minimum time, beside
the published one.

    python -m benchmarks.lending.lending_steadiness [--days 14] [--seeds 2] [--servers 2 16 520]
        [--curve daily bursty]

Follows the rule over usage curves, once as published and once for each setting, with the last sample as its
forecast. Printed are the moves of servers over those of the published rule, the share of the cluster on loan
over its share, and the periods in which a server was missing. Simulated: the rule alone, without jobs.
"""

from __future__ import annotations

import argparse

import numpy as np

from lending.core.lending_rule import HEADROOM_FRACTION, HYSTERESIS_FRACTION, LendingRule
from lending.core.replay import LendingHistory, follow
from simulation.inference.catalogue import read_usage

PERIODS_PER_DAY = 288
#: Hysteresis as a share of the cluster, and the minimum time in periods of five minutes.
SETTINGS = (
    (0.0, 0),
    (HYSTERESIS_FRACTION, 0),
    (0.0, 6),
    (HYSTERESIS_FRACTION, 2),
    (HYSTERESIS_FRACTION, 6),
    (HYSTERESIS_FRACTION, 12),
    (2.5 * HYSTERESIS_FRACTION, 6),
)


def main() -> None:
    """Print one line for each curve, size and setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 16, 520])
    parser.add_argument("--curve", nargs="+", default=["daily", "bursty"])
    arguments = parser.parse_args()
    print(f"{'curve':8}{'servers':>8}{'hysteresis':>12}{'periods':>9}{'moves':>8}{'on loan':>9}{'short':>8}")
    for curve in arguments.curve:
        usages = [
            read_usage(curve, seed=seed).usage[: arguments.days * PERIODS_PER_DAY]
            for seed in range(arguments.seeds)
        ]
        for servers in arguments.servers:
            plain = [follow(LendingRule(servers, headroom(servers)), usage) for usage in usages]
            for hysteresis, hold in SETTINGS:
                rule = LendingRule(servers, headroom(servers), hysteresis_fraction=hysteresis)
                steady = [follow(rule, usage, hold_periods=hold) for usage in usages]
                moves = _moves(steady) / max(1, _moves(plain))
                lent = _on_loan(steady) / max(1e-9, _on_loan(plain))
                short = sum(int((one.shortfall > 0).sum()) for one in steady)
                print(f"{curve:8}{servers:8}{hysteresis:12.2f}{hold:9}{moves:8.2f}{lent:9.2f}{short:8}")


def headroom(servers: int) -> float:
    """Return the headroom: two per cent, but none with few servers, of which it would be a whole one."""
    return HEADROOM_FRACTION if servers > 10 else 0.0


def _moves(histories: list[LendingHistory]) -> int:
    return sum(int(one.lent.sum() + one.reclaimed.sum()) for one in histories)


def _on_loan(histories: list[LendingHistory]) -> float:
    return float(np.mean([one.on_loan.mean() for one in histories]))


if __name__ == "__main__":
    main()
