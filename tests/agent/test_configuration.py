"""Errors in the configuration are reported precisely."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from emulated_links.rates import DEFAULT_LINKS, ServerLinks
from workers.agent.machine.configuration import Configuration, ConfigurationError, load_configuration

BASE = 'server_url = "http://a"\nstream_url = "http://b/"\ncheckpoint_url = "store"\n'
MODEL = """
[emulate]
name = "a100"
fixed_seconds = 0.1
seconds_per_sample = 0.01
"""


def load(tmp_path: Path, text: str, **environment: str) -> Configuration:
    (tmp_path / "agent.toml").write_text(text)
    return load_configuration(tmp_path / "agent.toml", {}, environment)


def test_paths_are_relative_to_the_file_and_the_store_becomes_a_url(tmp_path: Path) -> None:
    loaded = load(tmp_path, BASE + 'data = "d"')
    assert loaded.data == tmp_path / "d"
    assert loaded.checkpoint_url == (tmp_path / "store").as_uri()
    assert loaded.stream_url == "http://b"


def test_variables_win_over_the_file_and_options_over_variables(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(BASE + "slots = 1\nwarm_workers = 1")
    variables = {"PUNCTUAL_AGENT_SLOTS": "2", "PUNCTUAL_AGENT_WARM_WORKERS": "2", "AGENT_URL": "http://c"}
    loaded = load_configuration(tmp_path / "agent.toml", {"slots": 3}, variables)
    assert (loaded.slots, loaded.warm_workers, loaded.server_url) == (3, 2, "http://c")


def test_an_emulated_kind_always_says_so(tmp_path: Path) -> None:
    emulate = load(tmp_path, BASE + "slots = 2" + MODEL).emulate
    assert emulate is not None
    assert emulate.kind == "emulated-a100"
    assert emulate.links == ServerLinks.from_message(DEFAULT_LINKS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slot = 3", "unknown setting 'slot'"),
        ('slots = "four"', "slots must be a number"),
        ("slots = true", "slots must be a number"),
        ("port_range = [9]", "port_range must be two numbers"),
        ("port_range = [80, 90]", "port_range must lie within"),
        ('gpus = "no"', "gpus must be true or false"),
        ("hide = 3", "hide must be a list"),
        (MODEL, "emulate needs slots"),
        ("slots = 1" + MODEL.replace("fixed_seconds = 0.1", ""), "emulate.fixed_seconds is not set"),
        ("slots = 1" + MODEL + "latency_seconds = 0.1", "on the links that emulate.links declares"),
        ("slots = 1" + MODEL + "forward_share = 1.5", "emulate.forward_share must be at most 1"),
        ("slots = 1" + MODEL + "links = 3", "emulate.links must be a table"),
        ("slots = 1" + MODEL + "[emulate.links]\nnetwork = 1", "emulate.links: network must be a table"),
        ("x = ", "is not TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, BASE + text)


def test_a_missing_required_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="checkpoint_url is not set"):
        load(tmp_path, 'server_url = "http://a"\nstream_url = "http://b"')
    with pytest.raises(ConfigurationError, match="must start with http"):
        load(tmp_path, BASE.replace("http://a", "a:1"))
    with pytest.raises(ConfigurationError, match="No such file"):
        load_configuration(tmp_path / "missing.toml", {}, {})


def test_a_token_is_never_printed(tmp_path: Path) -> None:
    assert "secret-token" not in repr(load(tmp_path, BASE, PUNCTUAL_ENROL_TOKEN="secret-token"))


@pytest.mark.parametrize(
    "setting",
    [
        'data_schemes = ["https", "sftp"]',
        'checkpoint_url = "sftp://host/store"',
        'checkpoint_url = "nowhere://x"',
    ],
)
def test_a_storage_url_without_its_library_is_refused_at_the_start(tmp_path: Path, setting: str) -> None:
    base = BASE.replace('checkpoint_url = "store"\n', "") if setting.startswith("checkpoint") else BASE
    scheme = "nowhere" if "nowhere" in setting else "sftp"
    with pytest.raises(ConfigurationError, match=f"{scheme}:// cannot be used on this server"):
        load(tmp_path, base + setting)


def test_only_schemes_that_can_be_read_are_offered_to_jobs(tmp_path: Path) -> None:
    schemes = load(tmp_path, BASE).data_schemes
    assert {"http", "https"} <= set(schemes)
    for scheme in set(schemes) - {"http", "https"}:  # read without fsspec
        fsspec.get_filesystem_class(scheme)
