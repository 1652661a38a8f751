"""Causes of differences. Each is stated once; the figures of a row are added."""

from __future__ import annotations

from research.rows import Explanation


def besides_experts(text: str) -> Explanation:
    """A layer does more than compute experts."""
    return Explanation(
        "A layer does more than its experts",
        "Gate, sorting, sending and adding up take the same time for any share of two-expert tokens, and a "
        "second pass costs more for few rows than their number suggests.",
        text,
    )


def contradicted_share(text: str) -> Explanation:
    """The text contradicts its table."""
    return Explanation(
        "The text contradicts its own table",
        "Translation's stated share, 25.6 %, gives 11.96 G FLOPs; the table has 11.5 G, which is 17.0 %. "
        "Dialogue, with 23.4 %, is called the task with the highest share.",
        text,
    )


def more_steps(text: str) -> Explanation:
    """Schemes with fewer experts learn less per step."""
    return Explanation(
        "Fewer experts need more steps",
        "Ours is the time of a step. Published times are those to a loss that all schemes reach; numbers of "
        "steps are not published.",
        text,
    )


def unknown_samples(text: str) -> Explanation:
    """Heterogeneity of samples is unknown."""
    return Explanation(
        "The heterogeneity of samples is not published",
        "An order saves time only through the slowest rank: the more, the more samples differ and the fewer "
        "a rank has. Ours are drawn with concentration 1, very heterogeneous, and ordered by magnitude.",
        text,
    )


def printed_flops(text: str) -> Explanation:
    """What printed FLOPs count is unknown."""
    return Explanation(
        "Printed FLOPs follow no formula per layer",
        "Top-2 over top-1 is printed as 1.50, or 1.44 for both GPT-2 models. Attention, gate and experts "
        "give more. Sequence lengths are not published.",
        text,
    )
