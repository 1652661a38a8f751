"""Why our values differ from the published ones. Each cause is stated once, with the numbers of a row."""

from __future__ import annotations

from research.rows import Explanation


def compute_unknown(text: str) -> Explanation:
    """Times of forward and backward pass are unknown."""
    return Explanation(
        "Compute times are not published",
        "The tensors and the proportions of their gaps are measured ones; how long forward and backward pass "
        "take on these servers is estimated, and a shorter pass hides less communication.",
        text,
    )


def no_framework(text: str) -> Explanation:
    """A framework's cost of collectives is left out."""
    return Explanation(
        "A framework's own costs are left out",
        "The model charges a codec and a network, but no time of the host for each collective, and one "
        "decoding for all payloads of a group. Where tensors are sent one by one, each pays for both.",
        text,
    )


def best_of_many(text: str) -> Explanation:
    """A tuned strawman is nearly optimal."""
    return Explanation(
        "The best bucket is nearly the best partition",
        "In a model without noise the best of six bucket sizes, or of 31 even splits, comes within a few per "
        "cent of the optimum: that there are few groups, and the last one is small, is what matters.",
        text,
    )


def one_bandwidth(text: str) -> Explanation:
    """One bandwidth applies to every transfer."""
    return Explanation(
        "One bandwidth for every transfer",
        "All-reduce and gathering reach different shares of a link, and the share grows with the message; "
        "here both have the bandwidth that was fitted to ResNet50.",
        text,
    )


def rounded(text: str) -> Explanation:
    """The text gives rounded times."""
    return Explanation("The text rounds", "It tells 48 ms of 104 ms.", text)
