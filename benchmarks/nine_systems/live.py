"""The live run: a platform of its own with emulated devices, on which all nine systems work at once."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.long.serving_day import (
    HIGHER_RATE,
    HOLD_SECONDS,
    MOST_AT_ONCE,
    PERIOD_SECONDS,
    Rush,
    clients,
    deploy,
    kill_replica,
    share_within,
    windows,
)
from benchmarks.nine_systems.evidence import Watch, jobs_table, plan_in_words, systems_table
from benchmarks.nine_systems.jobs import DEADLINE_ROOM_SECONDS, JOBS, JobKind
from benchmarks.nine_systems.tables import Table, count
from faults.processes import find
from faults.schedule import Part, Target
from launch import Platform, PlatformSettings
from launch.agents import INFERENCE_CLUSTER
from launch.emulating.emulated_link import emulated_link
from launch.settings import DEPLOYMENTS_USAGE
from launch.showing.demo_lending import read_report
from punctual.client import Job
from punctual.client.load import AddressBook, OpenLoop, Outcomes
from punctual.client.requests import JobOptions
from punctual.errors import PunctualError, WaitTimeoutError

TRAINING_SERVERS, INFERENCE_SERVERS = 4, 3
#: Links between training servers, so that gradients of two megabytes take half a second.
LINK = "32Mbps"
#: An iteration takes 1.5 s on one GPU, and half as long on two that exchange nothing.
DEVICE_MODEL = {"fixed_seconds": 0.2, "seconds_per_sample": 0.04}
ITERATION_SECONDS = 1.5
PERIODS = {
    "RESERVE_SERVERS": "1", "SLOT_SECONDS": "2", "SUSPECT_SECONDS": "6", "FENCE_SECONDS": "20",
    "REPORT_SECONDS": "0.5", "PROFILE_MAXIMUM_SECONDS": "180",
}  # fmt: skip
#: Times of faults and load changes, as shares of the run.
KILL_REPLICA_AT, KILL_WORKER_AT, RISE_AT, KILL_SERVER_AT, FALL_AT = 0.15, 0.25, 0.4, 0.55, 0.75
#: Time limit for measuring before the run; measurements that are not finished continue during it.
MEASURING_SECONDS = 420.0
#: Longest wait for the answer to a job of the run, and for promised jobs after it.
ANSWER_SECONDS, END_SECONDS = 60.0, 60.0
LOOK_SECONDS = 5.0
#: Iterations of a job submitted for measuring a function; any number will do.
FIRST_ITERATIONS = 100
#: Most submissions of a job that is declined because its function is not measured yet.
MOST_SUBMISSIONS = 4
NOT_MEASURED = "not_profiled_in_time"


@dataclass
class Promise:
    """A submitted job, and the answer to it."""

    kind: JobKind
    job: Job
    was_offered: bool = False
    submissions: int = 1

    @property
    def is_unmeasured(self) -> bool:
        """Whether it was declined because its function was not measured in time."""
        verdict = self.job.verdict
        return self.job.state == "declined" and verdict is not None and verdict.reason_code == NOT_MEASURED


@dataclass
class LiveResult:
    """Tables of the run, and the promises that were missed."""

    tables: list[Table]
    missed: list[str] = field(default_factory=list)


@contextmanager
def own_platform() -> Iterator[Platform]:
    """Run a platform with data of its own, which are removed afterwards, on Ctrl-C too."""
    data = Path(tempfile.mkdtemp(prefix="punctual-nine-"))
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18900, first_worker_port=28000, agents=TRAINING_SERVERS, slots=1,
            warm_workers=1, device_model=DEVICE_MODEL, examples=False, inference_agents=INFERENCE_SERVERS,
            inference_usage=DEPLOYMENTS_USAGE, inference_period_seconds=PERIOD_SECONDS, worker_ports=100,
            environment=PERIODS, links=emulated_link(LINK),
        )
    )  # fmt: skip
    try:
        platform.start()
        yield platform
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)


def run_live(minutes: float, seed: int) -> LiveResult:
    """Run all systems for ``minutes`` minutes after functions are measured."""
    with own_platform() as platform:
        return LiveRun(platform, 60.0 * minutes, seed).run()


class LiveRun:
    """The jobs, the load and the faults of one run."""

    def __init__(self, platform: Platform, seconds: float, seed: int) -> None:
        self.platform, self.seconds = platform, seconds
        self.person, self.operator = clients(platform)
        self.random = random.Random(seed)
        self.promises: list[Promise] = []
        self.watch = Watch()
        self.faults: list[str] = []
        self.began = 0.0

    def run(self) -> LiveResult:
        """Measure, run, wait for the promises; return the tables."""
        self.operator.inference.change(INFERENCE_CLUSTER, minimum_hold_seconds=HOLD_SECONDS)
        deployment = deploy(self.person)
        say("the deployment answers")
        rates = self._measure()
        began_at, self.began = datetime.now(UTC), time.monotonic()
        token = self.person.deployments.issue_token(deployment, "nine systems")["token"]
        loop = OpenLoop(
            AddressBook(self.person.deployments, deployment), str(token), [0.25, 0.5],
            Rush(HIGHER_RATE, None, RISE_AT * self.seconds, FALL_AT * self.seconds), MOST_AT_ONCE,
        )  # fmt: skip
        load = threading.Thread(target=loop.run, args=(self.seconds,), daemon=True)
        load.start()
        self._pass_the_time(rates, deployment, loop)
        self._finish()
        load.join(60.0)
        return self._result(began_at, deployment, loop)

    # --- jobs -----------------------------------------------------------------------------------------------

    def _measure(self) -> dict[str, float]:
        """Return each function's iterations per second on one GPU, or on the fewest that hold it.

        A function that is not measured in time gets the rate of the emulated device.
        """
        ends_at = time.monotonic() + MEASURING_SECONDS
        kinds = {kind.measured_as: kind for kind in JOBS}
        # Those that need plans are measured twice, so first.
        by_need = sorted(kinds.values(), key=lambda kind: not kind.needs_plan)
        waiting = {kind.measured_as: self._submit_first(kind) for kind in by_need}
        rates: dict[str, float] = {}
        while waiting:
            for function, job in list(waiting.items()):
                if job.refresh().decided or time.monotonic() > ends_at:
                    rates[function] = self._read_rate(kinds[function].name, waiting.pop(function))
            time.sleep(1.0)
        return rates

    def _read_rate(self, name: str, job: Job) -> float:
        """Return what was measured for a first job, and end it unless it is still being measured."""
        if job.failure:
            raise SystemExit(f"{name} was not measured: {job.state}, {job.failure['message'][:400]}")
        levels = {row["gpus"]: row["iterations_per_second"] for row in job.curve().get("levels", [])}
        text = ", ".join(f"{count(gpus, 'GPU')} {rate:.2f}" for gpus, rate in sorted(levels.items()))
        plans = ", ".join(map(plan_in_words, job.communication().get("levels", []))) or "none"
        say(f"measured {name}: {text or 'nothing yet'} iterations a second; plans: {plans}")
        if job.offer is not None and job.state == "declined":
            job.decline_offer()
        elif job.decided and not job.finished:
            job.cancel()
        return levels[min(levels)] if levels else 1.0 / ITERATION_SECONDS

    def _submit_first(self, kind: JobKind) -> Job:
        """Submit a job to measure its function; it is cancelled afterwards. If its deadline needs a plan, no
        number of GPUs meets it, so that plans are made and measured before it is declined."""
        options: JobOptions = {**kind.options, "name": f"{kind.name}: first", "project": "demo"}
        options["max_iterations"] = FIRST_ITERATIONS
        if kind.needs_plan:
            options["deadline"] = 2.0 * MEASURING_SECONDS
            options["max_iterations"] = round(10.0 * 2.0 * MEASURING_SECONDS / ITERATION_SECONDS)
        return self.person.submit(kind.function, verdict_seconds=0, **options)

    def _submit(self, kind: JobKind, rates: dict[str, float]) -> bool:
        """Submit a job. One declined because its function is not measured yet is submitted again once it is.

        Return whether its answer stays.
        """
        promise = next((each for each in self.promises if each.kind is kind), None)
        if promise is not None:
            if not promise.job.refresh().decided:
                return False
            if not promise.is_unmeasured:
                return True
            if not promise.job.curve().get("levels"):
                return False
        work = kind.work * self.seconds
        iterations = max(10, round(work * rates[kind.measured_as]))
        options: JobOptions = {
            **kind.options, "name": kind.name, "max_iterations": iterations,
            "checkpoint_seconds": 15.0, "project": "demo",
        }  # fmt: skip
        if kind.tightness is not None:
            room = 0.0 if kind.needs_plan else DEADLINE_ROOM_SECONDS
            options["deadline"] = kind.tightness * work + room
        job = self.person.submit(kind.function, verdict_seconds=0, **options)
        if promise is None:
            self.promises.append(promise := Promise(kind, job))
        else:
            promise.job, promise.submissions = job, promise.submissions + 1
        with suppress(WaitTimeoutError):
            job.wait_for_verdict(ANSWER_SECONDS)
        reason = job.verdict.reason if job.verdict is not None else ""
        self._say(f"{kind.name}: {job.state}. {reason}")
        return not promise.is_unmeasured or promise.submissions == MOST_SUBMISSIONS

    def _accept_offer(self, promise: Promise) -> None:
        if promise.job.state == "declined" and promise.job.offer is not None:
            promise.job, promise.was_offered = promise.job.accept_offer(), True
            self._say(f"{promise.kind.name}: the offered deadline is accepted")

    def _pass_the_time(self, rates: dict[str, float], deployment: str, loop: OpenLoop) -> None:
        """Submit jobs and cause faults at their times, and watch. A fault waits for a possible target."""
        happenings: list[tuple[float, Callable[[], bool]]] = [
            *((kind.arrives, partial(self._submit, kind, rates)) for kind in JOBS),
            (KILL_REPLICA_AT, partial(self._kill_replica, deployment)),
            (KILL_WORKER_AT, self._kill_worker),
            (KILL_SERVER_AT, self._kill_server),
        ]
        left = sorted(happenings, key=lambda each: each[0])
        while (now := time.monotonic() - self.began) < self.seconds:
            left = [each for each in left if each[0] * self.seconds > now or not self._is_done(each[1])]
            self._look(loop.total())
            time.sleep(LOOK_SECONDS)

    def _is_done(self, happening: Callable[[], bool]) -> bool:
        """Let something happen; return whether it did. Without an answer it is tried again later."""
        try:
            return happening()
        except PunctualError as error:
            self._say(f"no answer: {error}")
            return False

    def _finish(self) -> None:
        """Wait for the promised jobs, for `END_SECONDS` at most, and end the others."""
        for promise in self.promises:
            if promise.kind.tightness is None:
                promise.job.cancel()
        promised = [each for each in self.promises if each.kind.tightness is not None]
        ends_at = time.monotonic() + END_SECONDS
        while time.monotonic() < ends_at and not all(each.job.finished or each.job.late for each in promised):
            self._look(None)
            time.sleep(LOOK_SECONDS)

    # --- faults ---------------------------------------------------------------------------------------------

    def _kill_replica(self, deployment: str) -> bool:
        replicas = self.person.deployments.get(deployment)["replicas"]
        serving = [str(row["server"]) for row in replicas if row["state"] == "serving"]
        is_done = bool(serving) and kill_replica(self.platform, serving[0])
        if is_done:
            self._note(f"SIGKILL to the replica on {serving[0]}")
        return is_done

    def _kill_worker(self) -> bool:
        if (place := self._place_of_a_promise()) is None:
            return False
        job, server = place
        is_done = self._kill(Target(Part.WORKER, "worker", server))
        if is_done:
            self._note(f"SIGKILL to the worker of {job} on {server}")
        return is_done

    def _kill_server(self) -> bool:
        """End all processes of a server at once: its agent, its workers and the recovery points there."""
        if (place := self._place_of_a_promise()) is None:
            return False
        job, server = place
        is_done = self._kill(Target(Part.SERVER, f"agent-{server}", server))
        if is_done:
            self._note(f"SIGKILL to all processes of {server}, where {job} trains")
        return is_done

    def _kill(self, target: Target) -> bool:
        """Kill the target; return whether any process existed."""
        found = find(self.platform.folders).get(target)
        return found is not None and sum(process.send(signal.SIGKILL) for process in found.all_of) > 0

    def _place_of_a_promise(self) -> tuple[str, str] | None:
        """Return a promised job and a server on which it trains; another job each time if possible."""
        names = {each.job.id: each.kind.name for each in self.promises if each.kind.tightness is not None}
        held = [
            (names[gpu.job["id"]], server.name)
            for server in self.operator.cluster.servers()
            for gpu in server.gpus
            # A GPU may also prepare or measure another size of the job; killing that interrupts no training.
            if server.name.startswith("node-")
            and gpu.job
            and gpu.job.get("phase") == "training"
            and gpu.job.get("id") in names
        ]
        hit = " ".join(self.faults)
        fresh = [each for each in held if each[0] not in hit] or held
        return self.random.choice(sorted(fresh)) if fresh else None

    # --- what is seen ---------------------------------------------------------------------------------------

    def _look(self, load: Outcomes | None) -> None:
        """Record the evidence of running jobs, and print their progress."""
        texts = []
        for promise in self.promises:
            try:
                promise.job.refresh()
                self._accept_offer(promise)
                job = promise.job
                self.watch.look(promise.kind, job)
            except PunctualError as error:
                texts.append(f"{promise.kind.name} ? ({error})")
                continue
            if not job.finished:
                texts.append(f"{promise.kind.name} {job.progress:.0%} on {job.gpus}")
        if load is not None:
            texts.append(f"{load.sent} requests, {sum(load.failed.values())} failed")
        self._say("; ".join(texts))

    def _note(self, fault: str) -> None:
        self.faults.append(fault)
        self._say(fault)

    def _say(self, text: str) -> None:
        say(f"{time.monotonic() - self.began:5.0f} s  {text}")

    def _result(self, began_at: datetime, deployment: str, loop: OpenLoop) -> LiveResult:
        jobs = [each.job.refresh() for each in self.promises]
        lending = read_report(self.operator, INFERENCE_CLUSTER, jobs, began_at, datetime.now(UTC))
        for promise in self.promises:
            self.watch.read_metrics(promise.kind, promise.job)
        missed = [
            f"{each.kind.name} ({each.job.state})"
            for each in self.promises
            if each.job.promised and each.job.promise_outcome != "met"
        ]
        total = loop.total()
        deployment_rows = {
            "requests": str(total.sent),
            "failed": str(sum(total.failed.values())),
            "interrupted by the killed replica and sent once more": str(total.retried),
            "median, 95th percentile": f"{_ms(total.percentile(0.5))}, {_ms(total.percentile(0.95))}",
            "windows of 5 s within the target": f"{share_within(windows(loop.seconds)):.0%}",
        }
        return LiveResult(
            [
                jobs_table(self.promises),
                systems_table(self.promises, self.watch, lending.lines()),
                Table("The deployment", ("", ""), list(deployment_rows.items())),
                Table(
                    "Faults", ("", ""), [(str(number), each) for number, each in enumerate(self.faults, 1)]
                ),
            ],
            missed,
        )


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.0f} ms"
