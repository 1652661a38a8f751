"""Published values of adaptive gating's evaluation, by figure, series and place.

Times and FLOPs are relative to top-2. Tuples are in the order of TASKS.
"""

from __future__ import annotations

from research.figure import Published

SOURCE = (
    "Adaptive Gating in MoE-based Language Models (EMNLP 2023; thesis chapter 5), tables 5.1, 5.3, 5.5, 5.6"
)

TASKS = ("sentiment", "translation", "question answering", "summarisation", "text completion", "dialogue")
DENSE, TOP2, TOP1, ADAPTIVE = SCHEMES = ("dense", "top-2", "top-1", "adaptive")

#: Table 5.3: time to the target loss.
TIMES = {
    DENSE: (0.88, 0.87, 0.84, 0.89, 0.84, 0.82),
    TOP2: (1.0,) * 6,
    TOP1: (0.99, 1.04, 1.07, 1.06, 1.14, 0.93),
    ADAPTIVE: (0.77, 0.79, 0.86, 0.86, 0.89, 0.82),
}
#: Table 5.3: FLOPs as printed, G or T.
FLOPS = {
    DENSE: (2.18, 10.6, 2.18, 79.0, 3.4, 3.4),
    TOP2: (3.28, 15.9, 3.27, 119.0, 4.9, 4.9),
    TOP1: (2.18, 10.6, 2.18, 79.0, 3.4, 3.4),
    ADAPTIVE: (2.30, 11.5, 2.36, 87.0, 3.73, 3.76),
}
#: Table 5.3: accuracy, BLEU, F1, ROUGE-1, and twice what the text calls perplexity; higher is better.
SCORES = {
    DENSE: (0.912, 40.9, 75.7, 42.3, 16.3, 12.5),
    TOP2: (0.918, 41.1, 77.6, 43.4, 17.8, 13.4),
    TOP1: (0.902, 39.5, 75.5, 40.8, 16.5, 12.6),
    ADAPTIVE: (0.919, 41.1, 77.4, 43.3, 17.5, 13.3),
}
#: Two-expert shares in the text; that of summarisation is missing.
STATED_SHARES = (0.113, 0.256, 0.164, None, 0.218, 0.234)
#: Tables 5.3 and 5.5: time and score by threshold.
TIMES_BY_THRESHOLD = {
    0.05: (1.02, 0.88, 0.92, 0.98, 0.95, 0.93),
    0.1: TIMES[ADAPTIVE],
    0.2: (0.77, 0.83, 0.87, 1.02, 0.93, 0.91),
    0.3: (0.92, 0.83, 0.93, 1.05, 0.99, 1.01),
    0.4: (1.01, 0.88, 0.96, 1.04, 1.01, 1.01),
}
SCORES_BY_THRESHOLD = {
    0.05: (0.912, 40.2, 74.3, 40.8, 16.6, 12.2),
    0.1: SCORES[ADAPTIVE],
    0.2: (0.918, 41.1, 77.6, 42.3, 17.2, 12.8),
    0.3: (0.917, 40.8, 77.6, 43.1, 17.4, 13.2),
    0.4: (0.918, 41.1, 77.6, 43.1, 17.4, 13.4),
}
#: Table 5.6: how much longer training takes without curriculum, and the change of the score.
INFLATIONS = (0.22, 0.14, 0.09, 0.14, 0.12, 0.11)
SCORE_CHANGES = (0.0, -0.14, -0.21, -0.14, -0.01, -0.19)
#: Table 5.1: time of an MoE layer by two-expert share.
LAYER_TIMES = {0.0: 0.67, 0.2: 0.76, 0.5: 0.92, 0.8: 0.97, 1.0: 1.0}

LAYER = "Layer time over top-2"
SHARE = "Two-expert share"
INFLATION = "Longer without curriculum"
BY_THRESHOLD = "Time over top-2, mean of six tasks"
MEAN = "mean of six tasks"


def time_series(scheme: str) -> str:
    """Return the series of a scheme's training time."""
    return f"Time over top-2, {scheme}"


def flops_series(scheme: str) -> str:
    """Return the series of a scheme's FLOPs."""
    return f"FLOPs over top-2, {scheme}"


def threshold_place(threshold: float) -> str:
    """Return a threshold as a place on the horizontal axis."""
    return f"T = {threshold:g}"


def share_place(share: float) -> str:
    """Return a two-expert share as a place on the horizontal axis."""
    return f"{share:.0%} with two experts"


def _values() -> dict[tuple[str, str, str], float]:
    values: dict[tuple[str, str, str], float] = {}
    for share, time in LAYER_TIMES.items():
        values["layer", LAYER, share_place(share)] = time
    for number, task in enumerate(TASKS):
        for scheme in (TOP1, ADAPTIVE):
            values["flops", flops_series(scheme), task] = FLOPS[scheme][number] / FLOPS[TOP2][number]
        stated = STATED_SHARES[number]
        if stated is not None:
            values["flops", SHARE, task] = stated
        for scheme in (DENSE, TOP1, ADAPTIVE):
            values["time", time_series(scheme), task] = TIMES[scheme][number]
        values["curriculum", INFLATION, task] = INFLATIONS[number]
    values["curriculum", INFLATION, MEAN] = sum(INFLATIONS) / len(INFLATIONS)
    for threshold, times in TIMES_BY_THRESHOLD.items():
        values["thresholds", BY_THRESHOLD, threshold_place(threshold)] = sum(times) / len(times)
    return values


VALUES = _values()


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
