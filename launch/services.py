"""The processes of the control plane: their command lines, environments, ready gates and stop behaviour."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import httpx

from launch.credentials import Credentials
from launch.folders import PROJECT, Folders
from launch.pip_configuration import uv_environment
from launch.process import ProcessSpecification
from launch.settings import PlatformSettings

#: Queue name -> processes. One planner; dispatch, reconcile, leases and the outbox; separate queues for
#: environments, gradient plans, forecasts of inference usage and simulations.
CELERY_QUEUES: Mapping[str, int] = {
    "planner": 1,
    "control": 2,
    "long": 1,
    "gradients": 1,
    "forecasting": 1,
    "simulations": 1,
}

EMPTY: Mapping[str, str] = {}
#: For processes that decide or predict decisions: they do not wait for the compiler
#: (`kernels/compiling.py`). The supervisor restarts them when the machine code is ready.
UNTIL_COMPILED: Mapping[str, str] = {"INTERPRET_UNTIL_COMPILED": "1"}

#: Each simulation runs in its own process, so that its memory usage is measured separately and freed at the
#: end.
_ONE_TASK_PER_PROCESS = frozenset({"simulations"})
#: Queues whose work keeps promises: they have priority over users' workers on the same machine.
_PROMISES_WAIT_FOR = frozenset({"planner", "control"})

#: Variables that children inherit: none of make, pip or another Django project.
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "NUMBA_CACHE_DIR",
    "SSL_CERT_FILE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)

#: Documented settings of the control plane that are passed on unchanged (docs/configuration.md).
_HANDED_ON = (
    "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", "HTTPS", "TRUST_FORWARDED_PROTO", "TRUSTED_PROXIES",
    "MAX_REQUEST_BYTES", "MAXIMUM_BUNDLE_BYTES", "MAXIMUM_UNPACKED_BUNDLE_BYTES", "BUNDLE_READING_BYTES",
    "THROTTLE_SUBMISSIONS", "DATABASE_CONN_MAX_AGE",
    "LOG_LEVEL", "DEBUG", "POLICY", "SLOT_SECONDS", "SUSPECT_SECONDS", "FENCE_SECONDS",
    "FENCE_MARGIN_SECONDS",
    "REPORT_SECONDS", "RESERVE_SERVERS", "STANDBY_SERVERS", "NEWCOMERS", "AGEING_WEIGHT",
    "ACCEPTED_FALLBACKS_A_MONTH", "FAILURES_PER_RACK_DAY", "FAILURES_PER_POWER_DOMAIN_DAY",
    "OFFER_HOLD_SECONDS", "PROFILE_SECONDS_PER_LEVEL",
    "PROFILE_MAXIMUM_SECONDS", "SNAPSHOT_RETENTION_DAYS", "CHECKPOINT_URL", "PUNCTUAL_TRACES",
    "SIMULATION_MAXIMUM_RUNS", "SIMULATION_MAXIMUM_JOBS", "SIMULATION_MAXIMUM_GPUS",
    "SIMULATION_MAXIMUM_WAITING",
    "SIMULATION_RUN_SECONDS",
)  # fmt: skip


@dataclass(frozen=True)
class Addresses:
    """Addresses of the platform."""

    #: Interface that all ports are bound to.
    host: str
    #: Port of the pages and the REST API.
    web_port: int
    #: Port of the agents' API.
    agent_port: int
    #: Port of the event streams.
    stream_port: int
    database_url: str
    redis_url: str

    @property
    def reachable_host(self) -> str:
        """Host for a client on this machine: a server on all addresses is reached at the local one."""
        return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)

    @property
    def web_url(self) -> str:
        return f"http://{self.reachable_host}:{self.web_port}"

    @property
    def agent_url(self) -> str:
        return f"http://{self.reachable_host}:{self.agent_port}"

    @property
    def stream_url(self) -> str:
        return f"http://{self.reachable_host}:{self.stream_port}"


def base_environment() -> dict[str, str]:
    """Return the variables of every process, including the agents: nothing secret."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return inherited | {"PYTHONUNBUFFERED": "1", "TZ": "UTC", "OMP_NUM_THREADS": "1"}


def control_plane_environment(
    settings: PlatformSettings, folders: Folders, addresses: Addresses, credentials: Credentials
) -> dict[str, str]:
    """Return the variables that Django and Celery read."""
    handed_on = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    hosts = ",".join(dict.fromkeys(["localhost", "127.0.0.1", "[::1]", settings.host]))
    own = {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PUNCTUAL_SERVING": "true",
        "PUNCTUAL_DATA": str(folders.data),
        "DATABASE_URL": addresses.database_url,
        "REDIS_URL": addresses.redis_url,
        "SECRET_KEY": credentials.secret_key,
        "CHECKPOINT_URL": f"file://{folders.checkpoints}",
        "ALLOWED_HOSTS": hosts,
        "STREAM_URL": os.environ.get("STREAM_URL", addresses.stream_url),
        "AGENT_URL": os.environ.get("AGENT_URL", addresses.agent_url),
    }
    installing = uv_environment()
    if "UV_FIND_LINKS" in installing:
        # Environments of functions are built from the same wheel folders.
        installing["PIP_FIND_LINKS"] = installing["UV_FIND_LINKS"].replace(",", " ")
    return base_environment() | installing | own | handed_on | dict(settings.environment)


