"""Published values of Lina's evaluation, by figure, series and place.

Bars of single models are not in the text: these are means, extremes and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from research.figure import Published

SOURCE = "Lina (USENIX ATC 2023) and its thesis chapter, text and tables"

STEP = "Step, Lina over DeepSpeed"
PARTITION = "Step, partition without packing over DeepSpeed"
PRIORITY = "Step, priority alone over DeepSpeed"
ALL_TO_ALL = "All-to-all, Lina over DeepSpeed"
FORWARD = "MoE layer forward, Lina over DeepSpeed"
BACKWARD = "MoE layer backward, Lina over DeepSpeed"
MEAN = "mean of sizes"
SHARE = "All-to-all of a step, Transformer-XL"
UNPACKED = "Expert computation over all-to-all, unpacked"
PACKED = "Expert computation over all-to-all, packed"
POPULARITY = "Most over least popular expert"
GUESS = "Next expert is among the likeliest after the path"
MEDIAN_GAIN, TAIL_GAIN = "Median, baseline over Lina", "95th percentile, baseline over Lina"
WITHOUT_ESTIMATION = "Median, without estimation over Lina"
WITHOUT_TUNING = "95th percentile, without fine-tuning over Lina"
ALL_TO_ALL_TAIL = "Tail all-to-all, baseline over Lina"
MODELS = "mean of models"
MEDIAN, TAIL = "Median over ideal", "95th percentile over ideal"
ACCURACY, FINE_TUNED = "Accuracy of the estimate", "Fine-tuned layers"

#: Transformer-XL by experts and layers: all-to-all of a training step in ms, and its share of the step.
TRAINING_SHARES = {
    (4, 12): (259, 0.367),
    (4, 24): (589, 0.354),
    (4, 36): (979, 0.382),
    (16, 12): (333, 0.395),
    (16, 24): (715, 0.376),
    (16, 36): (1145, 0.368),
}
#: The same in inference.
INFERENCE_SHARES = {
    (4, 12): (73, 0.274),
    (4, 24): (103, 0.262),
    (4, 36): (153, 0.283),
    (16, 12): (102, 0.325),
    (16, 24): (177, 0.317),
    (16, 36): (243, 0.274),
}
#: Expert computation over all-to-all before and after packing, by model.
EFFICIENCIES = {"Transformer-XL": (0.33, 0.86), "GPT-2": (0.36, 0.85), "BERT2GPT2": (0.34, 0.79)}
#: Median, 95th percentile over ideal, fine-tuned and accurate share, by model and path length.
PATHS = {
    ("Transformer-XL", 1): (1.41, 1.32, 0.765, 0.316),
    ("Transformer-XL", 3): (1.16, 1.04, 0.257, 0.604),
    ("Transformer-XL", 6): (1.19, 1.11, 0.225, 0.714),
    ("BERT-Large", 1): (1.34, 1.35, 0.713, 0.283),
    ("BERT-Large", 3): (1.07, 1.04, 0.322, 0.635),
    ("BERT-Large", 6): (1.09, 1.11, 0.271, 0.660),
}
#: 95th percentile over ideal and accuracy on other data, with paths of three experts.
OTHER_DATA = {
    "IMDB": (1.08, 0.644),
    "Twitter": (1.11, 0.623),
    "WMT French": (1.04, 0.688),
    "WMT Russian": (1.08, 0.625),
}
#: GPU utilisation and peak memory in per cent before and after, by model.
UTILISATIONS = {"Transformer-XL": (66.2, 83.4), "GPT-2": (62.3, 78.2), "BERT2GPT2": (63.5, 82.5)}
MEMORY = {"Transformer-XL": (72.1, 100.0), "GPT-2": (83.8, 100.0), "BERT2GPT2": (74.3, 94.2)}


def size(experts: int) -> str:
    """Return a number of experts as a place on the horizontal axis."""
    return f"{experts} experts"


def depth(experts: int, layers: int) -> str:
    """Return a model size as a place on the horizontal axis."""
    return f"{experts} experts, {layers} layers"


def path(model: str, length: int) -> str:
    """Return a model and a path length as a place on the horizontal axis."""
    return f"{model}, l = {length}"


def _by_size(figure: str, series: str, values: Mapping[int, float]) -> dict[tuple[str, str, str], float]:
    return {(figure, series, size(experts)): value for experts, value in values.items()}


def _by_model(series: str, column: int) -> dict[tuple[str, str, str], float]:
    return {("packing", series, model): values[column] for model, values in EFFICIENCIES.items()}


VALUES: dict[tuple[str, str, str], float] = {
    ("timeline", "Gradients done, fair sharing", "ms"): 29.0,
    ("timeline", "Gradients done, priority alone", "ms"): 30.9,
    ("timeline", "Gradients done, all-reduce deferred", "ms"): 24.6,
    ("timeline", "All-reduce done, deferred", "ms"): 30.4,
    ("timeline", "All-reduce done, in pieces", "ms"): 23.8,
    **_by_size("training", STEP, {2: 1.71, 4: 1.37, 8: 1.73, 16: 1.47}),
    ("training", STEP, MEAN): 1.57,
    **_by_size("training", PARTITION, {2: 1.36, 4: 1.36, 8: 1.41, 16: 1.42}),
    ("training", PRIORITY, MEAN): 1.24,
    **_by_size("training", ALL_TO_ALL, {4: 2.21, 8: 2.39, 16: 2.31}),
    **_by_size("training", FORWARD, {2: 1.84, 8: 1.89}),
    **_by_size("training", BACKWARD, {2: 2.41, 8: 2.32}),
    ("interference", "Slow-down of overlapped all-to-all, median", "backward pass"): 1.83,
    ("interference", "Slow-down of overlapped all-to-all, largest", "backward pass"): 4.14,
    **{("interference", SHARE, depth(*key)): share for key, (_, share) in TRAINING_SHARES.items()},
    ("interference", "All-to-all of a step, mean of models", size(2)): 0.334,
    ("interference", "All-to-all of a step, mean of models", size(16)): 0.445,
    ("interference", "All-to-all of a forward MoE layer", size(16)): 0.749,
    ("packing", "Communication longer in pieces, %", MEAN): 1.7,
    **_by_model(UNPACKED, 0),
    **_by_model(PACKED, 1),
    ("inference", POPULARITY, size(4)): 4.02,
    ("inference", POPULARITY, size(16)): 5.56,
    ("inference", GUESS, "one"): 0.4194,
    ("inference", GUESS, "two"): 0.5459,
    ("inference", MEDIAN_GAIN, "Transformer-XL, 16 experts"): 1.45,
    ("inference", MEDIAN_GAIN, "BERT-Large, 16 experts"): 1.46,
    ("inference", MEDIAN_GAIN, "Transformer-XL, 4 experts"): 1.54,
    ("inference", MEDIAN_GAIN, "BERT-Large, 4 experts"): 1.36,
    ("inference", MEDIAN_GAIN, f"{MODELS}, predictable routing"): 1.45,
    ("inference", TAIL_GAIN, "Transformer-XL, 16 experts"): 1.82,
    ("inference", TAIL_GAIN, "BERT-Large, 16 experts"): 1.68,
    ("inference", TAIL_GAIN, f"{MODELS}, predictable routing"): 1.63,
    ("inference", ALL_TO_ALL_TAIL, MODELS): 1.96,
    ("inference", WITHOUT_ESTIMATION, "Transformer-XL, 16 experts"): 1.240,
    ("inference", WITHOUT_ESTIMATION, "BERT-Large, 16 experts"): 1.186,
    ("inference", WITHOUT_TUNING, "Transformer-XL, 16 experts"): 1.267,
    ("inference", WITHOUT_TUNING, "BERT-Large, 16 experts"): 1.331,
    **{
        ("paths", series, path(*key)): values[column]
        for key, values in PATHS.items()
        for column, series in enumerate((MEDIAN, TAIL, FINE_TUNED, ACCURACY))
    },
    ("arithmetic", "Inference, mean of models", "1.54, 1.45, 1.36, 1.46"): 1.45,
    ("arithmetic", "Step, mean of sizes", "1.71, 1.37, 1.73, 1.47"): 1.57,
    ("arithmetic", "Efficiency of pipelining, mean gain", "three models"): 2.43,
    ("arithmetic", "All-to-all share, mean of the table", "%"): 34.1,
    ("arithmetic", "GPU utilisation, mean gain in points", "three models"): 17.6,
    ("arithmetic", "Peak memory, gain in points", "BERT2GPT2"): 19.5,
    ("arithmetic", "Parameters of an expert, millions", "d 512, f 2048"): 2.097,
}


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
