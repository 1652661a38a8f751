"""Causes of differences. Each is stated once; the figures of a row are added."""

from __future__ import annotations

from simulation.reproduction.rows import Explanation


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
    """The text rounds."""
    return Explanation("The text contradicts its tables", "Its tables give the other value.", text)