class ControlPlane:
    """Builds the specifications of the control plane's processes."""

    def __init__(self, folders: Folders, addresses: Addresses, environment: Mapping[str, str]) -> None:
        self._folders = folders
        self._addresses = addresses
        self._environment = environment

    def web(self) -> ProcessSpecification:
        """Return the REST API and dashboard."""
        command = self._gunicorn("config.wsgi", self._addresses.web_port, workers=2)
        return self._http("web", command, self._addresses.web_url, UNTIL_COMPILED)

    def agent_api(self) -> ProcessSpecification:
        """Return the agents' API, a separate process so that requests of people do not starve agents."""
        command = self._gunicorn("config.wsgi_agents", self._addresses.agent_port, workers=1)
        return replace(self._http("agent-api", command, self._addresses.agent_url), comes_first=True)

    def streams(self) -> ProcessSpecification:
        """Return the event streams."""
        command = [
            sys.executable, "-m", "config.serving", self._addresses.host, str(self._addresses.stream_port)
        ]  # fmt: skip
        return self._http("streams", command, self._addresses.stream_url)

    def celery(self, queue: str, *also: str, node_name: str = "") -> ProcessSpecification:
        """Return the worker of one queue, and of others without their own worker.

        Its pool sometimes hangs in a warm stop, so it is killed after its grace period. ``node_name``: Celery
        node name; the queue's name by default.
        """
        node = f"{node_name or queue}@{socket.gethostname()}"
        command = [
            sys.executable, "-m", "celery", "-A", "config", "worker", "--queues", ",".join((queue, *also)),
            "--concurrency",
            str(CELERY_QUEUES[queue]), "--hostname", node, "--without-mingle", "--without-gossip",
        ]  # fmt: skip
        if queue in _ONE_TASK_PER_PROCESS:
            command += ["--max-tasks-per-child", "1"]
        heartbeat = self._folders.run / f"celery-{queue}.heartbeat"
        more = UNTIL_COMPILED if queue == "planner" else EMPTY
        return ProcessSpecification(
            name=f"celery-{queue}",
            command=command,
            environment={**self._environment, **more, "WORKER_HEARTBEAT_FILE": str(heartbeat)},
            heartbeat=heartbeat,
            log=self._folders.logs / f"celery-{queue}.log",
            working_folder=PROJECT,
            is_ready=_celery_answers(self._addresses.redis_url, node),
            is_forked=True,
            stop_grace_seconds=6.0,
            comes_first=queue in _PROMISES_WAIT_FOR,
        )

    def beat(self) -> ProcessSpecification:
        """Return the clock of the periodic tasks. Its schedule file is a cache, deleted at each start because
        a broken one would stop it."""
        schedule = self._folders.run / "beat-schedule"

        def forget_schedule() -> None:
            for part in self._folders.run.glob(f"{schedule.name}*"):
                part.unlink()

        return ProcessSpecification(
            name="beat",
            command=[
                sys.executable,
                "-m",
                "celery",
                "-A",
                "config",
                "beat",
                "-s",
                str(schedule),
                "--pidfile=",
            ],
            environment=self._environment,
            is_forked=True,
            log=self._folders.logs / "beat.log",
            comes_first=True,
            working_folder=PROJECT,
            prepare=forget_schedule,
            stop_grace_seconds=3.0,
        )

    def _gunicorn(self, application: str, port: int, *, workers: int) -> list[str]:
        # The master and its workers share what was imported before the fork (`config/preloading.py`): no
        # kernels, so workers of a later fork find the machine code that was compiled meanwhile.
        return [
            sys.executable, "-m", "gunicorn", f"{application}:application",
            "-k", "config.serving.workers.FrontWorker", "-w", str(workers), "--preload",
            "--no-control-socket", "--bind", f"{self._addresses.host}:{port}",
            "--graceful-timeout", "4", "--timeout", "90", "--log-level", "warning",
        ]  # fmt: skip

    def _http(
        self, name: str, command: list[str], url: str, more: Mapping[str, str] = EMPTY
    ) -> ProcessSpecification:
        return ProcessSpecification(
            name=name,
            command=command,
            environment={**self._environment, **more},
            log=self._folders.logs / f"{name}.log",
            working_folder=PROJECT,
            is_ready=_http_answers(url),
            stop_grace_seconds=8.0,
        )


def _http_answers(url: str) -> Callable[[], bool]:
    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=5.0, trust_env=False).status_code < 500
        except httpx.HTTPError:
            return False

    return answers


def _celery_answers(redis_url: str, node: str) -> Callable[[], bool]:
    def answers() -> bool:
        # Imported here: nothing else in this package needs it, and the import takes a third of a second.
        from celery import Celery
        from kombu.exceptions import OperationalError

        with Celery(broker=broker_url(redis_url), set_as_current=False) as application:
            try:
                return bool(application.control.ping([node], timeout=0.5))
            except OperationalError:
                return False

    return answers


def broker_url(redis_url: str) -> str:
    """Return the URL in Celery's format, which differs from redis-py's for Unix sockets."""
    if not redis_url.startswith("unix://"):
        return redis_url
    path, _, query = redis_url.removeprefix("unix://").partition("?")
    return f"redis+socket://{path}?virtual_host={query.removeprefix('db=') or '0'}"
