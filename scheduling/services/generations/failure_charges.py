"""What lost servers may cost each job: the slack of its promise, and the lost work that it covers.

A job's protection class is chosen when the job is first decided, and stays: its workers are given the bound,
and later promises of the same job assume the same class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from cluster.models import Cluster
from recovery.costs.expected import ExpectedFailures
from recovery.costs.failures import FailureCost
from recovery.costs.protection_class import (
    REPLICAS,
    ProtectionClass,
    StateFigures,
    chosen_class,
    durable_class,
    failure_slack_seconds,
    lost_work_seconds,
    one_failure,
)
from scheduling.checkpoint_interval import RESERVE_CHECKPOINT_SECONDS
from scheduling.choices import UNDECIDED_STATES
from scheduling.core.plans.reserve import seconds_to_place_again
from scheduling.core.question.curves import lowered
from scheduling.core.question.quantities import duration_text
from scheduling.core.question.snapshot import ScalingCurve
from scheduling.core.runtime_plans.expert_families import gradients_of
from scheduling.core.runtime_plans.plan import PlanFamily
from scheduling.link_drift import MOST_DRIFT
from scheduling.models import Job
from scheduling.models import ScalingCurve as MeasuredCurve
from scheduling.services.generations.protection import Stores
from scheduling.services.gradients.gradient_plans import server_size
from scheduling.services.rows.planned_jobs import PlannedJob
from scheduling.services.rows.records import read_cluster

#: Seconds until the control plane records a stored file; seconds between two checks of the leases.
REPORTING_SECONDS = 0.5
LEASE_LOOK_SECONDS = 2.0
#: Cost of a change to new GPUs before any was measured.
DEFAULT_PAUSE_SECONDS = 5.0


#: A losing communication plan is noticed within this time (`plan_watch.py`).
PLAN_LOOK_SECONDS = 15.0
#: The expected loss to failures is mentioned if it is more than this share of the time.
NAMED_SHARE = 0.001


def fallback_seconds(pause_seconds: float) -> float:
    """Return the cost of giving a communication plan up: the pause of one more change, and the loss until the
    next check of a plan whose iterations take a fifth longer than measured.
    """
    return pause_seconds + PLAN_LOOK_SECONDS * MOST_DRIFT / (1.0 + MOST_DRIFT)


@dataclass(frozen=True)
class CountsOn:
    """What one job's promise assumes. ``slack_seconds``: the reserved time. ``safe_lost_seconds``: the most
    work that one lost server costs; ``durable_lost_seconds``: the same if no copy in memory is left.

    ``one_failure``: the total cost of one failure. ``shares``: the promised share of the measured throughput
    at each level; failures that no slack covers are expected to take the rest (decision 0028). ``shortfall``:
    why copies that the owner asked for cannot be promised.
    """

    chosen: ProtectionClass
    failures: int
    slack_seconds: float
    safe_lost_seconds: float
    durable_lost_seconds: float
    one_failure: FailureCost
    shares: tuple[float, ...] = ()
    shortfall: str = ""

    def sentence(self) -> str:
        """Return the assumptions as sentences for people."""
        lost_share = 1.0 - min(self.shares, default=1.0)
        if lost_share <= NAMED_SHARE:
            return self._of_reserve()
        more = "More failures" if self.failures else "Failures of servers"
        return f"{self._of_reserve()} {more} are expected to take up to {lost_share:.1%} of its time."

    def _of_reserve(self) -> str:
        if not self.failures:
            return "It counts on no server being lost: none is in reserve."
        servers = "one lost server" if self.failures == 1 else f"{self.failures} lost servers"
        if not self.chosen.in_memory:
            lost = duration_text(self.durable_lost_seconds)
            return f"It counts on {servers}: at most {lost} of training again, from durable storage."
        text = f"at most {duration_text(self.safe_lost_seconds)} of training again, from a peer's memory"
        if self.failures >= self.chosen.replicas:
            lost = duration_text(self.durable_lost_seconds)
            text += f", and {lost} from durable storage where all copies are lost"
        return f"It counts on {servers}: {text}."


def class_as_json(counts_on: CountsOn) -> dict[str, Any]:
    """Return the class as a job's row stores it, with the most work that one lost server costs."""
    return {**asdict(counts_on.chosen), "lost_seconds": round(counts_on.safe_lost_seconds, 3)}


