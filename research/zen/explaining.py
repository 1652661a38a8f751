"""Why our values differ from the published ones. Each cause is stated once, with the numbers of a row."""

from __future__ import annotations

from research.rows import Explanation


def rounded(text: str) -> Explanation:
    """The text gives rounded values."""
    return Explanation("The text rounds", "It tells values such as 'around 150 ms' or 'beyond 40'.", text)


def ideal_hashing(text: str) -> Explanation:
    """The losses of one hash are ideal ones."""
    return Explanation(
        "Published losses are not those of an ideal hash",
        "With λ indices for each slot one ideal hash loses 1 - (1 - exp(-λ)) / λ, which is about λ / 2. The "
        "published losses fall as memory grows, too, but no load gives all of them.",
        text,
    )


def lockstep(text: str) -> Explanation:
    """Collisions are counted by rounds."""
    return Explanation(
        "Collisions depend on the load and on how slots are claimed",
        "The text does not tell the load at which four functions leave less than one in a hundred. At its "
        "own memory, half full, indices that claim slots one after the other leave 1.2 %; in rounds 2.1 %.",
        text,
    )


def constant_work(text: str) -> Explanation:
    """The model of a round leaves constant work out."""
    return Explanation(
        "The model charges bytes and 2 ms alone",
        "A worker's own part (hashing, summing, gathering) and the exchange within machines grow with the "
        "tensor; what was measured contains them, and no figure of them is published.",
        text,
    )


def one_skew(text: str) -> Explanation:
    """One skew applies to all models."""
    return Explanation(
        "One skew and one width for all models",
        "The skewness of LSTM over 128 parts is the only one in the text; blocks of OmniReduce are taken to "
        "hold whole rows. With these DeepFM and NMT fill every block of the fullest part.",
        text,
    )


def densities(text: str) -> Explanation:
    """Densities between the end points are interpolated."""
    return Explanation(
        "Densities by number of GPUs are not published",
        "A power law stands for them, through one end point or one speedup for each model. What the two "
        "published breakdowns imply for BERT is half of the density that is told elsewhere.",
        text,
    )


def least_overlap(text: str) -> Explanation:
    """Rows are drawn by Zipf's law."""
    return Explanation(
        "Rows drawn by a law",
        "Vocabularies and rows touched are those of the models; which rows, a Zipf law says.",
        text,
    )
