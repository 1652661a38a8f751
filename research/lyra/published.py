"""Published values of Lyra's evaluation with their places, and contradictions among them.

Seconds and shares are those of the tables; ratios are the baseline's value over the scheme's. None is an
empty cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SOURCE = "Tables 3.5 to 3.10 of Lyra's evaluation (section 3.7)"


class Reduction(NamedTuple):
    """Ratios to the baseline (mean, median, 95th percentile of queuing time and of JCT), usage, preemptions
    per job."""

    #: The baseline's mean queuing time over the scheme's.
    queuing_mean: float
    #: The baseline's median queuing time over the scheme's.
    queuing_p50: float
    #: The baseline's 95th percentile of queuing time over the scheme's.
    queuing_p95: float
    #: The baseline's mean completion time over the scheme's.
    jct_mean: float
    #: The baseline's median completion time over the scheme's.
    jct_p50: float
    #: The baseline's 95th percentile of completion time over the scheme's.
    jct_p95: float
    #: Share of the training cluster's GPUs in use, 0 to 1.
    training_usage: float | None = None
    #: Share of both clusters' GPUs in use, 0 to 1.
    overall_usage: float | None = None
    #: Preemptions per job.
    preemptions: float | None = None


#: The baseline in seconds, and its usage.
BASELINE = Reduction(3072, 55, 8357, 16_610, 791, 82_933, 0.72, 0.52)

#: Table 3.5 by the names of `schemes.py`.
TABLE_35: dict[str, Reduction] = {
    "basic": Reduction(1.53, 2.12, 2.49, 1.48, 1.39, 1.47, 0.86, 0.65, 0.1224),
    "advanced": Reduction(1.67, 2.29, 2.58, 1.59, 1.51, 1.47, 0.86, 0.68, 0.0735),
    "heterogeneous": Reduction(1.58, 2.04, 2.34, 1.37, 1.31, 1.45, 0.78, 0.64, 0.1123),
    "ideal": Reduction(2.66, 2.50, 2.61, 1.87, 1.87, 2.02, 0.93, 0.72, 0.0572),
    "opportunistic": Reduction(1.10, 2.50, 1.59, 1.12, 1.06, 1.22, 0.74, 0.63, 0.1935),
    "loaning_random": Reduction(1.06, 2.39, 1.53, 1.13, 1.08, 1.32, 0.76, 0.64, 0.2089),
    "loaning_scf": Reduction(1.10, 2.29, 1.67, 1.11, 1.14, 1.33, 0.76, 0.64, 0.1748),
    "loaning": Reduction(1.39, 2.39, 2.44, 1.28, 1.19, 1.43, 0.76, 0.65, 0.1494),
    "gandiva": Reduction(1.01, 1.12, 1.26, 1.04, 1.05, 1.03, 0.79),
    "afs": Reduction(1.35, 1.17, 2.40, 1.10, 1.15, 1.36, 0.95),
    "pollux": Reduction(1.10, 0.95, 1.42, 1.14, 1.10, 1.15, 0.93),
    "scaling": Reduction(1.35, 1.17, 2.40, 1.38, 1.31, 1.44, 0.92),
    "tuned": Reduction(1.50, 1.28, 3.04, 1.62, 1.40, 1.58, 0.91),
}

#: Table 3.6: naive placement, in seconds, and preemptions per job.
TABLE_36 = {
    "basic": (2231.0, 13_872.0, 0.1322),
    "advanced": (1944.0, 12_474.0, 0.1004),
    "ideal": (1273.0, 9982.0, 0.1093),
}

#: Table 3.7: jobs on servers on loan; mean, median and 95th percentile ratios of queuing time and JCT.
TABLE_37 = (4.09, 4.68, 3.22, 1.68, 1.55, 1.68)

#: Table 3.8: queuing time and JCT in seconds at 50, 75, 95 and 99 %; the rows of AFS and Pollux are named as
#: in Table 3.5 (4.8 item 5).
TABLE_38: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "baseline": ((55, 1892, 8357, 14_323), (791, 29_163, 82_933, 376_513)),
    "gandiva": ((49, 1764, 6632, 11_806), (755, 27_244, 80_567, 323_626)),
    "afs": ((47, 772, 3488, 9031), (686, 20_143, 60_883, 247_435)),
    "pollux": ((58, 1297, 5883, 11_124), (721, 12_304, 72_123, 323_513)),
    "scaling": ((47, 697, 3475, 8731), (602, 12_072, 57_597, 223_815)),
    "tuned": ((43, 566, 2749, 7112), (564, 9293, 52_458, 194_391)),
}

#: Table 3.9: share of wrong estimates: reductions of queuing time and JCT.
TABLE_39 = {0.2: (2.21, 1.52), 0.4: (2.17, 1.49), 0.6: (1.76, 1.38)}

#: Table 3.10, the testbed: ratios (mean, median, 95th percentile) of queuing time and JCT, and preemptions
#: per job.
TABLE_310: dict[str, Reduction] = {
    "basic": Reduction(1.38, 1.53, 1.36, 1.22, 1.25, 1.13, preemptions=0.18),
    "loaning_random": Reduction(1.00, 1.17, 1.01, 1.05, 1.07, 1.03, preemptions=0.34),
    "loaning_scf": Reduction(1.04, 1.26, 1.16, 1.06, 1.09, 1.03, preemptions=0.30),
    "loaning": Reduction(1.25, 1.30, 1.22, 1.09, 1.12, 1.08, preemptions=0.22),
    "gandiva": Reduction(1.06, 1.20, 1.00, 1.05, 1.08, 1.07),
    "afs": Reduction(1.15, 1.45, 1.14, 1.16, 1.19, 1.10),
    "pollux": Reduction(1.09, 1.34, 1.07, 1.15, 1.13, 1.03),
    "scaling": Reduction(1.16, 1.41, 1.26, 1.19, 1.22, 1.11),
}

PERCENTILE_SHARES = (0.5, 0.75, 0.95, 0.99)
"""Shares of the percentiles in `TABLE_38`."""


def mean_of_last_hundredth(mean: float, percentiles: Sequence[int]) -> tuple[float, float]:
    """Return the least and greatest mean of the last hundredth of the values that a mean and its percentiles
    allow, in their unit.

    The bounds are rigorous: below the 99th percentile each value is between its neighbouring percentiles and
    not negative. ``percentiles``: at `PERCENTILE_SHARES`.
    """
    widths = np.diff((0.0, *PERCENTILE_SHARES))
    highest = float(widths @ np.array(percentiles))
    lowest = float(widths @ np.array((0, *percentiles[:-1])))
    last = 1.0 - PERCENTILE_SHARES[-1]
    return max(float(percentiles[-1]), (mean - highest) / last), (mean - lowest) / last


NOT_TO_CHASE: dict[str, str] = {
    "jct_of_loaning": (
        "Loaning alone saves 860 s of queuing and is said not to change running times, yet 3,663 s of JCT "
        "are published for it; queuing alone would give a ratio of about 1.055. The same holds for "
        "opportunistic, random and SCF."
    ),
    "elastic_ceiling": (
        "Elastic jobs are 5 % of the jobs at 14.2 h each: they can lower the mean JCT by 2,556 s at most. "
        "With 797 s of queuing saved JCT cannot fall below 13,257 s, but 12,048 s are published."
    ),
    "table_38_rows": "The rows of AFS and Pollux are exchanged between Tables 3.5 and 3.8; the text agrees "
    "with 3.5.",
    "overall_usage": (
        "52 % overall with 72 % in training means 35 % in inference, where Figure 3.1 shows 65 %: the level "
        "of overall usage cannot be had, its growth can."
    ),
    "preemption_denominators": (
        "Preemptions are told per submission in Table 3.5 and per running job in Figure 3.12: 1.17 and 1.40 "
        "against 1.51 and 1.68."
    ),
    "testbed_means": (
        "The testbed's means exceed its 95th percentiles, which would need nine jobs of six hours and more "
        "where none is longer than two: only medians say something."
    ),
    "estimates_above_truth": "Table 3.9 gains more with wrong estimates than its section does with right "
    "ones (A23).",
    "baseline_tail": (
        "Published percentiles of the baseline's queuing time (55, 1,892, 8,357, 14,323 s at 50, 75, 95, 99 "
        "%) and a mean of 3,072 s need the last hundredth to wait for 32,700 s on average at the least, and "
        "for about 134,000 s where waits lie evenly between the percentiles. Behind a strictly first-come "
        "queue so long a wait lasts for hours of submissions: at an even rate about 3 % of the jobs would "
        "wait for more than the published 99th percentile."
    ),
    "usage_of_the_same_work": (
        "Linear scaling leaves the work as it is. 86 % of owned and borrowed GPUs in use would be a third "
        "more work than the baseline's 72 %, over the same fifteen days."
    ),
}
"""Values that contradict each other in the source, by name (the last two are our findings)."""
