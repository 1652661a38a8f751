"""Verdicts in words."""

from __future__ import annotations

from punctual.cli.verdicts import tiers_text
from punctual.client.models import TierMode, TierModes, TierOption


def test_tiers_are_two_lines() -> None:
    measured = (TierOption(2, 0.5), TierOption(4, 0.25))
    tiers = TierModes(
        TierMode(2, "disk", measured),
        TierMode(4, "device memory", (TierOption(4, 0.25, is_upper_bound=True),)),
    )
    assert tiers_text(tiers) == (
        "With tiers: 2 GPUs or more (disk binds); 2: 0.5 s, 4: 0.25 s an iteration.\n"
        "Without tiers: 4 GPUs or more (device memory binds); 4: at most 0.25 s an iteration."
    )


def test_a_model_too_large_for_any_placement_is_shown() -> None:
    tiers = TierModes(TierMode(1), TierMode(None, "device memory"))
    assert tiers_text(tiers) == (
        "With tiers: 1 GPU or more.\nWithout tiers: no number of GPUs holds the model (device memory binds)."
    )
