"""Ports, folders, settings and secrets of a platform on one machine."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from emulated_links.rates import DEFAULT_LINKS, LinkRate, ServerLinks
from launch import ports
from launch.agents import LocalAgents, to_toml
from launch.credentials import Credentials
from launch.emulating.emulated_kinds import emulated_kinds
from launch.errors import LaunchError
from launch.folders import Folders, make_private
from launch.services import Addresses
from launch.settings import PlatformSettings
from launch.state import PlatformLock, lock_holder, read_state, write_state


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


def test_a_taken_port_is_skipped(taken_port):
    chosen = ports.choose("127.0.0.1", {"web": None, "streams": None}, taken_port)
    assert taken_port not in chosen.values()
    assert len(set(chosen.values())) == 2


def test_a_requested_port_is_never_replaced(taken_port):
    with pytest.raises(LaunchError, match=f"port {taken_port} for the web is taken"):
        ports.choose("127.0.0.1", {"web": taken_port}, 8000)


def test_an_address_of_another_machine_is_reported():
    with pytest.raises(LaunchError, match="no address of this machine"):
        ports.is_free("192.0.2.1", 8000)


def test_each_agent_has_ports_of_its_own():
    (first, last), (next_first, _) = ports.choose_ranges("127.0.0.1", 2, 26000, 100)
    assert last == first + 99
    assert next_first > last


def test_one_agent_may_have_its_own_configuration_and_network(tmp_path):
    settings = PlatformSettings(
        data=tmp_path,
        agent_configuration={"worker_processes": 64},
        each_agent={"node-2": {"address": "10.1.0.12", "worker_processes": 32}},
        agent_namespaces={"node-2": "/run/netns/two"},
    )
    settings = PlatformSettings.from_json(settings.to_json())
    folders = Folders(tmp_path)
    folders.prepare()
    addresses = Addresses("127.0.0.1", 1, 2, 3, "postgres://x", "unix://x")
    agents = LocalAgents(settings, folders, addresses, Credentials.load(folders.secrets))
    one, two = agents.specifications({})
    assert one.command[0] == sys.executable
    assert two.command[:3] == ["nsenter", "--net=/run/netns/two", "--"]
    written = [
        tomllib.loads((folders.agents / name / "agent.toml").read_text()) for name in ("node-1", "node-2")
    ]
    assert [agent["address"] for agent in written] == ["127.0.0.1", "10.1.0.12"]
    assert [agent["worker_processes"] for agent in written] == [64, 32]


def test_a_deep_project_keeps_its_sockets_in_a_short_private_folder(tmp_path):
    deep = Folders(tmp_path / ("deep" * 30))
    assert len(str(deep.sockets)) < 80
    assert deep.sockets != Folders(tmp_path / ("deeq" * 30)).sockets
    assert Folders(Path("/srv/punctual/data")).sockets == Path("/srv/punctual/data/run/sockets")


def test_a_socket_folder_that_is_a_link_to_elsewhere_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sockets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="belongs to somebody else"):
        make_private(tmp_path / "sockets")


def test_secrets_are_made_once_and_readable_only_by_their_owner(tmp_path):
    first, second = Credentials.load(tmp_path), Credentials.load(tmp_path)
    assert first == second
    assert len({first.secret_key, first.demo_password, first.operator_password}) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PUNCTUAL_AGENTS", "two", "PUNCTUAL_AGENTS must be a whole number"),
        ("PUNCTUAL_SLOTS", "0", "of at least 1"),
        ("PUNCTUAL_WEB_PORT", "70000", "below 65536"),
        ("PUNCTUAL_ROOT_MODE", "sudo", "must be one of auto, namespace, nobody"),
        ("PUNCTUAL_EMULATE", "a100,", "lacks the name of a kind"),
        ("PUNCTUAL_EMULATE", "a100:fast", "a speed is a number from 0.01 to 100, not 'fast'"),
        ("PUNCTUAL_EMULATE", "a100:nan", "a speed is a number"),
        ("PUNCTUAL_EMULATE", "a100,t4:0.4,a100", "names a kind twice"),
        ("PUNCTUAL_EMULATED_LINK", "100", "such as 100Mbps"),
        ("PUNCTUAL_EMULATED_LINK", "0Mbps", "from 1Mbps"),
        ("PUNCTUAL_EMULATED_LINK", "1Gbps:fast", "not '1Gbps:fast'"),
        ("PUNCTUAL_EMULATED_LINK", "9e9Gbps", "a rate from"),
    ],
)
def test_an_invalid_setting_is_named(variable, value, message):
    with pytest.raises(LaunchError, match=message):
        PlatformSettings.from_environment({variable: value})


def test_settings_survive_serialisation_to_the_supervisor(tmp_path):
    settings = PlatformSettings(data=tmp_path, emulate=None, environment={"SLOT_SECONDS": "2"})
    assert PlatformSettings.from_json(settings.to_json()) == settings


def test_several_emulated_kinds_compute_at_their_own_speeds():
    quick, slow = emulated_kinds("a100, t4:0.4")
    model = {"fixed_seconds": 0.02, "seconds_per_sample": 0.004}
    assert (quick.name, quick.device_model(model)) == ("a100", model)
    assert slow.name == "t4"
    assert slow.device_model(model) == pytest.approx({"fixed_seconds": 0.05, "seconds_per_sample": 0.01})


def test_a_slow_network_is_declared_to_the_agents_as_emulated_links():
    links = PlatformSettings.from_environment({"PUNCTUAL_EMULATED_LINK": "100Mbps:5ms"}).links
    declared = tomllib.loads(to_toml({"emulate": {"links": links}}))["emulate"]["links"]
    read = ServerLinks.from_message({**DEFAULT_LINKS, **declared})
    assert read.rate("network") == LinkRate(12.5e6, 0.005)
    assert read.rate("spine").bytes_per_second == 12.5e6
    assert PlatformSettings.from_environment({}).links is None


def test_an_agents_configuration_is_toml():
    import tomllib

    values = {"name": 'a "b" \\ c', "slots": 4, "ports": [1, 2], "emulate": {"name": "x", "seconds": 20e9}}
    assert tomllib.loads(to_toml(values)) == values


def test_a_second_supervisor_on_the_same_data_is_refused(tmp_path):
    folders = Folders(tmp_path)
    hold = (
        "import sys, time; from pathlib import Path; from launch.folders import Folders;from launch.state "
        "import PlatformLock;lock = PlatformLock(Folders(Path(sys.argv[1]))).__enter__(); print('held', "
        "flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert lock_holder(folders) == holder.pid
        with (
            pytest.raises(LaunchError, match=rf"already runs .*\(process {holder.pid}\)"),
            PlatformLock(folders),
        ):
            pass
        holder.kill()
    with PlatformLock(folders):
        pass


def test_the_state_of_a_platform_that_has_ended_is_ignored(tmp_path):
    folders = Folders(tmp_path)
    folders.prepare()
    write_state(folders, {"supervisor_pid": 1, "ready": True})
    assert read_state(folders) is None
