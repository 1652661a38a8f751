"""Published values of Cupcake's evaluation, by figure, series and place: ratios of iteration times, and
scaling factors."""

from __future__ import annotations

from research.figure import Published

SOURCE = "Cupcake (Z. Wang, Rice 2023, chapter 5), text and tables; ratios are told as 'up to'"

_ONE_SERVER = {
    "over FP32": (1.72, 1.39, 1.65),
    "over GRACE": (2.30, 1.70, 2.06),
    "over HiPress": (1.64, 1.37, 1.61),
}
_EIGHT_SERVERS = {"over FP32": (1.93, 1.46, 2.03), "over HiPress": (1.79, 1.37, 1.58)}
NAMES = ("ResNet50", "ResNet101", "BERT-base")

VALUES: dict[tuple[str, str, str], float] = {
    ("one_server", "FP32, scaling factor", "ResNet50"): 48 / 104,
    ("strawmen", "over Bucket Fusion", "largest"): 1.12,
    ("strawmen", "over Evenly Split", "largest"): 1.18,
    ("accuracy", "Time to accuracy, over FP32", "ResNet50, dgc"): 1.68,
    ("accuracy", "Time to accuracy, over HiPress", "ResNet50, dgc"): 1.30,
    ("accuracy", "Time to accuracy, over FP32", "ResNet101, ef-signsgd"): 1.32,
    ("accuracy", "Time to accuracy, over HiPress", "ResNet101, ef-signsgd"): 1.25,
    ("accuracy", "Time to accuracy, over FP32", "BERT-base, dgc"): 1.65,
    ("accuracy", "Accuracy with Cupcake over FP32", "ResNet50, dgc"): 93.2 / 93.6,
    ("accuracy", "Accuracy with Cupcake over FP32", "ResNet101, ef-signsgd"): 76.7 / 77.1,
} | {
    (figure, series, name): value
    for figure, table in (("one_server", _ONE_SERVER), ("eight_servers", _EIGHT_SERVERS))
    for series, values in table.items()
    for name, value in zip(NAMES, values, strict=True)
}

#: Seconds of the search, by enabled prunings, for each model; None: more than a day.
OPTIMIZER_SECONDS: dict[str, tuple[float | None, ...]] = {
    "Algorithm 5.1": (2.8, 6.6, 4.2),
    "only Pruning 1": (15.0, 68.0, 32.0),
    "only Pruning 2": (2.2 * 3600, 9.4 * 3600, None),
    "no pruning": (None, None, None),
}


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
