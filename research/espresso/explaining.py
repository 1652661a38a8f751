"""Why our values differ from the published ones. Each cause is stated once, with the numbers of a row."""

from __future__ import annotations

from research.rows import Explanation


def rounded(text: str) -> Explanation:
    """The text gives rounded values."""
    return Explanation("The text rounds", "It tells scaling factors with two digits, and their ratios.", text)


def one_bandwidth(text: str) -> Explanation:
    """One fitted bandwidth applies to all models."""
    return Explanation(
        "One bandwidth cannot fit compressed and uncompressed traffic",
        "The effective bandwidth is fitted to FP32's scaling. Software overhead of each tensor is not "
        "published and not modelled: schemes that compress between servers alone come out too strong where "
        "tensors are many, and too weak where what is left uncompressed within a server decides.",
        text,
    )


def processors(text: str) -> Explanation:
    """The processors' rate is unknown."""
    return Explanation(
        "The processors' rate is not published",
        "Codecs on processors are told as 8 to 40 Gbps by model. Ours encode and decode 16 Gbps each, and "
        "every payload is decoded by itself, for all GPUs of a server one after the other.",
        text,
    )


def other_machine(text: str) -> Explanation:
    """The times are of another program on another machine."""
    return Explanation(
        "Another program on another machine",
        "Times are wall-clock times of the published Python on its machine, and of compiled code on this "
        "one. The published simulator looks at four classes of options; ours at all 165 that are not "
        "dominated.",
        text,
    )


def other_tensors(text: str) -> Explanation:
    """BERT's heads differ."""
    return Explanation(
        "The public profile is without heads",
        "The table counts 207 tensors of BERT, the public profile has 199: neither pooler nor pretraining "
        "heads.",
        text,
    )


def other_selection(text: str) -> Explanation:
    """The choice of compressed tensors depends on unpublished inputs."""
    return Explanation(
        "Selections depend on times that are not published",
        "Bandwidths, and codec times by size, are known as constants alone; the published plans come from "
        "thresholds on sizes, ours from timelines. Many strategies are almost as fast.",
        text,
    )


def several_passes(text: str) -> Explanation:
    """Ours is closer to the bound."""
    return Explanation(
        "Several starts come closer to the bound",
        "The published distance is that of one pass; ours repeats passes from three starts, and its codecs' "
        "times are constants.",
        text,
    )