def class_from_json(kept: Mapping[str, Any]) -> ProtectionClass | None:
    """Return the class from a job's row; None if none was chosen."""
    if not kept:
        return None
    return ProtectionClass(**{name: value for name, value in kept.items() if name != "lost_seconds"})


class FailureCharges:
    """What a cluster's reserve lets each job's promise assume. Rows are read once."""

    def __init__(self, cluster: Cluster, server_gpus: int = 0) -> None:
        """``server_gpus``: GPUs of the pool's largest server; 0 if no level is promised."""
        self._cluster = cluster
        self._server_gpus = server_gpus
        #: By curve, class and request, which many jobs share. The curve is kept so that its id() is not
        #: reused.
        self._known: dict[tuple[Any, ...], tuple[ScalingCurve | None, CountsOn]] = {}
        self._promised: dict[tuple[Any, ...], tuple[ScalingCurve, ScalingCurve]] = {}

    def of(
        self,
        row: Job | PlannedJob,
        curve: ScalingCurve | None,
        *,
        measured: MeasuredCurve | None,
        any_deadline: bool = False,
    ) -> CountsOn:
        """Return the assumptions for a known job. ``curve``: its levels; ``measured``: the curve's row with
        the figures of its states. ``any_deadline``: the job asks for a later deadline that is not known yet.

        A job that was decided without a class, while no server was in reserve, may store its state as seldom
        as its owner asked.
        """
        chosen = class_from_json(row.protection_class)
        if chosen is None and row.state not in UNDECIDED_STATES:
            chosen = durable_class(max(RESERVE_CHECKPOINT_SECONDS, row.checkpoint_seconds))
        within_seconds = inf
        if row.deadline_at is not None and not any_deadline:
            within_seconds = (row.deadline_at - row.submitted_at).total_seconds()
        return self.asked_for(
            curve, measured, chosen=chosen, within_seconds=within_seconds, protection=row.asked_protection
        )

    def asked_for(
        self,
        curve: ScalingCurve | None,
        measured: MeasuredCurve | None,
        *,
        chosen: ProtectionClass | None = None,
        within_seconds: float = inf,
        protection: Mapping[str, int] = MappingProxyType({}),
    ) -> CountsOn:
        """Return the assumptions for a new request. ``chosen``: its class, if it has one. ``within_seconds``:
        from its submission to its deadline. ``protection``: what its owner asks for.
        """
        if not self._cluster.reserve_servers:
            within_seconds = inf  # no slack covers failures
        asked = tuple(sorted(protection.items()))
        key = (id(curve), None if measured is None else measured.pk, chosen, within_seconds, asked)
        if key not in self._known:
            ours = chosen or self._chosen(curve, measured, protection)
            found = replace(
                self._computed(curve, measured, ours),
                shortfall="" if chosen else self._shortfall(measured, protection),
            )
            if curve is not None and self._server_gpus:
                shares = self.shares(curve, found, within_seconds, self._server_gpus)
                found = replace(found, shares=tuple(shares))
            self._known[key] = (curve, found)
        return self._known[key][1]

    def shares(
        self, curve: ScalingCurve, counts_on: CountsOn, within_seconds: float, server_gpus: int
    ) -> list[float]:
        """Return the share of the throughput at each level that may be promised."""
        cluster = self._cluster
        expected = ExpectedFailures(cluster.failures_per_server_day, server_gpus, cluster.reserve_servers)
        return expected.shares(curve.levels.tolist(), counts_on.one_failure, within_seconds)

    def promised(self, curve: ScalingCurve, counts_on: CountsOn) -> ScalingCurve:
        """Return the curve as promises may use it. Jobs that share both arguments share the result."""
        key = (id(curve), counts_on.shares)
        if key not in self._promised:
            self._promised[key] = (curve, lowered(curve, counts_on.shares) if counts_on.shares else curve)
        return self._promised[key][1]

    def _computed(
        self, curve: ScalingCurve | None, measured: MeasuredCurve | None, chosen: ProtectionClass
    ) -> CountsOn:
        levels = curve is not None and curve.levels.size > 0
        pause = float(curve.pause_seconds.max()) if curve is not None and levels else 0.0
        iteration = _longest_iteration(curve)
        storing = REPORTING_SECONDS
        if measured is not None:
            storing += max(measured.storing_seconds or 0.0, measured.finishing_seconds)
        cluster = self._cluster
        repair_seconds = (
            cluster.fence_seconds + cluster.fence_margin_seconds + LEASE_LOOK_SECONDS,
            seconds_to_place_again(cluster.slot_seconds),
            max(pause, 2 * DEFAULT_PAUSE_SECONDS),
        )
        slack = failure_slack_seconds(
            cluster.reserve_servers,
            chosen,
            repair_seconds=repair_seconds,
            storing_seconds=storing,
            iteration_seconds=iteration,
        )
        one = one_failure(
            chosen,
            repair_seconds=repair_seconds,
            storing_seconds=storing,
            iteration_seconds=iteration,
        )
        if measured is not None and gradients_of(measured.plan_family) != PlanFamily.DENSE:
            slack += fallback_seconds(pause or DEFAULT_PAUSE_SECONDS)
        safe, durable = (
            lost_work_seconds(seconds, storing, iteration)
            for seconds in (chosen.safe_seconds, chosen.durable_seconds)
        )
        return CountsOn(chosen, cluster.reserve_servers, slack, safe, durable, one)

    def _shortfall(self, measured: MeasuredCurve | None, protection: Mapping[str, int]) -> str:
        """Return why the requested copies cannot be promised, or an empty string."""
        replicas = protection.get("replicas", 1)
        if replicas == 1:
            return ""
        room = self._stores.servers_with_room(0 if measured is None else measured.state_bytes)
        if room >= replicas:
            return ""
        servers = "1 server has" if room == 1 else f"{room} servers have"
        return f"{replicas} copies in memory were asked for, and {servers} room for one"

    def _chosen(
        self, curve: ScalingCurve | None, measured: MeasuredCurve | None, protection: Mapping[str, int]
    ) -> ProtectionClass:
        durable = durable_class(RESERVE_CHECKPOINT_SECONDS)
        if measured is None or not self._cluster.reserve_servers or protection.get("replicas") == 1:
            return durable
        if measured.copy_seconds is None or measured.storing_seconds is None or not measured.state_bytes:
            return durable
        point_seconds = None
        if measured.point_iterations is not None and curve is not None and curve.levels.size:
            point_seconds = measured.point_iterations * _longest_iteration(curve)
        storing_seconds = measured.storing_seconds + REPORTING_SECONDS
        figures = StateFigures(measured.copy_seconds, storing_seconds, point_seconds)
        return chosen_class(
            figures,
            self._stores.servers_with_room(measured.state_bytes),
            RESERVE_CHECKPOINT_SECONDS,
            replicas=protection.get("replicas", REPLICAS),
            points_seconds=protection.get("frequency", 0) * _longest_iteration(curve),
        )

    @cached_property
    def _stores(self) -> Stores:
        return Stores([self._cluster.pk])


def _longest_iteration(curve: ScalingCurve | None) -> float:
    """Return the seconds of one iteration on the slowest level; 0 without levels."""
    return 0.0 if curve is None or not curve.levels.size else 1.0 / float(curve.throughput.min())


def counts_on_sentence(job: Job) -> str:
    """Return what a decided job's promise assumes, as sentences."""
    cluster = read_cluster(job.cluster_id)
    gpus = server_size(job.curve.gpu_kind) if job.curve else 0
    return FailureCharges(cluster, gpus).of(job, _levels(job, cluster), measured=job.curve).sentence()


def _levels(job: Job, cluster: Cluster) -> ScalingCurve | None:
    """Return the levels that a charge depends on, for the longest pause and the slowest iteration."""
    if job.curve is None:
        return None
    levels = list(job.curve.levels.order_by("gpus"))
    return ScalingCurve(
        np.array([level.gpus for level in levels], dtype=np.int64),
        np.array([level.iterations_per_second * (1.0 - cluster.promise_margin) for level in levels]),
        np.array([level.pause_seconds or DEFAULT_PAUSE_SECONDS for level in levels]),
    )
