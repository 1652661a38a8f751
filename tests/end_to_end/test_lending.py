"""A burst of inference requests on a cluster that trains on borrowed servers, on real parts.

Two training agents and two inference agents with two emulated GPUs each; the emulated inference scheduler is
a client of the platform's API. It lends while there are no requests, and asks for everything back when the
burst comes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

from launch import Platform, PlatformSettings
from launch.credentials import Credentials
from punctual.client import Client, Job
from simulation.inference.usage import UsageSeries
from tests.end_to_end.conftest import EXAMPLES, GLOBAL_BATCH_SIZE, logged_in, wait_for, wait_until
from tests.plugins.migrated_cluster import copy_migrated_cluster
from tests.plugins.running_platform import QUICK_PERIODS
from workers.inference_emulator.emulator import Emulator
from workers.inference_emulator.load import RequestLoad

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1500)]

PERIOD_SECONDS = 4.0
SPARE_SECONDS = 10.0
INFERENCE = {"serving-1", "serving-2"}
#: A return takes seconds if agents answer, and a fence period otherwise.
BOUND_SECONDS = float(QUICK_PERIODS["FENCE_SECONDS"]) + float(QUICK_PERIODS["FENCE_MARGIN_SECONDS"])


@dataclass
class Scene:
    """The platform, a user, an operator, and the inference scheduler."""

    platform: Platform
    person: Client
    operator: Client
    emulator: Emulator

    def serve(self, usage: float) -> None:
        """Set the share of the inference cluster that the requests take from now on."""
        series = UsageSeries("drawn", "drawn by the test", np.array([usage]))
        self.emulator.load = RequestLoad(series, 2)

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float) -> None:
        """Run the inference scheduler until the condition holds."""

        def stepped() -> bool:
            if condition():
                return True
            self.emulator.step()
            return False

        wait_until(stepped, what, seconds=seconds)

    def states(self) -> set[str]:
        return {row["lending_state"] for row in self.operator.inference.servers("serving")}

    def servers_of(self, job: Job) -> set[str]:
        query = (
            "select distinct s.name from scheduling_assignment a join cluster_gpu g on g.id = a.gpu_id join "
            "cluster_server s on s.id = g.server_id where a.job_id = %s and a.state = 'held'"
        )
        with self.database() as cursor:
            cursor.execute(query, [job.id])
            return {name for (name,) in cursor.fetchall()}

    def plan_by(self, policy: str) -> None:
        """Switch the cluster to another policy, as an operator does in its settings."""
        with self.database() as cursor:
            cursor.execute(
                "update cluster_cluster set policy = %s, planning_version = planning_version + 1", [policy]
            )

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Yield a cursor on the platform's database; changes are committed at the end."""
        connection = psycopg2.connect(self.platform.database_url.replace("postgres://", "postgresql://", 1))
        try:
            with connection, connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()

    def submit(self, name: str, iterations: int, **more: Any) -> Job:
        return self.person.submit(
            EXAMPLES / "image_classifier.py",
            name=name,
            batch_size=GLOBAL_BATCH_SIZE,
            max_iterations=iterations,
            checkpoint_seconds=5.0,
            **more,
        )


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    data = Path(tempfile.mkdtemp(prefix="punctual-lending-"))
    copy_migrated_cluster(data)
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18500, first_worker_port=24500, environment=QUICK_PERIODS, examples=False,
            slots=2, warm_workers=2, inference_agents=2, inference_usage=None,
            inference_period_seconds=PERIOD_SECONDS,
        )
    )  # fmt: skip
    try:
        platform.start()
        credential = Credentials.load(platform.folders.secrets).inference_credential
        with (
            logged_in(platform, *platform.demo_login) as person,
            logged_in(platform, *platform.operator_login) as operator,
            Client(platform.web_url, credential, retry_seconds=60.0) as scheduler,
        ):
            load = RequestLoad(UsageSeries("drawn", "drawn by the test", np.array([0.0])), 2)
            emulator = Emulator(scheduler.inference, "serving", load, PERIOD_SECONDS)
            # With the default, a server stays at home for a small rise of usage.
            operator.inference.change("serving", hysteresis_fraction=0.0)
            yield Scene(platform, person, operator, emulator)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)


