"""Routes of tokens through experts, drawn by seed: skewed, and predictable from the layers before (SIM-I)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.lina.expert_paths import Counts, Probabilities


@dataclass(frozen=True)
class RoutingModel:
    """How tokens choose experts.

    Each token has a latent type, and each layer prefers one expert for each type. A token follows that
    preference with a probability that rises from layer to layer. Otherwise it draws an expert by the layer's
    popularity.

    Attributes:
        experts: experts of each layer.
        layers: number of layers.
        types: number of latent types. Their weights follow Zipf's law.
        first_predictability, last_predictability: probability to follow the preference in the first and in
            the last layer.
        popularity_exponent: of Zipf's law for the popularity of a layer's experts.
        type_exponent: of Zipf's law for the weights of types.
        concentration: how similar the mixes of types of two batches are.
        seed: seed of the preferences and popularities.
    """

    experts: int = 16
    layers: int = 12
    types: int = 48
    first_predictability: float = 0.3
    last_predictability: float = 0.9
    popularity_exponent: float = 0.3
    type_exponent: float = 0.6
    concentration: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("experts", "layers", "types"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("first_predictability", "last_predictability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must lie in 0 to 1")
        if not self.concentration > 0:
            raise ValueError(f"concentration is {self.concentration:g}; it must be above 0")


class Routing:
    """Draws tokens of a routing model."""

    def __init__(self, model: RoutingModel) -> None:
        self._model = model
        generator = np.random.default_rng([model.seed, 0])
        self._weights = _zipf(model.types, model.type_exponent)
        self._preferred = generator.integers(model.experts, size=(model.types, model.layers))
        popularity = _zipf(model.experts, model.popularity_exponent)
        self._popularities = [generator.permutation(popularity) for _ in range(model.layers)]

    def draw_tokens(self, number: int, seed: int) -> Counts:
        """Return the experts of tokens that are mixed as all batches together, as (tokens, layers)."""
        return self._draw(self._weights, number, np.random.default_rng([self._model.seed, 1, seed]))

    def draw_batch(self, number: int, seed: int) -> Counts:
        """Return the experts of a batch, which has its own mix of types, as (tokens, layers)."""
        generator = np.random.default_rng([self._model.seed, 2, seed])
        mix = generator.dirichlet(self._model.concentration * self._weights)
        return self._draw(mix, number, generator)

    def _draw(self, mix: Probabilities, number: int, generator: np.random.Generator) -> Counts:
        model = self._model
        types = generator.choice(model.types, size=number, p=mix)
        drawn = np.stack(
            [generator.choice(model.experts, size=number, p=each) for each in self._popularities], axis=1
        )
        predictability = np.linspace(model.first_predictability, model.last_predictability, model.layers)
        follows = generator.random((number, model.layers)) < predictability
        return np.where(follows, self._preferred[types], drawn).astype(np.int64)


def _zipf(number: int, exponent: float) -> Probabilities:
    weights = np.arange(1, number + 1) ** -exponent
    return np.asarray(weights / weights.sum())
