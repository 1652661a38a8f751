"""The published evaluation in numbers: models, testbeds, and times of an iteration there (4.1 and 4.3).

Values that the paper does not give are each fitted to one published ratio, and marked so where shown.
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
#: Extraction after hashing on an A100, for every sparse scheme.
HASH_SECONDS = 0.002
#: Skewness of LSTM's embedding over 128 parts, used for all models.
SKEW = skew_from(128, 70.0)
#: How many times as fast an A100 computes as a V100: assumed, since nothing is published. It is used if a
#: model's computing was fitted on the other testbed.
A100_OVER_V100 = 2.5
V100, A100 = "25 Gbps, V100", "100 Gbps, A100"
BYTES_PER_SECOND = {V100: 25e9 / 8, A100: 100e9 / 8}


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model of Table 3.1.

    Attributes:
        mlp, embedding: parameters. batch: samples of a GPU. density: of the embedding's gradient on one GPU.
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

#: Published speedups used for fitting: of Zen on embeddings at 25 Gbps, and end to end.
FITTED_EMBEDDING = {"LSTM": 6.77, "DeepFM": 2.10}
FITTED_TRAINING = {"LSTM": (V100, 3.1), "BERT": (V100, 1.13), "DeepFM": (A100, 1.46), "NMT": (A100, 1.45)}
#: End points of densification: one is published, one follows from Figure 3.7.
END_POINTS = {"BERT": 0.408, "NMT": 0.64 - NMT.density}
SCHEMES = (
    Scheme.AGSPARSE, Scheme.SPARCML, Scheme.SPARSE_PS, Scheme.OMNIREDUCE, Scheme.BALANCED_COO, Scheme.ZEN,
)  # fmt: skip
BASELINES = SCHEMES[:4]


def exchange(
    model: TrainedModel, machines: int = MACHINES, beta: float | None = None, gpus: int = GPUS
) -> Exchange:
    """Return the embedding's exchange among machines, each with the dense sum of its own GPUs.

    Indices are of elements and formats are the paper's: COO to the servers, hash bitmaps back.
    """
    law = Densification(model.density, fitted_beta(model.name) if beta is None else beta)
    return Exchange(machines, VALUE_BYTES * model.embedding, law, gpus, SKEW, pull_format=Format.HASH_BITMAP)


@cache
def fitted_beta(name: str) -> float:
    """Return beta of a model: by its end point if published, else by Zen's speedup on its embedding."""
    model = MODELS[name]
    if name in END_POINTS:
        return beta_between(model.density, MACHINES * GPUS, END_POINTS[name])

    def excess(beta: float) -> float:
        return embedding_speedup(model, Scheme.ZEN, beta=beta) - FITTED_EMBEDDING[name]

    # The denser the sums, the smaller the speedup.
    return _root(lambda beta: -excess(beta), 0.3, 0.95)


def embedding_seconds(
    model: TrainedModel,
    scheme: Scheme,
    testbed: str = V100,
    machines: int = MACHINES,
    beta: float | None = None,
) -> float:
    """Return the seconds to synchronise the embedding: bytes over usable line rate, and hashing."""
    asked = exchange(model, machines, beta)
    if scheme is Scheme.OMNIREDUCE:
        # Blocks are assumed to be within rows, whose values are non-zero together: the best case for it.
        asked = replace(asked, width=BLOCK_VALUES)
    operations = 0.0 if scheme is Scheme.DENSE or machines == 1 else HASH_SECONDS
    return received_bytes(scheme, asked) / _rate(testbed) + operations


def lower_bound_seconds(model: TrainedModel, testbed: str, machines: int) -> float:
    """Return a lower bound for every scheme: the sum of all others, without indices."""
    return lower_bound_bytes(exchange(model, machines)) / _rate(testbed)


def mlp_seconds(model: TrainedModel, testbed: str, machines: int) -> float:
    """Return the seconds to all-reduce the dense part."""
    return all_reduce_bytes(machines, VALUE_BYTES * model.mlp) / _rate(testbed)


def embedding_speedup(
    model: TrainedModel, scheme: Scheme, machines: int = MACHINES, beta: float | None = None
) -> float:
    """Return the embedding's speedup over all-reduce at 25 Gbps."""
    dense = embedding_seconds(model, Scheme.DENSE, V100, machines, beta)
    return dense / embedding_seconds(model, scheme, V100, machines, beta)


@cache
def compute_seconds(name: str, testbed: str) -> float:
    """Return c, the time of an iteration besides exposed communication, fitted to one published end-to-end
    ratio; on the other testbed it is scaled by the GPUs' speeds."""
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
    """Return the seconds of one iteration; ``scheme`` None: with the lower bound as the exchange."""
    embedding = (
        lower_bound_seconds(model, testbed, machines)
        if scheme is None
        else embedding_seconds(model, scheme, testbed, machines)
    )
    return compute_seconds(model.name, testbed) + mlp_seconds(model, testbed, machines) + embedding


def throughput(model: TrainedModel, scheme: Scheme | None, testbed: str, machines: int = MACHINES) -> float:
    """Return samples a second on all GPUs."""
    return machines * GPUS * model.batch / iteration_seconds(model, scheme, testbed, machines)


def training_speedup(model: TrainedModel, over: Scheme, testbed: str, machines: int = MACHINES) -> float:
    """Return the end-to-end speedup of Zen over another scheme."""
    return iteration_seconds(model, over, testbed, machines) / iteration_seconds(
        model, Scheme.ZEN, testbed, machines
    )


def _rate(testbed: str) -> float:
    return EFFICIENCY * BYTES_PER_SECOND[testbed]


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a rising function. Raises ValueError if it is not between ``low`` and ``high``."""
    if rising(low) > 0.0 or rising(high) < 0.0:
        raise ValueError(f"nothing between {low} and {high} fits")
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if rising(middle) > 0.0 else (middle, high)
    return (low + high) / 2.0
