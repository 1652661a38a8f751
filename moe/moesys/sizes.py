"""Parameters of a model with experts.

Every token uses the dense parameters: attention, embeddings, norms, gates. The sparse parameters are the
weights of experts. Only tokens that are routed to an expert use its weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from moe.moesys.checks import check_at_least, check_not_negative


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Numbers of parameters.

    Attributes:
        dense: all parameters outside of experts (D).
        sparse: parameters of all experts of all layers (S).
        layers: number of layers with experts (L).
        experts: number of experts of each of these layers (E).

    Raises:
        ValueError: parameters are negative, or there is no layer or expert.
    """

    dense: float
    sparse: float
    layers: int
    experts: int

    def __post_init__(self) -> None:
        check_not_negative("dense", self.dense)
        check_not_negative("sparse", self.sparse)
        check_at_least("layers", self.layers)
        check_at_least("experts", self.experts)

    @property
    def parameters(self) -> float:
        """All parameters (P)."""
        return self.dense + self.sparse

    @property
    def expert_parameters(self) -> float:
        """Parameters of one expert of one layer."""
        return self.sparse / (self.layers * self.experts)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer without biases in which every block has experts in place of its feed-forward layer.

    Attributes:
        vocabulary: rows of the embedding (V).
        hidden: elements of a token (h).
        layers: number of layers with experts (L).
        experts: number of experts of each of these layers (E).
        expansion: hidden elements of an expert over `hidden` (f).

    Raises:
        ValueError: a value is below 1.
    """

    vocabulary: int
    hidden: int
    layers: int
    experts: int
    expansion: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            check_at_least(field.name, getattr(self, field.name))

    @property
    def sizes(self) -> ModelSizes:
        """D = V·h + 4·L·h² and S = 2·f·L·h²·E."""
        square = self.hidden * self.hidden
        return ModelSizes(
            dense=self.vocabulary * self.hidden + 4 * self.layers * square,
            sparse=2 * self.expansion * self.layers * square * self.experts,
            layers=self.layers,
            experts=self.experts,
        )
