"""How many samples of usage forecasters look at."""

from __future__ import annotations

WINDOW = 10
"""Samples that a forecast looks at (Lyra section 3.6)."""

SAMPLES_PER_DAY = 288
"""Samples of a day: the least that most models are fitted to, and how many come between two fits."""

LONGEST_HISTORY = 14 * SAMPLES_PER_DAY
"""Older samples are not learned from any more: two weeks hold every day of the week twice."""
