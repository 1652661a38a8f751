"""The published evaluation in numbers: models, testbeds, and what an iteration takes there (4.1 and 4.3).

What the paper does not tell is fitted to one published ratio each, and marked so wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from communication.collectives import all_reduce_bytes
from communication.zen.densification import Densification, beta_between, skew_from
from communication.zen.formats import BLOCK_VALUES, VALUE_BYTES, Format
from communication.zen.schemes import Exchange, Scheme, lower_bound_bytes, received_bytes

MACHINES, GPUS = 16, 8
#: Share of the line rate that collectives reach; with it an all-reduce of DeepFM takes the text's 150 ms.
EFFICIENCY = 0.86
#: Extraction after hashing on an A100, of whatever sparse scheme.
HASH_SECONDS = 0.002
#: Skewness of LSTM's embedding over 128 parts, taken for all models.
SKEW = skew_from(128, 70.0)
#: How much faster an A100 computes than a V100: assumed, nothing is published. It matters where a model's
#: computing was fitted on the other testbed.
A100_OVER_V100 = 2.5
V100, A100 = "25 Gbps, V100", "100 Gbps, A100"
BYTES_PER_SECOND = {V100: 25e9 / 8, A100: 100e9 / 8}


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model of Table 3.1.

    Attributes:
        mlp, embedding: parameters. batch: of a GPU. density: of the embedding's gradient on one GPU.
    """

    name: str
    dataset: str
    mlp: float
    embedding: float
    batch: int
    density: float


LSTM = TrainedModel("LSTM", "One Billion Word", 20e6, 406e6, 128, 0.0113)
DEEPFM = TrainedModel("DeepFM", "Criteo", 68e6, 214e6, 1024, 0.0280)
NMT = TrainedModel("NMT", "IWSLT 2014 De-En", 31e6, 112e6, 64, 0.0247)
BERT = TrainedModel("BERT", "SQuAD v1.1", 86e6, 23e6, 4, 0.0106)
MODELS = {model.name: model for model in (LSTM, DEEPFM, NMT, BERT)}

#: Published speedups that are used up by fitting: of Zen on embeddings at 25 Gbps, and end to end.
FITTED_EMBEDDING = {"LSTM": 6.77, "DeepFM": 2.10}
FITTED_TRAINING = {"LSTM": (V100, 3.1), "BERT": (V100, 1.13), "DeepFM": (A100, 1.46), "NMT": (A100, 1.45)}
#: End points of densification, of which one is published and one follows from Figure 3.7.
END_POINTS = {"BERT": 0.408, "NMT": 0.64 - NMT.density}
SCHEMES = (
    Scheme.AGSPARSE, Scheme.SPARCML, Scheme.SPARSE_PS, Scheme.OMNIREDUCE, Scheme.BALANCED_COO, Scheme.ZEN,
)  # fmt: skip
BASELINES = SCHEMES[:4]


def exchange(
    model: TrainedModel, machines: int = MACHINES, beta: float | None = None, gpus: int = GPUS
) -> Exchange:
    """The embedding's exchange among machines, each with the dense sum of its own GPUs.

    Indices are of elements and formats those of the paper: COO to the servers, hash bitmaps back.
    """
    law = Densification(model.density, fitted_beta(model.name) if beta is None else beta)
    return Exchange(machines, VALUE_BYTES * model.embedding, law, gpus, SKEW, pull_format=Format.HASH_BITMAP)


@cache
def fitted_beta(name: str) -> float:
    """Beta of a model: by its end point, or where none is published by Zen's speedup on its embedding."""
    model = MODELS[name]
    if name in END_POINTS:
        return beta_between(model.density, MACHINES * GPUS, END_POINTS[name])

    def excess(beta: float) -> float:
        return embedding_speedup(model, Scheme.ZEN, beta=beta) - FITTED_EMBEDDING[name]

    # The denser sums get, the smaller the speedup.
    return _root(lambda beta: -excess(beta), 0.3, 0.95)


def embedding_seconds(
    model: TrainedModel,
    scheme: Scheme,
    testbed: str = V100,
    machines: int = MACHINES,
    beta: float | None = None,
) -> float:
    """To synchronise the embedding: its bytes over the usable line rate, and hashing or extraction."""
    asked = exchange(model, machines, beta)
    if scheme is Scheme.OMNIREDUCE:
        # Blocks are taken to lie within rows, whose values are non-zero together: the best for it.
        asked = replace(asked, width=BLOCK_VALUES)
    operations = 0.0 if scheme is Scheme.DENSE or machines == 1 else HASH_SECONDS
    return received_bytes(scheme, asked) / _rate(testbed) + operations


def lower_bound_seconds(model: TrainedModel, testbed: str, machines: int) -> float:
    """What nobody can be faster than: the sum of all others, without indices."""
    return lower_bound_bytes(exchange(model, machines)) / _rate(testbed)


def mlp_seconds(model: TrainedModel, testbed: str, machines: int) -> float:
    """To all-reduce the dense part."""
    return all_reduce_bytes(machines, VALUE_BYTES * model.mlp) / _rate(testbed)


def embedding_speedup(
    model: TrainedModel, scheme: Scheme, machines: int = MACHINES, beta: float | None = None
) -> float:
    """Over all-reduce, at 25 Gbps."""
    dense = embedding_seconds(model, Scheme.DENSE, V100, machines, beta)
    return dense / embedding_seconds(model, scheme, V100, machines, beta)


@cache
def compute_seconds(name: str, testbed: str) -> float:
    """c: what an iteration takes beside exposed communication, fitted to one published end-to-end ratio. On
    the other testbed the same computing, so many times faster or slower."""
    model = MODELS[name]
    fitted, ratio = FITTED_TRAINING[name]
    rest = mlp_seconds(model, fitted, MACHINES)
    dense = rest + embedding_seconds(model, Scheme.DENSE, fitted)
    zen = rest + embedding_seconds(model, Scheme.ZEN, fitted)
    seconds = (dense - ratio * zen) / (ratio - 1.0)
    if fitted == testbed:
        return seconds
    return seconds / A100_OVER_V100 if testbed == A100 else seconds * A100_OVER_V100


def iteration_seconds(
    model: TrainedModel, scheme: Scheme | None, testbed: str, machines: int = MACHINES
) -> float:
    """One iteration; ``scheme`` None: with the lower bound in the exchange's place."""
    embedding = (
        lower_bound_seconds(model, testbed, machines)
        if scheme is None
        else embedding_seconds(model, scheme, testbed, machines)
    )
    return compute_seconds(model.name, testbed) + mlp_seconds(model, testbed, machines) + embedding


def throughput(model: TrainedModel, scheme: Scheme | None, testbed: str, machines: int = MACHINES) -> float:
    """Samples a second on all GPUs."""
    return machines * GPUS * model.batch / iteration_seconds(model, scheme, testbed, machines)


def training_speedup(model: TrainedModel, over: Scheme, testbed: str, machines: int = MACHINES) -> float:
    """Of Zen over another scheme, end to end."""
    return iteration_seconds(model, over, testbed, machines) / iteration_seconds(
        model, Scheme.ZEN, testbed, machines
    )


def _rate(testbed: str) -> float:
    return EFFICIENCY * BYTES_PER_SECOND[testbed]


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is 0. Raises ValueError where it is not between the two."""
    if rising(low) > 0.0 or rising(high) < 0.0:
        raise ValueError(f"nothing between {low} and {high} fits")
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if rising(middle) > 0.0 else (middle, high)
    return (low + high) / 2.0
