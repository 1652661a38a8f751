"""Why our values differ from the published ones. Each cause is stated once, with the numbers of a row."""

from __future__ import annotations

from research.rows import Explanation


def rounded(text: str) -> Explanation:
    """The text gives rounded values."""
    return Explanation(
        "The text rounds", "It tells values such as 'more than 13 times' or 'up to 250 times'.", text
    )


def union_estimate(text: str) -> Explanation:
    """The published estimate for the ring counts some losses twice."""
    return Explanation(
        "The published ring is an estimate",
        "The figures take the losses of neighbours for exclusive and add them up, which is exact only where "
        "as many machines are lost as there are replicas. Ours counts the subsets of a cycle.",
        text,
    )


def polling(text: str) -> Explanation:
    """Detection takes three polls."""
    return Explanation(
        "Detection is a mean over phases",
        "A heartbeat each 3 s and a poll each 5 s find a failure 12 to 20 s after it, 16 s on average, once "
        "the counter stood still for three polls; 15 s were measured.",
        text,
    )


def useful_share(text: str) -> Explanation:
    """Transfers reach 85 % of a link."""
    return Explanation(
        "Links reach 85 % of their rate",
        "The published figures compute with 0.85 of the NIC's rate; times are told with round figures beside "
        "measurements.",
        text,
    )


def nine_minutes(text: str) -> Explanation:
    """The text has 7 minutes, the notebook 9."""
    return Explanation(
        "A failure costs 7 minutes in the text and 9 in the scaling figures",
        "15 s, 162 s and 240 s are 6.95 minutes; with the 1.5 iterations of lost work 8.5, which the "
        "notebook that draws the figures rounds to 9.",
        text,
    )


def renewal(text: str) -> Explanation:
    """A first-order formula differs from renewal."""
    return Explanation(
        "Failures strike a recovery too",
        "The published share is 1 less λ · O. In the simulation failures come while a job recovers, too, and "
        "begin that recovery anew, so that they overlap; and each failure costs what its phases take, not a "
        "round 9 minutes.",
        text,
    )


def first_order(text: str) -> Explanation:
    """A formula is used outside its range."""
    return Explanation(
        "The formula holds while failures are rarer than checkpoints",
        "1 less λ · O charges each failure with half a period of lost work. With several failures in a "
        "period the later ones find less to lose, and each state that is stored holds what was done since "
        "the last failure.",
        text,
    )


def of_all_time(text: str) -> Explanation:
    """A share is of compute time or of all time."""
    return Explanation(
        "Share of training time, not of all time",
        "The published share divides the 81 s of serialization by nine iterations without it.",
        text,
    )
