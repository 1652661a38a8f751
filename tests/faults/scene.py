"""The platform under faults: three agents with two emulated slots each, and a reserve of one server.

If the machine permits it, each agent has a network namespace with its own address, and its own small disk.
All messages of an agent to the control plane go through proxies.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults.clocks import Clocks, find_library
from faults.injecting import Means, Undo
from faults.processes import find
from faults.proxy import Proxy
from faults.reading import reader
from faults.schedule import Part, Target
from launch import Platform, PlatformSettings
from punctual.client import Client
from punctual.errors import PunctualError
from tests.faults.network import Networks, NoNetworksError
from tests.faults.planted import environment as planted_environment
from tests.plugins.migrated_cluster import copy_migrated_cluster
from tests.plugins.running_platform import QUICK_PERIODS
from workers.runtime.at_home.local_ports import free_port

FUNCTIONS = Path(__file__).parent / "functions"
SERVERS = ("node-1", "node-2", "node-3")
SLOTS = 2
RESERVE_SERVERS = 1
MEBIBYTE = 1024**2
WORKER_BYTES = 1536 * MEBIBYTE
#: An agent's files here take a tenth of it.
DISK_BYTES = 512 * MEBIBYTE
PROJECT_NAME = "faults"
#: Processes of the control plane that could run on hosts with their own clocks; then those beside them whose
#: clock jumps only together with all others'.
CLOCKED = ("web", "agent-api", "celery-planner", "celery-control", "celery-long", "beat")
ONE_HOST = (*CLOCKED, "streams", "postgresql", "valkey")


@dataclass
class Scene:
    """The running platform, its user, and the means of injecting faults."""

    platform: Platform
    client: Client
    means: Means
    #: What this machine does not permit, in words.
    without: list[str]
    reserve_servers: int = 0
    #: The planted defect; empty for none.
    planted: str = ""

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Read the platform's database directly."""
        return reader(self.platform.database_url)(sql, *parameters)


@contextmanager
def running_scene(
    *,
    with_clocks: bool = False,
    whole_servers: bool = False,
    reserve_servers: int = RESERVE_SERVERS,
    planted: str = "",
) -> Iterator[Scene]:
    """Start the platform; stop and remove everything at the end. ``planted``: a defect of the control plane.

    Raises NoClocksError if clock faults are requested but impossible.
    """
    data = Path(tempfile.mkdtemp(prefix="punctual-faults-"))
    copy_migrated_cluster(data)
    without: list[str] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        networks = _networks(stack, without)
        disks = _disks(stack, data, without)
        clocks = _clocks(stack) if with_clocks else None
        agent_port, stream_port = free_port(), free_port()
        proxies = {
            server: [
                stack.enter_context(
                    Proxy((networks.gateway if networks else "127.0.0.1", 0), ("127.0.0.1", port))
                )
                for port in (agent_port, stream_port)
            ]
            for server in SERVERS
        }
        platform = Platform(
            PlatformSettings(
                data=data,
                first_port=18800,
                agent_port=agent_port,
                stream_port=stream_port,
                first_worker_port=28500,
                environment=QUICK_PERIODS
                | {"RESERVE_SERVERS": str(reserve_servers), "PROFILE_SECONDS_PER_LEVEL": "1"}
                | planted_environment(planted),
                agents=len(SERVERS),
                slots=SLOTS,
                agent_configuration={"worker_memory_bytes": WORKER_BYTES},
                each_agent={server: _own(server, proxies[server], networks) for server in SERVERS},
                agent_namespaces={server: networks.file(server) for server in SERVERS} if networks else {},
                each_environment=_clocked(clocks) if clocks else {},
                warm_workers=SLOTS,
                examples=False,
            )
        )
        stack.callback(platform.remove_sockets)
        stack.callback(_stop, platform)
        platform.start()
        client = stack.enter_context(_user(platform))
        means = Means(
            find=lambda: find(platform.folders),
            proxies=proxies,
            links=networks,
            disks=disks,
            fill_memory=lambda: _glutton(client),
            peers=networks.pairs() if networks else (),
            clocks=_turns(clocks) if clocks else {},
            whole_servers=whole_servers,
        )
        yield Scene(platform, client, means, without, reserve_servers, planted)


def _networks(stack: ExitStack, without: list[str]) -> Networks | None:
    try:
        return stack.enter_context(Networks(SERVERS))
    except NoNetworksError as error:
        without.append(f"nothing befalls links between agents: {error}")
        return None


def _disks(stack: ExitStack, data: Path, without: list[str]) -> dict[str, Path]:
    """Make a disk of bounded size for each agent's folder."""
    (data / "agents").mkdir()
    (data / "agents").chmod(0o711)
    disks = {}
    for server in SERVERS:
        folder = data / "agents" / server
        folder.mkdir(mode=0o711)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0711", "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            without.append(f"no disk is filled: {done.stderr.strip()}")
            return {}
        stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)
        disks[server] = folder
    return disks


def _clocks(stack: ExitStack) -> Clocks:
    """Return clocks in a folder that every user can enter, unlike the platform's own."""
    library = find_library()
    folder = Path(tempfile.mkdtemp(prefix="punctual-clocks-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o711)
    return Clocks(library, folder)


def _clocked(clocks: Clocks) -> dict[str, dict[str, str]]:
    return {
        name: clocks.environment(name) for name in (*ONE_HOST, *(f"agent-{server}" for server in SERVERS))
    }


def _turns(clocks: Clocks) -> dict[Target, Callable[[float], Undo]]:
    """Return the clocks by what they apply to: an agent, one process, the whole control plane."""
    together: dict[Target, Sequence[str]] = {
        Target(Part.CLOCK, f"agent-{server}", server): (f"agent-{server}",) for server in SERVERS
    }
    together |= {Target(Part.CLOCK, name): (name,) for name in CLOCKED}
    together[Target(Part.CLOCK, "control plane")] = ONE_HOST
    return {target: partial(clocks.turn, names) for target, names in together.items()}


def _own(server: str, proxies: list[Proxy], networks: Networks | None) -> dict[str, Any]:
    host = networks.gateway if networks else "127.0.0.1"
    own = {
        "server_url": f"http://{host}:{proxies[0].port}",
        "stream_url": f"http://{host}:{proxies[1].port}",
    }
    return own | ({"address": networks.address(server)} if networks else {})


def _stop(platform: Platform) -> None:
    if platform.is_running:
        platform.stop()


def _user(platform: Platform) -> Client:
    name, password = platform.demo_login
    with Client(platform.web_url, token="") as stranger:
        token = stranger.login(name, password)
    client = Client(platform.web_url, token, retry_seconds=120.0, timeout_seconds=60.0)
    upload(client)
    return client


def upload(client: Client) -> None:
    """Store the functions that are trained under faults."""
    client.projects.create(PROJECT_NAME)
    for name in ("steps", "glutton"):
        client.functions.upload(FUNCTIONS / f"{name}.py", project=PROJECT_NAME)


def _glutton(client: Client) -> Undo:
    """Submit a job whose worker takes memory until it is killed. Runs in its own thread, since a request
    during other faults may wait for their end."""

    def submit() -> None:
        with suppress(PunctualError):
            client.submit(
                "glutton@1", project=PROJECT_NAME, name="glutton", batch_size=8, max_iterations=100,
                verdict_seconds=0,
            )  # fmt: skip

    threading.Thread(target=submit, name="glutton", daemon=True).start()
    return lambda: None
