"""The three images are built from scratch and carry a job from submission to weights."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest

from launch.agents import to_toml
from launch.folders import PROJECT
from launch.ports import choose, choose_ranges
from launch.postgresql import EmbeddedPostgres
from launch.privileges import child_setup, unprivileged_identity
from launch.valkey import EmbeddedValkey
from launch.waiting import wait_until
from punctual.client import Client
from tests.images.running_images import RunningImages

pytestmark = [pytest.mark.images, pytest.mark.timeout(3000)]

ENDED = {"completed", "failed", "declined", "cancelled"}
PASSWORD = "only-for-this-test-8d1f"
LOGIN = {"PUNCTUAL_DEMO_USER": "demo", "PUNCTUAL_OPERATOR_USER": "operator"} | dict.fromkeys(
    ("PUNCTUAL_DEMO_PASSWORD", "PUNCTUAL_OPERATOR_PASSWORD"), PASSWORD
)


@pytest.fixture(scope="module")
def built() -> None:
    subprocess.run([sys.executable, str(PROJECT / "docker" / "build_images.py")], check=True)


@pytest.fixture
def images(built: None) -> Iterator[RunningImages]:
    with tempfile.TemporaryDirectory(prefix="images-") as name:
        Path(name).chmod(0o777)
        running = RunningImages(Path(name))
        yield running
        running.close()


def test_each_image_contains_only_its_own_packages(images: RunningImages) -> None:
    code = (
        "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('django', 'torch', 's3fs', "
        "'workers.agent')])"
    )
    said = {
        image: images.run(image, ["python", "-c", code], {}).strip()
        for image in ("control-plane", "environment-builder", "agent")
    }
    assert said["control-plane"].startswith("[True, False, True")
    assert said["environment-builder"].startswith("[True, True, True")
    assert said["agent"] == "[False, True, True, True]"


@pytest.fixture
def servers(images: RunningImages) -> Iterator[dict[str, str]]:
    """Yield PostgreSQL and Valkey on ports of this machine, as containers would reach them."""
    ports = choose("127.0.0.1", {"postgresql": None, "valkey": None}, 27900)
    with tempfile.TemporaryDirectory(prefix="servers-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgresql = EmbeddedPostgres(folder / "data", folder / "sql", unprivileged_identity(), durable=False)
        valkey = EmbeddedValkey(folder / "valkey", folder / "broker", durable=False)
        postgresql.prepare()
        valkey.prepare()
        listening = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={ports['postgresql']}"]
        processes = [
            subprocess.Popen(
                [*postgresql.command(), *listening],
                preexec_fn=child_setup(signal.SIGKILL, identity=postgresql.identity),
            ),
            subprocess.Popen([*valkey.command(), "--bind", "127.0.0.1", "--port", str(ports["valkey"])]),
        ]
        database: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": ports["postgresql"],
            "user": "punctual",
            "dbname": "postgres",
        }
        try:
            assert wait_until(lambda: _connects(database) and valkey.is_ready(), timeout_seconds=60)
            connection = psycopg2.connect(**database)
            connection.autocommit = True
            connection.cursor().execute("CREATE DATABASE images")
            connection.close()
            yield {
                "DATABASE_URL": f"postgres://punctual@127.0.0.1:{ports['postgresql']}/images",
                "REDIS_URL": f"redis://127.0.0.1:{ports['valkey']}/0",
            }
        finally:
            for process in processes:
                process.send_signal(signal.SIGINT)
                process.wait()


def test_a_job_is_trained_by_the_services_of_the_compose_file(
    images: RunningImages, servers: dict[str, str]
) -> None:
    """Web, agent API, streams, Celery workers, beat and one agent, each from its image with its own
    command."""
    ports = choose("127.0.0.1", {"web": None, "agent-api": None, "streams": None}, 27000)
    common = servers | {
        "SECRET_KEY": "only-for-this-test-0123456789-0123456789-0123456789-0123456789",
        "CHECKPOINT_URL": f"file://{images.folder}/store",
        "AGENT_URL": f"http://127.0.0.1:{ports['agent-api']}",
        "STREAM_URL": f"http://127.0.0.1:{ports['streams']}",
        "RESERVE_SERVERS": "0",
    }
    images.run("control-plane", images.service_command("migrate"), common)
    bootstrap = ["python", "manage.py", "bootstrap_demo", "--agent", "node-1"]
    tokens = json.loads(images.run("control-plane", bootstrap, common | LOGIN))["agents"]
    for name, port in ports.items():
        images.start(name, "control-plane", images.service_command(name, port), common)
    for name in ("celery-planner", "celery-control", "beat"):
        images.start(name, "control-plane", images.service_command(name), common)
    builder = images.service_environment("celery-long", common)
    images.start("celery-long", "environment-builder", images.service_command("celery-long"), builder)
    _start_agent(images, common, tokens["node-1"])
    web = f"http://127.0.0.1:{ports['web']}"
    assert wait_until(lambda: _answers(f"{web}/healthz"), timeout_seconds=300), images.logs()
    with Client(web, token="") as anonymous:
        token = anonymous.login("demo", PASSWORD)
    with Client(web, token, retry_seconds=60.0) as client:
        job = client.submit(
            _zip_with_requirement(images.folder),
            name="in-images",
            batch_size=64,
            max_iterations=40,
            deadline=1200,
        )
        assert wait_until(lambda: client.job(job.id).state in ENDED, timeout_seconds=1200), images.logs()
        job_now = client.job(job.id)
        ended = (job_now.state, job_now.promise_outcome)
        assert ended == ("completed", "met"), f"{job_now.failure}\n{images.logs()}"


def _zip_with_requirement(folder: Path) -> Path:
    """Return the image example with a requirement that builds on PyTorch."""
    bundle = folder / "with_requirement.zip"
    source = (PROJECT / "examples" / "image_classifier.py").read_text()
    first = "import math\n"
    assert first in source
    with zipfile.ZipFile(bundle, "w") as archive:
        needing = source.replace(first, f"import accelerate  # noqa: F401\n{first}", 1)
        archive.writestr("image_classifier.py", needing)
        archive.writestr("requirements.txt", "accelerate\n")
    return bundle


def _start_agent(images: RunningImages, common: dict[str, str], token: str) -> None:
    ((first, last),) = choose_ranges("127.0.0.1", 1, 27100, 100)
    configuration = images.folder / "agent.toml"
    values = {
        "name": "node-1",
        "server_url": common["AGENT_URL"],
        "stream_url": common["STREAM_URL"],
        "checkpoint_url": common["CHECKPOINT_URL"],
        "data": str(images.folder / "agent"),
        "address": "127.0.0.1",
        "port_range": [first, last],
        "slots": 2,
        # A container made by chroot cannot create namespaces.
        "allow_unsandboxed": True,
        "emulate": {
            "name": "A100",
            "fixed_seconds": 0.05,
            "seconds_per_sample": 0.001,
        },
    }
    configuration.write_text(to_toml(values))
    command = ["python", "-m", "workers.agent", "run", "--config", str(configuration)]
    images.start("agent", "agent", command, {"PUNCTUAL_ENROL_TOKEN": token})


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _connects(database: dict[str, Any]) -> bool:
    try:
        psycopg2.connect(**database).close()
    except psycopg2.OperationalError:
        return False
    return True
