"""Runs of Gemini's evaluation: a job under random failures, and promises of many jobs under a few."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from research.gemini import model, results
from research.gemini.failing_job import JobUnderFailures
from research.sources import ENGINE, code_digest, modules_digest
from research.store import RunResult
from simulation.engine.asked.settings import PoolSize, Recovery, SimulationSettings
from simulation.engine.outside.failures import MEAN_REPAIR_SECONDS, read_failures, reserve_slack_seconds
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.run import Progress, Simulation
from simulation.workloads.catalogue import load_workload, reference_gpu_type

FORMAT = 1
#: Synthetic workload and cluster of the runs on promises.
TRACE, POLICY, SERVERS, GPUS_PER_SERVER = "elasticflow", "elasticflow", 8, 8
#: Mean time between losses: so short that a second one often finds the first unrepaired.
MINUTES_APART = 5.0


@dataclass(frozen=True, slots=True)
class FailureSpec:
    """GPT-2 100B's times on a number of machines, each of which fails 0.015 times a day.

    ``in_memory``: Gemini with two replicas; otherwise a durable state every three hours (Strawman).
    ``hardware_share``: share of failures that lose a machine. ``standby``: whether there are spare servers.
    """

    machines: int
    in_memory: bool = True
    hardware_share: float = 0.5
    standby: bool = True
    days: float = 30.0
    seed: int = 0

    @property
    def name(self) -> str:
        """Scheme and machines."""
        return f"{'Gemini' if self.in_memory else 'Strawman'} on {self.machines:,} machines"

    @property
    def place(self) -> tuple[Any, ...]:
        """Runs share no workload."""
        return self.machines, self.in_memory, self.hardware_share, self.standby, self.seed

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        late = f"a server after {model.REPLACEMENT_SECONDS:g} s"
        return (
            f"simulated, {self.name}; {self.days:g} days; seed {self.seed}; "
            f"{model.FAILURES_A_DAY:g} failures of a machine a day, {self.hardware_share:.0%} of them with "
            f"its memory; {'spare servers at once' if self.standby else late}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """Return the result's key: equal for equal settings and program."""
        determined = {
            "format": FORMAT,
            "spec": self.as_json(),
            "code": modules_digest(*ENGINE, results.__name__, model.__name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def job(self) -> JobUnderFailures:
        """Return the job with the published times."""
        return JobUnderFailures(
            machines=self.machines,
            replicas=2,
            in_memory=self.in_memory,
            days=self.days,
            failures_a_day=model.FAILURES_A_DAY,
            iteration_seconds=model.gpt2_100b(self.machines).iteration_seconds,
            hardware_share=self.hardware_share,
            standby=self.standby,
            detection_seconds=model.DETECTION_SECONDS,
            serialization_seconds=2 * model.SERIALIZATION_SECONDS if self.in_memory else 0.0,
            warm_up_seconds=model.WARM_UP_SECONDS,
            replacement_seconds=model.REPLACEMENT_SECONDS,
            memory_load_seconds=model.RETRIEVAL_SECONDS,
            # The notebook's storage grows with the cluster, so a state takes as long as on 16 machines.
            durable_load_seconds=model.gpt2_100b().storage_seconds,
            durable_period_seconds=model.DURABLE_PERIOD_SECONDS,
        )

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end."""
        return results.result_of(self.job(), self.seed)


@dataclass(frozen=True, slots=True)
class PromiseSpec:
    """Promises admitted with a reserve of servers, of which as many are lost in quick succession.

    ``in_memory``: recovery from ``replicas`` copies in memory, which promises count on.
    """

    reserve: int
    in_memory: bool = False
    replicas: int = 2
    seed: int = 0

    @property
    def name(self) -> str:
        """Reserve and tier."""
        tier = f"memory, {self.replicas} replicas" if self.in_memory else "durable storage"
        return f"reserve of {self.reserve}, {tier}"

    @property
    def place(self) -> tuple[Any, ...]:
        """Runs of one seed share their failures."""
        return 0, False, 0.0, False, self.seed, self.reserve, self.in_memory, self.replicas

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        return (
            f"simulated, policy {POLICY}; workload {TRACE}; {SERVERS} x {GPUS_PER_SERVER} GPUs; slot 60 s; "
            f"pauses measured; {self.name}; {self.reserve} servers lost by seed {self.seed}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """Return the result's key: equal for equal settings and program."""
        determined = {
            "format": FORMAT,
            "spec": self.as_json(),
            "settings": [TRACE, POLICY, SERVERS, GPUS_PER_SERVER],
            "code": code_digest(POLICY, results.__name__),
            "workloads": modules_digest(load_workload.__module__, read_failures.__module__, __name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end. Raises KeyboardInterrupt if it was ended early."""
        workload = load_workload(TRACE, allow_paths=False)
        settings = SimulationSettings(
            policy=POLICY,
            pools=(PoolSize(reference_gpu_type(workload), SERVERS, GPUS_PER_SERVER),),
            reserve_servers=self.reserve,
            recovery=Recovery.MEMORY if self.in_memory else Recovery.DURABLE,
            replicas=self.replicas,
        )
        slack = reserve_slack_seconds(settings, workload)
        happenings = self.losses(float(workload.submitted_at[-1]))
        simulation = Simulation(
            workload, replace(settings, reserve_slack_seconds=slack), happenings, progress=progress
        )
        outcome = simulation.run()
        if outcome.interrupted:
            raise KeyboardInterrupt
        return results.of_promises(outcome, slack)

    def losses(self, last_submission: float) -> list[Happening]:
        """Return losses of as many different servers as the reserve has, minutes apart, and their return."""
        rng = np.random.default_rng(self.seed)
        at = last_submission * float(rng.uniform(0.2, 0.8))
        happenings = []
        for server in rng.permutation(SERVERS)[: self.reserve].tolist():
            happenings.append(Happening(at, HappeningKind.SERVER_LOST, server))
            happenings.append(Happening(at + MEAN_REPAIR_SECONDS, HappeningKind.SERVER_BACK, server))
            at += float(rng.exponential(MINUTES_APART * 60.0))
        return sorted(happenings)
