"""The throughput of a job by number of workers, with the best scheme for each and with all-reduces.

Sparse exchanges get denser with more workers, dense ones do not: the curve of a job with little overlap bends
earlier. The result ranks placements and plans; a promise relies on measured levels only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.choosing import NOTHING, OperationTimes
from communication.zen.plan import ZenPlan, at_batch_share, plan_sparse
from communication.zen.profile import SparsityProfile


@dataclass(frozen=True)
class CurvePoint:
    """The prediction for a number of workers.

    Attributes:
        plan: the fastest on the placement.
    """

    workers: int
    plan: ZenPlan

    @property
    def iterations_per_second(self) -> float:
        """Rate with the plan."""
        return _rate(self.plan.predicted.iteration_seconds)

    @property
    def dense_iterations_per_second(self) -> float:
        """Rate with all-reduces alone."""
        return _rate(self.plan.predicted_dense.iteration_seconds)

    @property
    def speedup(self) -> float:
        """Speedup of the plan over all-reduces; never below 1."""
        dense, planned = self.plan.predicted_dense, self.plan.predicted
        return dense.iteration_seconds / planned.iteration_seconds if planned.iteration_seconds else 1.0


def predicted_curve(
    job: str,
    model: ModelProfile,
    profiles: Sequence[SparsityProfile],
    placements: Sequence[PlacementShape],
    links: LinkProfile,
    *,
    measured_workers: int | None = 1,
    compute_seconds: Mapping[int, float] | None = None,
    times: OperationTimes = NOTHING,
) -> tuple[CurvePoint, ...]:
    """Return the points of these placements, in order of workers.

    Args:
        model, profiles: as measured with ``measured_workers`` workers, each with an equal share of the global
            batch. With more workers each share is smaller: it computes less and touches less. None: the batch
            of each worker is constant, as in the paper.
        compute_seconds: measured, of an iteration by number of workers. Otherwise compute time is assumed to
            be proportional to the batch.
    """
    points = []
    for placement in sorted(placements, key=lambda each: each.workers):
        share = 1.0 if measured_workers is None else measured_workers / placement.workers
        compute = (compute_seconds or {}).get(placement.workers, model.compute_seconds * share)
        scale = compute / model.compute_seconds if model.compute_seconds else 1.0
        scaled = model.with_times(model.backward_seconds * scale, model.other_seconds * scale)
        plan = plan_sparse(job, scaled, at_batch_share(profiles, share), placement, links, times=times)
        points.append(CurvePoint(placement.workers, plan))
    return tuple(points)


def _rate(seconds: float) -> float:
    return 1.0 / seconds if seconds else float("inf")
