"""Which platform, which identity: arguments, environment, configuration file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punctual.client import Profile, resolve_profile
from punctual.client.configuration import checked_url, configuration_path, load_configuration, save_profile
from punctual.errors import ConfigurationError, NoPlatformError

HERE = Profile("http://here:8000", "secret-of-here", "ada", "vision")


def test_without_a_profile_the_error_names_the_login_command() -> None:
    with pytest.raises(NoPlatformError) as refused:
        resolve_profile()
    assert "punctual login" in (refused.value.hint or "")


def test_a_stored_profile_is_read_back() -> None:
    save_profile(HERE)
    assert resolve_profile() == HERE


def test_the_file_is_readable_by_its_owner_alone() -> None:
    path = save_profile(HERE)
    path.chmod(0o644)
    save_profile(HERE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_profiles_live_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(HERE)
    save_profile(Profile("https://there", "other"), "there")
    assert resolve_profile().url == "http://here:8000"
    assert resolve_profile(profile="there").token == "other"
    monkeypatch.setenv("PUNCTUAL_PROFILE", "there")
    assert resolve_profile().url == "https://there"


def test_an_unknown_profile_is_named_with_those_that_exist() -> None:
    save_profile(HERE)
    with pytest.raises(ConfigurationError, match="known: default"):
        resolve_profile(profile="elsewhere")


def test_arguments_override_the_environment_which_overrides_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_profile(HERE)
    monkeypatch.setenv("PUNCTUAL_TOKEN", "from-environment")
    monkeypatch.setenv("PUNCTUAL_PROJECT", "speech")
    assert resolve_profile() == Profile("http://here:8000", "from-environment", "", "speech")
    assert resolve_profile(token="argument").token == "argument"


def test_a_stored_token_is_never_sent_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(HERE)
    assert resolve_profile(url="http://elsewhere:8000").token == ""
    assert resolve_profile(url="http://here:8000/").token == "secret-of-here"
    monkeypatch.setenv("PUNCTUAL_URL", "http://here.example:8000")
    assert resolve_profile() == Profile("http://here.example:8000")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("https://h/", "https://h"),
        ("http://h:1/api/v1/", "http://h:1"),
        ("http://h/punctual", "http://h/punctual"),
    ],
)
def test_addresses_are_completed(given: str, kept: str) -> None:
    assert checked_url(given) == kept


@pytest.mark.parametrize(
    "url",
    ["", "ftp://h", "http://", "http://h:99999", "http://h h", "http://u:p@h", "http://h?x=1", "http://[::1"],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        checked_url(url)


@pytest.mark.parametrize("text", ["not toml [", "profiles = 5", "[profiles]\ndefault = 7", "\xff"])
def test_a_broken_file_gives_a_readable_error(text: str) -> None:
    path = configuration_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=str(path)):
        load_configuration()


def test_an_unusable_folder_gives_a_readable_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError):
        save_profile(HERE)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_text_survives_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        save_profile(Profile("http://h", text, text, text))
        assert load_configuration().profiles["default"] == Profile("http://h", text, text, text)
