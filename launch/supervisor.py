"""Starts the platform's processes in order, keeps them running, and ends them in order.

It has one thread, because the kernel ties a child's death signal to the thread that forked it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launch import migrations, ports
from launch.agents import EMULATOR, LocalAgents
from launch.commands import ManagementCommands, OneShot
from launch.credentials import DEMO_USER, OPERATOR_USER, Credentials
from launch.errors import LaunchError
from launch.folders import PROJECT, Folders
from launch.forking import import_shared
from launch.postgresql import EmbeddedPostgres
from launch.privileges import Identity, unprivileged_identity
from launch.process import ManagedProcess, ProcessSpecification, cut_log
from launch.progress import Progress
from launch.services import (
    CELERY_QUEUES,
    Addresses,
    ControlPlane,
    base_environment,
    control_plane_environment,
)
from launch.settings import PlatformSettings
from launch.state import PlatformLock, write_state
from launch.stopping import StopRequests, open_promises
from launch.valkey import EmbeddedValkey

_TICK_SECONDS = 0.1
_LOG_CHECK_SECONDS = 30.0


class StopRequestedError(Exception):
    """The stop was requested while the platform was starting."""


class Supervisor:
    """One run of the platform: `run` returns when it has been stopped."""

    def __init__(self, settings: PlatformSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._folders = Folders(settings.data)
        #: In start order. They are ended in the stages of `_STOP_ORDER`.
        self._processes: dict[str, ManagedProcess] = {}
        self._requests = StopRequests()
        self._ready = False
        self._addresses: Addresses | None = None
        self._started_at = datetime.now(UTC)
        self._written: dict[str, Any] | None = None
        self._next_log_check = 0.0
        self._compiling_meanwhile: OneShot | None = None
        self._compiled_planner: ProcessSpecification | None = None
        self._deploying_example: OneShot | None = None

    def run(self) -> None:
        """Start, keep running until SIGINT, SIGTERM or SIGHUP, then stop.

        Raises LaunchError if the platform cannot be started; whatever was started by then is ended.
        """
        self._folders.prepare()
        with PlatformLock(self._folders), self._requests.caught():
            try:
                self._start()
                while not self._is_to_stop():
                    self._tick()
                    time.sleep(_TICK_SECONDS)
            except StopRequestedError:
                self._progress.say("")
            finally:
                self._stop()

    # --- start ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._progress.headline("Punctual is starting")
        settings, folders = self._settings, self._folders
        credentials = Credentials.load(folders.secrets)
        chosen = ports.choose(
            settings.host,
            {
                "web server": settings.web_port,
                "agent API": settings.agent_port,
                "streams": settings.stream_port,
            },
            settings.first_port,
        )
        first_start = self._is_first_start()
        compiling = self._begin_compiling()
        database_url, redis_url = self._start_servers()
        addresses = Addresses(
            settings.host,
            chosen["web server"],
            chosen["agent API"],
            chosen["streams"],
            database_url,
            redis_url,
        )
        self._addresses = addresses
        environment = control_plane_environment(settings, folders, addresses, credentials)
        commands = ManagementCommands(folders, environment, self._tick)
        with self._progress.step("database schema"):
            migrations.migrate(database_url, commands)
        control_plane = ControlPlane(folders, addresses, environment)
        # First, because people open its pages.
        with self._progress.step("web server"):
            web = self._begin(control_plane.web())
            import_shared(environment)  # on another processor, while the web server imports its own
            commands.are_forked = True
            web.wait_ready(self._tick)
        # They need no rows of the bootstrap, so they start in parallel with it.
        loading = [self._begin(each) for each in (control_plane.agent_api(), control_plane.streams())]
        agents = LocalAgents(settings, folders, addresses, credentials)
        with self._progress.step("users, project and agent enrolment"):
            enrolment = agents.bootstrap(commands)
        with self._progress.step("agent API and event streams"):
            for process in loading:
                process.wait_ready(self._tick)
        if compiling.is_running:
            self._progress.say(
                f"    {addresses.web_url}/ answers: log in as {DEMO_USER} / {credentials.demo_password}"
            )
        if agents.names:
            with self._progress.step(f"{len(agents.names)} node agents with {settings.slots} slots each"):
                self._start_all(agents.specifications(enrolment))
        self._start_planning(control_plane, compiling, waits=not first_start)
        if settings.has_emulated_load:
            with self._progress.step(f"emulated inference scheduler ({settings.inference_usage})"):
                self._start_all([agents.inference_emulator()])
        if settings.examples:
            self._submit_examples(agents, commands)
        self._ready = True
        self._tick()
        if settings.examples:
            self._deploying_example = agents.example_deployment()
        self._greet(addresses, credentials, chosen)

    def _submit_examples(self, agents: LocalAgents, commands: ManagementCommands) -> None:
        """Submit examples to show from the first minute. The start continues if that fails."""
        try:
            with self._progress.step("example functions and jobs"):
                agents.submit_examples(commands)
        except LaunchError as error:
            self._progress.warn(str(error))

    def _start_servers(self) -> tuple[str, str]:
        settings, folders = self._settings, self._folders
        own: list[ProcessSpecification] = []
        postgres: EmbeddedPostgres | None = None
        database_url, redis_url = settings.database_url, settings.redis_url
        if redis_url is None:
            valkey = EmbeddedValkey(folders.valkey, folders.sockets)
            redis_url = valkey.url()
            own.append(self._server("valkey", valkey))
        if database_url is None:
            postgres = EmbeddedPostgres(
                folders.postgresql, folders.sockets, unprivileged_identity(settings.root_mode)
            )
            database_url = postgres.url()
            own.append(self._server("postgresql", postgres))
        if own:
            with self._progress.step(
                " and ".join({"valkey": "Valkey", "postgresql": "PostgreSQL"}[s.name] for s in own)
            ):
                self._start_all(own)
                if postgres is not None:
                    postgres.create_database()
        return database_url, redis_url

    def _server(self, name: str, server: EmbeddedPostgres | EmbeddedValkey) -> ProcessSpecification:
        is_database = isinstance(server, EmbeddedPostgres)
        return ProcessSpecification(
            name=name,
            command=server.command(),
            environment={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            log=self._folders.logs / f"{name}.log",
            working_folder=PROJECT,
            prepare=server.prepare,
            is_ready=server.is_ready,
            stop_signal=server.stop_signal,
            stop_grace_seconds=30.0,
            death_signal=server.stop_signal,
            may_be_killed=not is_database,
            comes_first=True,
            identity=server.identity if isinstance(server, EmbeddedPostgres) else Identity(),
        )

    def _is_first_start(self) -> bool:
        """Return whether the database is new, so that the cluster is small at first."""
        return self._settings.database_url is None and not (self._folders.postgresql / "PG_VERSION").exists()

    def _begin_compiling(self) -> OneShot:
        """Compile the decision core in parallel, at low priority. Pages show that while no planner runs."""
        self._compiling.touch()
        command = ["nice", "-n", "10", sys.executable, "-m", "launch.compile_core"]
        return OneShot(
            "the decision core's compilation", command, base_environment(), self._folders.logs / "compile.log"
        )

    @property
    def _compiling(self) -> Path:
        # `scheduling/selectors/cluster/planner_presence.py` reads this file.
        return self._folders.run / "compiling"

    def _start_planning(self, control_plane: ControlPlane, compiling: OneShot, *, waits: bool) -> None:
        """Start the Celery workers. ``waits``: after the decision core is compiled, since an interpreted pass
        over a large cluster takes too long."""
        if waits or not compiling.is_running:
            with self._progress.step("decision core (compiled once, which takes a minute)"):
                compiling.wait(self._tick, timeout_seconds=900.0)
        else:
            self._progress.say("    the decision core is compiled meanwhile; it is interpreted until then")
            self._compiling_meanwhile = compiling
            self._compiled_planner = control_plane.celery("planner", node_name="compiled-planner")
        with self._progress.step("planner, control tasks and beat"):
            workers = {worker.name: worker for worker in self._celery_workers(control_plane)}
            # First, because jobs wait for decisions: fewer processes load at once.
            deciding = [workers.pop(f"celery-{queue}") for queue in ("planner", "control")]
            self._start_all([*deciding, control_plane.beat()])
        self._compiling.unlink(missing_ok=True)
        with self._progress.step("Celery workers of long tasks"):
            self._start_all(list(workers.values()))

    def _look_at_the_compiler(self) -> None:
        """Restart the processes that decide once the machine code is ready."""
        compiling, specification = self._compiling_meanwhile, self._compiled_planner
        if compiling is None or specification is None or compiling.is_running:
            return
        self._compiling_meanwhile = None
        try:
            compiling.wait(lambda: None, timeout_seconds=0.0)
            self._replace(specification)
        except LaunchError as error:
            self._progress.warn(f"decisions take longer than they should: {error}")
            return
        self._processes["web"].hang_up()
        self._progress.say("  The decision core is compiled.")

    def _look_at_the_example(self) -> None:
        """Report the example deployment when it has finished."""
        deploying = self._deploying_example
        if deploying is None or deploying.is_running:
            return
        self._deploying_example = None
        try:
            deploying.wait(lambda: None, timeout_seconds=0.0)
            self._progress.say(f"  {self._folders.example_deployed.read_text(encoding='utf-8').strip()}")
        except (LaunchError, OSError) as error:
            self._progress.warn(str(error))

    def _replace(self, specification: ProcessSpecification) -> None:
        """Replace a running process without a gap: the old one works until the new one is ready.

        Raises:
            LaunchError: the new one does not get ready; the old one continues.
        """
        old = self._processes[specification.name]
        try:
            self._begin(specification).wait_ready(self._tick)
        except LaunchError:
            if self._processes[specification.name] is not old:
                self._processes[specification.name].finish(grace_seconds=0.0)
                self._processes[specification.name] = old
            raise
        old.ask_to_stop()
        old.finish()

    def _celery_workers(self, control_plane: ControlPlane) -> list[ProcessSpecification]:
        """Return a worker for each queue. Without reported inference usage, forecasting has no worker of its
        own."""
        if self._settings.inference_agents and self._settings.inference_usage is not None:
            return [control_plane.celery(queue) for queue in CELERY_QUEUES]
        queues = [queue for queue in CELERY_QUEUES if queue != "forecasting"]
        return [
            control_plane.celery(queue, *(("forecasting",) if queue == "long" else ())) for queue in queues
        ]

    def _start_all(self, specifications: Sequence[ProcessSpecification]) -> None:
        for process in [self._begin(specification) for specification in specifications]:
            process.wait_ready(self._tick)

    def _begin(self, specification: ProcessSpecification) -> ManagedProcess:
        own = self._settings.each_environment.get(specification.name)
        if own is not None:
            # The loader reads some variables at the beginning of a program.
            specification = replace(
                specification, environment={**specification.environment, **own}, is_forked=False
            )
        process = ManagedProcess(specification)
        process.start()
        self._processes[process.name] = process
        return process

    def _greet(self, addresses: Addresses, credentials: Credentials, chosen: dict[str, int]) -> None:
        say = self._progress.say
        avoided = self._settings.web_port is None and chosen["web server"] != self._settings.first_port
        say("")
        self._progress.headline(f"Punctual runs after {self._progress.elapsed_seconds:.1f} s")
        say(
            f"  Dashboard   {addresses.web_url}/"
            + (f"   (port {self._settings.first_port} was taken)" if avoided else "")
        )
        say(f"  API         {addresses.web_url}/api/v1/")
        say(f"  Log in as   {DEMO_USER} / {credentials.demo_password}")
        say(f"  Operator    {OPERATOR_USER} / {credentials.operator_password}")
        say(f"  Admin       {addresses.web_url}/admin/ (for the operator)")
        say(f"  Logs, data  {self._folders.logs}, {self._folders.data}")
        if self._settings.emulate:
            say(f"  The GPUs are emulated ({self._settings.emulate}): real gradients, modelled speed.")
        if self._deploying_example is not None:
            say("  An example language model is trained and then deployed, so that it can be asked.")
        say(
            "  `make demo` submits a mixed workload. Ctrl-C stops everything; `make run` goes on with the "
            "same data."
        )

    # --- run ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Restart processes that ended and write the state file. Raises StopRequestedError while starting."""
        if self._requests.count and not self._ready:
            raise StopRequestedError
        self._progress.catch_up()
        for process in self._processes.values():
            # While starting, a process that ends is an error of its ready gate and is not retried.
            happened = process.keep_running() if self._ready else None
            if happened is not None:
                self._progress.warn(f"{datetime.now(UTC):%H:%M:%S} {happened}")
        if self._ready:
            self._look_at_the_compiler()
            self._look_at_the_example()
        self._write_state()
        if time.monotonic() > self._next_log_check:
            self._next_log_check = time.monotonic() + _LOG_CHECK_SECONDS
            for process in self._processes.values():
                cut_log(process.specification.log)

    def _write_state(self) -> None:
        addresses = self._addresses
        state: dict[str, Any] = {
            "supervisor_pid": os.getpid(),
            "started_at": self._started_at.isoformat(),
            "ready": self._ready,
            "processes": {
                name: {
                    "pid": process.pid,
                    "restarts": process.restarts,
                    "log": str(process.specification.log),
                }
                for name, process in self._processes.items()
            },
        }
        if addresses is not None:
            state |= {
                "web_url": addresses.web_url,
                "agent_url": addresses.agent_url,
                "stream_url": addresses.stream_url,
                "database_url": addresses.database_url,
                "redis_url": addresses.redis_url,
            }
        if state != self._written:
            write_state(self._folders, state)
            self._written = state

    # --- stop -----------------------------------------------------------------------------------------------

    def _is_to_stop(self) -> bool:
        addresses = self._addresses
        assert addresses is not None, "it runs"

        def look(meanwhile: Callable[[], None]) -> str:
            return open_promises(self._folders, addresses.database_url, addresses.redis_url, meanwhile)

        return self._requests.are_to_be_met(look, self._progress, self._tick)

    def _stop(self) -> None:
        """Stop agents first, while the control plane still accepts their last checkpoints, and the database
        last."""
        if not self._processes:
            return
        self._progress.headline("Stopping")
        already_asked = self._requests.count
        for text, belongs in _STOP_ORDER:
            stage = [process for name, process in self._processes.items() if belongs(name)]
            if not stage:
                continue
            with self._progress.step(text):
                for process in stage:
                    process.ask_to_stop()
                for process in stage:
                    self._finish(process, already_asked)
        self._processes.clear()

    def _finish(self, process: ManagedProcess, already_asked: int) -> None:
        """Wait for its end; a further Ctrl-C cuts the grace period short."""
        end = time.monotonic() + process.specification.stop_grace_seconds
        while process.is_running and time.monotonic() < end:
            if self._requests.count > already_asked and process.specification.may_be_killed:
                break
            time.sleep(0.02)
        if not process.finish(grace_seconds=0.0):
            self._progress.warn(f"{process.name} did not end by itself and was killed")


_STOP_ORDER: Sequence[tuple[str, Callable[[str], bool]]] = (
    ("emulated inference scheduler", lambda name: name == EMULATOR),
    ("node agents: jobs write their state", lambda name: name.startswith("agent-") and name != "agent-api"),
    ("beat", lambda name: name == "beat"),
    ("web server, agent API and event streams", lambda name: name in ("web", "agent-api", "streams")),
    ("Celery workers", lambda name: name.startswith("celery-")),
    ("Valkey", lambda name: name == "valkey"),
    ("PostgreSQL", lambda name: name == "postgresql"),
)
