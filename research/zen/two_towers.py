"""A small recommender trained by four workers in memory: the effect of gradients lost by a hash on its loss.

It has two embedding tables, for users and items, and clicks drawn from hidden tables of the same shape. Each
worker has its own batch; the sum of their gradients comes from an exchange that is exact or loses collisions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from communication.zen.hash_family import HashFamily, drawn_family
from communication.zen.indices import Values, nonzero_indices
from communication.zen.reference_exchange import zen_exchange
from communication.zen.strawmen import one_hash

WORKERS, BATCH = 4, 256
USERS, ITEMS, COLUMNS = 600, 400, 8
LEARNING_RATE = 8.0
EVALUATED = 4096


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Attributes:
        losses: on the same held-out clicks, after each step.
        lost_share: share of the non-zeros to send that were lost.
    """

    losses: list[float]
    lost_share: float


def train(scheme: str, memory: float, steps: int, seed: int) -> Trained:
    """Train with a scheme: `dense`, `zen`, or `strawman` with ``memory`` slots for each non-zero.

    Raises ValueError for another scheme.
    """
    if scheme not in ("dense", "zen", "strawman"):
        raise ValueError(f"there is no training with {scheme!r}")
    clicks = _Clicks(seed)
    family = drawn_family(f"two towers {seed}")
    weights: Values = (0.3 * np.random.default_rng(seed).standard_normal(clicks.elements)).astype(np.float32)
    held_out = clicks.batch(10**6, 0, EVALUATED)
    losses, sent, kept = [], 0, 0
    for step in range(steps):
        gradients = [clicks.gradient(weights, clicks.batch(step, worker, BATCH)) for worker in range(WORKERS)]
        sent += sum(int(np.count_nonzero(each)) for each in gradients)
        if scheme == "strawman":
            gradients = [_what_is_left(each, memory, family) for each in gradients]
        kept += sum(int(np.count_nonzero(each)) for each in gradients)
        total = zen_exchange(gradients, family).total if scheme == "zen" else _summed(gradients)
        weights -= np.float32(LEARNING_RATE / WORKERS) * total
        losses.append(clicks.loss(weights, held_out))
    return Trained(losses, 1.0 - kept / sent if sent else 0.0)


def _what_is_left(gradient: Values, memory: float, family: HashFamily) -> Values:
    """Return the gradient without collided values."""
    indices = nonzero_indices(gradient)
    slots = max(1, round(memory * len(indices) / WORKERS))
    left: Values = np.zeros_like(gradient)
    for part in one_hash(indices, WORKERS, slots, family):
        left[part - 1] = gradient[part - 1]
    return left


def _summed(gradients: list[Values]) -> Values:
    """Return the sum in the order of workers, as servers add up."""
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total += gradient
    return total


Batch = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


class _Clicks:
    """Clicks of users on items, both drawn by a Zipf law; both tables are in one flat tensor."""

    def __init__(self, seed: int) -> None:
        self.elements = (USERS + ITEMS) * COLUMNS
        self._seed = seed
        hidden = np.random.default_rng((seed, 7)).standard_normal(self.elements).astype(np.float32)
        self._users, self._items = self._tables(hidden)
        self._chances = [_zipf(USERS), _zipf(ITEMS)]

    def batch(self, step: int, worker: int, size: int) -> Batch:
        """Return users, items, and whether they clicked."""
        rng = np.random.default_rng((self._seed, step, worker))
        users, items = (rng.choice(len(chances), size, p=chances) for chances in self._chances)
        score = np.einsum("ij,ij->i", self._users[users], self._items[items])
        clicked = rng.random(size) < 1.0 / (1.0 + np.exp(-score))
        return users, items, clicked.astype(np.float32)

    def gradient(self, weights: Values, batch: Batch) -> Values:
        """Return the gradient of a batch's mean loss; zero except in the rows that it touches."""
        users, items, clicked = batch
        mine, theirs = self._tables(weights)
        score = np.einsum("ij,ij->i", mine[users], theirs[items])
        error = ((1.0 / (1.0 + np.exp(-score)) - clicked) / len(users))[:, None]
        gradient: NDArray[np.float32] = np.zeros(self.elements, np.float32)
        of_users, of_items = self._tables(gradient)
        np.add.at(of_users, users, (error * theirs[items]).astype(np.float32))
        np.add.at(of_items, items, (error * mine[users]).astype(np.float32))
        return gradient

    def loss(self, weights: Values, batch: Batch) -> float:
        """Return the mean cross-entropy."""
        users, items, clicked = batch
        mine, theirs = self._tables(weights)
        score = np.einsum("ij,ij->i", mine[users], theirs[items]).astype(np.float64)
        return float(np.mean(np.logaddexp(0.0, score) - clicked * score))

    def _tables(self, flat: Values) -> tuple[Values, Values]:
        cut = USERS * COLUMNS
        return flat[:cut].reshape(USERS, COLUMNS), flat[cut:].reshape(ITEMS, COLUMNS)


def _zipf(count: int) -> NDArray[np.float64]:
    weights = 1.0 / np.arange(1, count + 1, dtype=np.float64)
    return weights / weights.sum()
