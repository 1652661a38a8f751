"""Causes of differences. Each is stated once; the figures of a row are added."""

from __future__ import annotations

from research.rows import Explanation


def one_model(text: str) -> Explanation:
    """Sizes, layer times and volumes are unknown."""
    return Explanation(
        "One fitted model stands for three",
        "Message sizes, layer times, the volume of all-reduces and the bars of single models are not "
        "published. One set of times, fitted to all mean speed-ups together, stands for three models and "
        "four numbers of experts.",
        text,
    )


def measured_above_theory(text: str) -> Explanation:
    """The text's theory is exact, its measurement is not."""
    return Explanation(
        "The text measures more than its theory",
        "By the text, priority without pieces equals fair sharing in theory; it measured 1.9 ms more.",
        text,
    )


def rounded(text: str) -> Explanation:
    """The text gives rounded values."""
    return Explanation("The text contradicts its tables", "Its tables give the other value.", text)


def drawn(text: str) -> Explanation:
    """Routing is drawn."""
    return Explanation(
        "Routing is drawn, not that of the models",
        "How skewed and how predictable the models' routing is in each layer is not published. It is drawn "
        "so that skew with 16 experts and accuracy by path length are near the published ones.",
        text,
    )


def first_layers(text: str) -> Explanation:
    """Layers without a path."""
    return Explanation(
        "The first layers have no estimate, and placing takes time",
        "The first l of twelve layers have no path and run with the even placement. Each other layer takes "
        "1.45 or 6.2 ms for the second phase, as published. With the published skew, both together leave "
        "less to gain.",
        text,
    )


def few_experts(text: str) -> Explanation:
    """Four experts cannot be uneven enough."""
    return Explanation(
        "Four experts cannot be uneven enough",
        "If the most popular expert has four times the tokens of the least, the fullest device has at most "
        "1.6 times the mean. With the derived layer times, no more than 1.3 can be gained.",
        text,
    )


def good_estimates(text: str) -> Explanation:
    """The second phase costs more than it saves."""
    return Explanation(
        "The second phase costs more than it saves where estimates are good",
        "It takes 1.45 to 6.2 ms of about 22 ms in every layer. It pays only where estimates are bad.",
        text,
    )


def normalised_apart(text: str) -> Explanation:
    """Two columns on two scales."""
    return Explanation(
        "The published columns have different scales",
        "The published 95th percentile (1.04) is below the median (1.16), which is impossible for one "
        "distribution over one ideal time.",
        text,
    )


def definitions(text: str) -> Explanation:
    """What was counted is unknown."""
    return Explanation(
        "What the text counts is unknown",
        "The published accurate and fine-tuned shares add up to 86 to 108 %. Here accuracy counts layers "
        "with an estimate, fine-tuning all layers, and the two most popular experts are compared as a set.",
        text,
    )
