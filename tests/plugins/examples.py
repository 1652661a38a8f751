"""How many examples property tests draw, in proportion to the profile in use (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import settings

QUICK_EXAMPLES = 20


def examples(share: float) -> int:
    """Return ``share`` of the examples of the profile, at least two: for tests with costly examples."""
    return max(2, round(share * settings().max_examples))
