"""A cluster of two kinds of GPU on real parts: two slow agents and a quick one, two emulated GPUs each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from launch import Platform, PlatformSettings
from punctual.client import Client, Job
from tests.end_to_end.conftest import EXAMPLES, GLOBAL_BATCH_SIZE, wait_for, wait_until
from tests.plugins.migrated_cluster import copy_migrated_cluster
from tests.plugins.running_platform import QUICK_PERIODS

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1500)]

SLOW, QUICK = "emulated-slow", "emulated-quick"


@dataclass
class Scene:
    """The platform and a user's client."""

    platform: Platform
    person: Client

    def submit(self, name: str, iterations: int, **more: Any) -> Job:
        return self.person.submit(
            EXAMPLES / "image_classifier.py",
            name=name,
            batch_size=GLOBAL_BATCH_SIZE,
            max_iterations=iterations,
            **more,
        )

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        url = self.platform.database_url.replace("postgres://", "postgresql://", 1)
        connection = psycopg2.connect(url)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def kinds_of(self, job: Job) -> set[str]:
        """Return the kinds of the GPUs that the job trained on."""
        kinds = self.query(
            "select distinct g.kind from scheduling_assignment a join cluster_gpu g on g.id = a.gpu_id "
            "join scheduling_generation n on n.id = a.generation_id "
            "where a.job_id = %s and n.purpose = 'training'",
            job.id,
        )
        return {kind for (kind,) in kinds}

    def speeds(self) -> dict[str, dict[int, float]]:
        """Return iterations a second by GPUs for each measured kind."""
        levels = self.query(
            "select c.gpu_kind, l.gpus, l.iterations_per_second from scheduling_curvelevel l join "
            "scheduling_scalingcurve c on c.id = l.curve_id where c.state = 'ready'"
        )
        speeds: dict[str, dict[int, float]] = {}
        for kind, gpus, speed in levels:
            speeds.setdefault(kind, {})[gpus] = speed
        return speeds


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    data = Path(tempfile.mkdtemp(prefix="punctual-kinds-"))
    copy_migrated_cluster(data)
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18700, first_worker_port=25500, environment=QUICK_PERIODS, examples=False,
            agents=3, slots=2, emulate="slow:0.25,quick", warm_workers=2,
        )
    )  # fmt: skip
    try:
        platform.start()
        with Client(platform.web_url, token="") as anonymous:
            token = anonymous.login(*platform.demo_login)
        with Client(platform.web_url, token, retry_seconds=60.0) as person:
            yield Scene(platform, person)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)


def test_a_tight_job_trains_on_the_quicker_kind_in_time(scene: Scene) -> None:
    # Jobs without deadlines are placed where fewest jobs share a GPU, so both kinds are measured.
    first = [scene.submit(f"calibrate {number}", 10) for number in range(2)]
    for job in first:
        wait_for(job, lambda job: job.state == "completed", "completed", seconds=300)
    assert {kind for job in first for kind in scene.kinds_of(job)} == {SLOW, QUICK}
    speeds = wait_until(
        lambda: found if set(found := scene.speeds()) == {SLOW, QUICK} else None, "both measured", seconds=120
    )
    quickest = {kind: max(levels.values()) for kind, levels in speeds.items()}
    assert quickest[QUICK] > 1.5 * quickest[SLOW]

    seconds = 60.0
    work = int(seconds * quickest[QUICK])
    tight = scene.submit("tight", work, deadline=timedelta(seconds=1.3 * seconds + 20))
    wait_for(tight, lambda job: job.decided, "decided", seconds=60)
    assert tight.promised, tight.verdict
    wait_for(tight, lambda job: job.state == "running", "runs", seconds=60)
    easy = scene.submit("easy", 20, deadline=timedelta(seconds=600))

    for job in (tight, easy):
        wait_for(job, lambda job: job.state == "completed", "completed", seconds=300)
        assert (job.promise_outcome, job.late) == ("met", False)
    assert scene.kinds_of(tight) == {QUICK}
    assert scene.kinds_of(easy) == {SLOW}
