"""When to abandon a sparse plan: densities, and so predictions, drift while a job trains (Zen 3.3.2).

The dense all-reduce is always available as a fall-back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: A hashed exchange above it is abandoned, and one with a higher expected imbalance is not started.
MOST_IMBALANCE = 1.2
#: Consecutive iterations that may exceed the prediction and margin.
PATIENCE_ITERATIONS = 50
#: Relative margin over a prediction.
MARGIN = 0.15
#: Relative change of a density that calls for a new profile.
MOST_DRIFT = 0.2


@dataclass(frozen=True)
class WindowReport:
    """The workers' report of a window of iterations.

    Attributes:
        iteration_seconds: measured, in order.
        push_imbalance, pull_imbalance: of all bytes of the window, over all tensors.
    """

    iteration_seconds: Sequence[float]
    push_imbalance: float = 1.0
    pull_imbalance: float = 1.0


def reason_to_fall_back(report: WindowReport, predicted_seconds: float) -> str | None:
    """Return why the plan should be replaced, as a sentence with numbers; None if it holds."""
    worst = max(report.push_imbalance, report.pull_imbalance)
    if worst > MOST_IMBALANCE:
        return f"the fullest server received {worst:.2f} times the mean, and {MOST_IMBALANCE} is the most"
    limit = predicted_seconds * (1.0 + MARGIN)
    in_a_row = 0
    for seconds in report.iteration_seconds:
        in_a_row = in_a_row + 1 if seconds > limit else 0
        if in_a_row >= PATIENCE_ITERATIONS:
            return (
                f"{in_a_row} iterations in a row took more than {limit:.4g} s, where "
                f"{predicted_seconds:.4g} s were predicted"
            )
    return None


def has_drifted(planned: float, measured: float) -> bool:
    """Whether a density differs so much from the planned one that a new plan is due."""
    return abs(measured - planned) > MOST_DRIFT * planned


def with_densities(
    sparse: Sequence[Mapping[str, Any]], measured: Mapping[str, float]
) -> list[dict[str, Any]] | None:
    """Return records of sparse tensors with the densities measured during training; None if no density has
    drifted. Densities of sums keep their ratios to that of one worker, as far as possible.

    Args:
        sparse: as in a `CommunicationProfile`.
        measured: density of one worker's gradient, by tensor; unknown tensors and zeros are ignored.
    """
    if not any(has_drifted(one["density"], measured.get(one["name"]) or one["density"]) for one in sparse):
        return None
    return [_with_density(one, measured.get(one["name"]) or one["density"]) for one in sparse]


def _with_density(tensor: Mapping[str, Any], density: float) -> dict[str, Any]:
    sums, last = [], density
    for one in tensor["sums"]:
        moved = one["density"] * (density / tensor["density"]) if tensor["density"] else density
        last = min(1.0, one["workers"] * density, max(last, moved))
        sums.append({**one, "density": last})
    return {**tensor, "density": density, "sums": sums}
