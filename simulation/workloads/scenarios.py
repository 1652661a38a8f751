"""GPUs and numbers of workers that jobs may use: the four scenarios of Lyra's evaluation (section 3.7).

Traces do not say it, so jobs are tagged by seed. A worker is up to eight GPUs of one server; a job that asks
for more has several. Assumptions for what the paper leaves open are noted at each rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.options import option, share
from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.workloads.workload import Workload

GPUS_PER_WORKER = 8


class Scenario(StrEnum):
    """How freely jobs may be scaled and moved between kinds of GPUs."""

    BASIC = "basic"
    ADVANCED = "advanced"
    HETEROGENEOUS = "heterogeneous"
    IDEAL = "ideal"


@dataclass(frozen=True, slots=True)
class ScenarioRules:
    """One scenario, and the assumptions that go with it."""

    scenario: Scenario = Scenario.BASIC
    fungible_share: float = share(0.21, "share of jobs that can run on inference GPUs too")
    #: A12.
    fungible_share_of_elastic: float | None = share(None, "the same of elastic jobs, where it differs")
    mixing_share: float = share(0.0, "share of jobs that can use both kinds of GPUs at once")
    mixing_efficiency: float = option(
        0.7, "speed of a job on both kinds, over the sum of its parts", above_least=True
    )
    #: A22.
    mixing_efficiency_alone: float = option(
        1.0, "the same of such a job while it is on one kind", above_least=True
    )
    elastic_job_share: float = share(0.05, "share of jobs that are elastic")
    elastic_load_share: float = share(0.36, "share of all work that these do")
    #: A11: the paper gives no numbers outside Ideal.
    smallest: float = option(0.5, "fewest workers of an elastic job, over what was asked for")
    largest: float = option(2.0, "most workers of an elastic job, over what was asked for")
    #: A3: imperfect scaling is 0.8, not compounded.
    gain: float = share(1.0, "part of a worker that each worker beyond the fewest yields")
    checkpointing_share: float = share(0.0, "share of jobs that keep their progress when they are preempted")
    wrong_estimate_share: float = share(0.0, "share of jobs whose running time is misjudged")
    estimate_error: float = share(0.25, "by so much at most")
    #: As published for AFS; 0 keeps the jobs' ranges.
    unbounded_workers: int = option(
        0, "elastic jobs start on one worker and may have so many, whatever was asked for"
    )


RULES = {
    Scenario.BASIC: ScenarioRules(),
    Scenario.ADVANCED: ScenarioRules(Scenario.ADVANCED, mixing_share=0.1),
    Scenario.HETEROGENEOUS: ScenarioRules(Scenario.HETEROGENEOUS, fungible_share=0.0, mixing_share=0.1),
    Scenario.IDEAL: ScenarioRules(
        Scenario.IDEAL,
        fungible_share=1.0,
        mixing_share=1.0,
        mixing_efficiency=1.0,
        elastic_job_share=1.0,
        elastic_load_share=1.0,
        smallest=1.0,
    ),
}


@dataclass(frozen=True)
class WorkerRanges:
    """One row per job: workers of ``gpus_per_worker`` GPUs each, from ``base`` to ``most``, ``requested`` by
    its user.

    ``gain``: as in `ScenarioRules`. ``estimate_factor``: estimated running time over the real one.
    """

    gpus_per_worker: IntArray
    base: IntArray
    most: IntArray
    requested: IntArray
    fungible: BoolArray
    mixes: BoolArray
    keeps_progress: BoolArray
    estimate_factor: FloatArray
    gain: float
    mixing_efficiency: float
    mixing_efficiency_alone: float = 1.0

    @property
    def elastic(self) -> BoolArray:
        """Whether each job's number of workers may vary."""
        return self.most > self.base


def worker_ranges(
    workload: Workload, rules: ScenarioRules, seed: int, *, gpus_per_server: int = GPUS_PER_WORKER
) -> WorkerRanges:
    """Tag every job of a workload, deterministically by seed; each kind of tag has a stream of its own.

    A worker is no larger than a server.
    """
    requested_gpus = np.maximum(1, workload.requested_gpus)
    gpus_per_worker = _largest_worker(requested_gpus, min(GPUS_PER_WORKER, gpus_per_server))
    requested = requested_gpus // gpus_per_worker
    elastic = _elastic(requested_gpus * workload.requested_seconds, rules)
    streams = [np.random.default_rng(one) for one in np.random.SeedSequence([seed, 3]).spawn(5)]
    fungible, mixes, keeps, misjudged, error = (one.random(workload.jobs) for one in streams)
    base = np.maximum(1, np.ceil(requested * rules.smallest).astype(np.int64))
    most = np.maximum(base, np.floor(requested * rules.largest).astype(np.int64))
    if rules.unbounded_workers:
        base, most = np.ones_like(base), np.full_like(most, rules.unbounded_workers)
    of_elastic = rules.fungible_share_of_elastic
    fungible_share = np.where(
        elastic, rules.fungible_share if of_elastic is None else of_elastic, rules.fungible_share
    )
    factor = 1.0 + (2.0 * error - 1.0) * rules.estimate_error
    return WorkerRanges(
        gpus_per_worker=gpus_per_worker,
        base=np.where(elastic, base, requested),
        most=np.where(elastic, most, requested),
        requested=requested,
        fungible=fungible < fungible_share,
        mixes=mixes < rules.mixing_share,
        keeps_progress=keeps < rules.checkpointing_share,
        estimate_factor=np.where(misjudged < rules.wrong_estimate_share, factor, 1.0),
        gain=rules.gain,
        mixing_efficiency=rules.mixing_efficiency,
        mixing_efficiency_alone=rules.mixing_efficiency_alone,
    )


def _largest_worker(gpus: IntArray, most: int) -> IntArray:
    """Return the largest divisor of ``gpus`` that is at most ``most``, the GPUs of one worker."""
    sizes = np.arange(1, most + 1)
    return np.where(gpus[:, None] % sizes == 0, sizes, 1).max(axis=1)


def _elastic(gpu_seconds: FloatArray, rules: ScenarioRules) -> BoolArray:
    """Mark the elastic jobs: consecutive ones, in the order of work, that do the given share of all work.

    Elastic jobs are large ones, but the very largest would do far more than their published share.
    """
    count = round(rules.elastic_job_share * gpu_seconds.size)
    chosen = np.zeros(gpu_seconds.size, dtype=np.bool_)
    if count == 0:
        return chosen
    order = np.argsort(gpu_seconds, kind="stable")
    done = np.concatenate(([0.0], np.cumsum(gpu_seconds[order])))
    load = done[count:] - done[:-count]
    first = int(np.argmin(np.abs(load - rules.elastic_load_share * done[-1])))
    chosen[order[first : first + count]] = True
    return chosen
