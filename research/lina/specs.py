"""Runs of Lina's inference evaluation: drawn batches under each placement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from moe.lina.expert_paths import PATH_LENGTH, Counts, PathProfile, profile_paths
from moe.lina.inference_batches import ServedBatches, Serving, serve
from moe.lina.popularity import Estimate
from moe.lina.synthetic_routing import Routing, RoutingModel
from moe.lina.two_phases import Match, PlacementRules
from research.figure import Context
from research.sources import modules_digest
from research.store import RunResult
from simulation.engine.run import Progress

FORMAT = 1
LAYERS, PROFILED_TOKENS, BATCH_TOKENS = 12, 100_000, 2048


@dataclass(frozen=True, slots=True)
class Way:
    """How batches are served."""

    serving: Serving = Serving.LINA
    path_length: int = PATH_LENGTH
    estimate: Estimate = Estimate.NORM


EVEN, LINA = "even placement", "Lina"
WITHOUT_ESTIMATION, WITHOUT_TUNING = "without estimation", "without fine-tuning"
FULL, LITERAL = "Lina, full", "Lina, literal"
SHORT, LONG, SHORT_WITHOUT_TUNING = "Lina, l = 1", "Lina, l = 6", "without fine-tuning, l = 1"
WAYS: Mapping[str, Way] = {
    EVEN: Way(Serving.EVEN),
    WITHOUT_ESTIMATION: Way(Serving.WITHOUT_ESTIMATION),
    LINA: Way(),
    FULL: Way(estimate=Estimate.FULL),
    LITERAL: Way(estimate=Estimate.LITERAL),
    WITHOUT_TUNING: Way(Serving.WITHOUT_FINE_TUNING),
    SHORT: Way(path_length=1),
    SHORT_WITHOUT_TUNING: Way(Serving.WITHOUT_FINE_TUNING, path_length=1),
    LONG: Way(path_length=6),
}


class Kind(StrEnum):
    """Kinds of drawn routing.

    FITTED: to the published skew and accuracy with 16 experts. FEW_EXPERTS: to the published skew with 4.
    PREDICTABLE: more skewed and more predictable, so that Lina gains what is published.
    """

    FITTED = "fitted"
    FEW_EXPERTS = "4 experts"
    PREDICTABLE = "predictable"


#: Found by trying; how predictable the models' routing is was not published.
PREDICTABLE = RoutingModel(first_predictability=0.5, last_predictability=0.95, type_exponent=1.0)
MODELS = {
    Kind.FITTED: RoutingModel(),
    Kind.FEW_EXPERTS: RoutingModel(experts=4, types=12, type_exponent=1.0, popularity_exponent=1.0),
    Kind.PREDICTABLE: PREDICTABLE,
}


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """Batches of one drawn routing, served in each way.

    Attributes:
        seed: seed of the routing. Accuracy depends on it, so several are pooled.
    """

    kind: Kind
    seed: int
    batches: int

    @property
    def name(self) -> str:
        """The routing in a few words."""
        return f"{self.kind} routing {self.seed}"

    @property
    def place(self) -> tuple[Any, ...]:
        """Place in the order of runs."""
        return self.kind, self.seed, self.batches

    @property
    def ways(self) -> Sequence[str]:
        """Ways that are run: all on the fitted routing, two on the others."""
        return list(WAYS) if self.kind is Kind.FITTED else [EVEN, LINA]

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        return (
            f"{self.batches} batches of {BATCH_TOKENS} drawn tokens through {LAYERS} layers, profile of "
            f"{PROFILED_TOKENS:,} tokens, {self.name}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """Return the result's key: equal for equal settings and program."""
        determined = {"format": FORMAT, "spec": self.as_json(), "code": modules_digest(__name__)}
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, progress: Progress | None = None) -> RunResult:
        """Return the times of all batches over the ideal one by way, and the accuracy of estimates."""
        model = MODELS[self.kind]
        experts = (model.experts,) * LAYERS
        routing = Routing(RoutingModel(**{**asdict(model), "layers": LAYERS, "seed": self.seed}))
        tokens = routing.draw_tokens(PROFILED_TOKENS, 0)
        batches = [routing.draw_batch(BATCH_TOKENS, number) for number in range(self.batches)]
        rules = PlacementRules(model.experts, match=Match.SET, seed=self.seed)

        @cache
        def profile(length: int) -> PathProfile:
            return profile_paths(tokens, experts, length)

        facts = {"popularity": _popularity_ratio(batches, model.experts), **_guesses(profile(PATH_LENGTH))}
        series = {}
        for name in self.ways:
            way = WAYS[name]
            served = serve(way.serving, batches, rules, profile(way.path_length), estimate=way.estimate)
            facts |= {f"{name}: {fact}": value for fact, value in _facts(served).items()}
            series[name] = served.relative_times()
        return RunResult(summary={}, facts=facts, series=series)


def _facts(served: ServedBatches) -> dict[str, float]:
    imbalances = [layer.imbalance for batch in served.batches for layer in batch]
    facts = {
        "imbalance": served.imbalance,
        "tail imbalance": float(np.percentile(imbalances, 95)),
        "first imbalance": served.first_imbalance,
        "set accuracy": served.set_accuracy,
        "order accuracy": served.order_accuracy,
        "replaced": served.replaced_share,
    }
    return {name: value for name, value in facts.items() if np.isfinite(value)}


def _popularity_ratio(batches: Sequence[Counts], experts: int) -> float:
    """Return the tokens of the most over those of the least popular expert, median of batches and layers."""
    counts = [np.bincount(column, minlength=experts) for batch in batches for column in batch.T]
    return float(np.median([each.max() / max(1, each.min()) for each in counts]))


def _guesses(profile: PathProfile) -> dict[str, float]:
    """Return the share of profiled tokens that went to the one and the two likeliest experts after their
    path."""
    counts = [
        table.counts for (_, length), table in profile.following.items() if length == profile.path_length
    ]
    tokens = np.sort(np.concatenate(counts), axis=1)
    return {f"best {number}": float(tokens[:, -number:].sum() / tokens.sum()) for number in (1, 2)}


def specs(kind: Kind, full: bool) -> list[RoutingSpec]:
    """Return the runs of a kind of routing."""
    routings, batches = (12, 60) if full else (4, 10)
    return [RoutingSpec(kind, seed, batches) for seed in range(routings)]


class Pooled:
    """Results of all routings of one kind."""

    def __init__(self, context: Context, kind: Kind) -> None:
        found = [context.get(spec) for spec in specs(kind, context.full)]
        self._results = [result for result in found if result is not None]
        if len(self._results) < len(found):
            self._results = []

    def percentile(self, way: str, percent: float) -> float | None:
        """Return a percentile of the times of all batches over the ideal one; None if a run is missing."""
        times = [time for result in self._results for time in result.series[way]]
        return float(np.percentile(times, percent)) if times else None

    def gain(self, way: str, over: str, percent: float) -> float | None:
        """Return how much faster a way is than another at a percentile."""
        mine, theirs = self.percentile(way, percent), self.percentile(over, percent)
        return None if mine is None or theirs is None else theirs / mine

    def fact(self, name: str, way: str = "") -> float | None:
        """Return the mean of a fact over the routings; None if a run is missing or has no such fact."""
        key = f"{way}: {name}" if way else name
        values = [float(result.facts[key]) for result in self._results if key in result.facts]
        return sum(values) / len(values) if values else None