def test_a_burst_reclaims_servers_in_time_without_losing_work(scene: Scene) -> None:
    first = scene.submit("calibrate", 10)
    wait_for(first, lambda job: job.state == "completed", "completed", seconds=240)
    levels = {level["gpus"]: level for level in first.curve()["levels"]}
    speed = {gpus: level["iterations_per_second"] for gpus, level in levels.items()}

    scene.until(lambda: scene.states() == {"on_loan"}, "everything is lent", seconds=60)
    elastic = scene.submit("elastic", int(50 * speed[4]), seed=7)
    wait_for(elastic, lambda job: job.state == "running", "runs", seconds=60)
    promised = submit_promised(scene, speed, max(level["pause_seconds"] for level in levels.values()))
    scene.until(lambda: scene.servers_of(elastic) & INFERENCE, "trains on borrowed GPUs", seconds=60)

    take_everything_back(scene, elastic)

    wait_for(promised, lambda job: job.state == "completed", "completed", seconds=240)
    assert (promised.promise_outcome, promised.late) == ("met", False)
    ends_as_if_undisturbed(scene, elastic)


def test_under_lyra_a_job_trains_on_borrowed_servers_and_returns(scene: Scene) -> None:
    first = scene.submit("calibrate again", 10)
    wait_for(first, lambda job: job.state == "completed", "completed", seconds=240)
    speed = {level["gpus"]: level["iterations_per_second"] for level in first.curve()["levels"]}
    scene.plan_by("lyra")
    # Servers that were just returned may be lent again at once.
    scene.operator.inference.change("serving", minimum_hold_seconds=0.0)
    scene.serve(0.0)
    scene.until(lambda: scene.states() == {"on_loan"}, "everything is lent", seconds=60)
    elastic = scene.submit("elastic under lyra", int(30 * speed[4]), seed=11)
    wait_for(elastic, lambda job: job.state == "running", "runs", seconds=60)
    scene.until(lambda: scene.servers_of(elastic) & INFERENCE, "trains on borrowed GPUs", seconds=60)
    take_everything_back(scene, elastic)
    ends_as_if_undisturbed(scene, elastic)


def take_everything_back(scene: Scene, job: Job) -> None:
    """Start a burst: every server is back in time, and the job holds none of them."""
    known = {order["id"] for order in scene.operator.inference.reclaim_orders("serving")}
    scene.serve(1.0)
    scene.until(lambda: scene.states() == {"inference"}, "everything is back", seconds=BOUND_SECONDS + 40)
    scene.until(lambda: not scene.emulator.book.orders, "every order is done", seconds=20)
    orders = [
        order for order in scene.operator.inference.reclaim_orders("serving") if order["id"] not in known
    ]
    assert {order["state"] for order in orders} == {"confirmed"}
    for order in orders:
        assert order["seconds_to_return"] < BOUND_SECONDS, order
    assert not scene.servers_of(job) & INFERENCE


def ends_as_if_undisturbed(scene: Scene, job: Job) -> None:
    """Check that the job ends with the loss of an undisturbed one."""
    wait_for(job, lambda one: one.state == "completed", "completed", seconds=300)
    undisturbed = scene.submit(f"{job.name}, undisturbed", job.max_iterations, seed=job.seed)
    wait_for(undisturbed, lambda one: one.state == "completed", "completed", seconds=300)
    same, other = job.final_metrics or {}, undisturbed.final_metrics or {}
    assert same["loss"] == pytest.approx(other["loss"], rel=0.02, abs=0.01)


def submit_promised(scene: Scene, speed: dict[int, float], pause_seconds: float) -> Job:
    """Submit a job that can only be on time on all four of the platform's own GPUs."""
    spare = 2 * pause_seconds + SPARE_SECONDS
    iterations = int(1.3 * spare / ((1 / speed[2] - 1 / speed[4]) / 0.95))
    job = scene.submit("promised", iterations, deadline=iterations / (0.95 * speed[4]) + spare)
    assert job.promised, job.verdict
    return job
