"""Numbers of usage samples that forecasters use."""

from __future__ import annotations

WINDOW = 10
"""Samples per forecast (Lyra section 3.6)."""

SAMPLES_PER_DAY = 288
"""Samples of a day: the fewest that most models are fitted to, and the number between two fits."""

LONGEST_HISTORY = 14 * SAMPLES_PER_DAY
"""Older samples are ignored: two weeks hold every day of the week twice."""
