"""The platform's address and the user's identity: arguments, then environment, then the file's profiles.

The file is `$XDG_CONFIG_HOME/punctual/config.toml` (else `~/.config/…`), readable only by its owner. A stored
token is only sent to the address stored with it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from punctual.errors import ConfigurationError, NoPlatformError

DEFAULT_PROFILE = "default"
_PROFILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Profile:
    """One platform and one identity there. Empty text means unset."""

    #: Address of the platform.
    url: str = ""
    #: API token.
    token: str = field(default="", repr=False)
    #: User of the token.
    username: str = ""
    project: str = ""

    def with_token(self, token: str) -> Profile:
        """Return the profile with another token (empty: logged out)."""
        return replace(self, token=token)


@dataclass(frozen=True)
class Configuration:
    """The file's contents: profiles by name, and the default one."""

    profiles: dict[str, Profile]
    default_profile: str = DEFAULT_PROFILE


def configuration_path() -> Path:
    """Return the path of the configuration file, which may not exist."""
    home = os.environ.get("XDG_CONFIG_HOME")
    try:
        base = Path(home) if home else Path.home() / ".config"
    except RuntimeError as error:
        raise ConfigurationError(
            "no home folder is known", hint="set XDG_CONFIG_HOME, or PUNCTUAL_URL"
        ) from error
    return base / "punctual" / "config.toml"


def load_configuration() -> Configuration:
    """Read the file; a missing one is empty.

    Raises:
        ConfigurationError: it cannot be read, or does not have the format of `punctual login`.
    """
    path = configuration_path()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Configuration({})
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{path} cannot be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not valid: {error}", hint="correct it or remove it") from error
    tables = content.get("profiles", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigurationError(
            f"{path} is not valid: [profiles.NAME] must be tables", hint="correct it or remove it"
        )
    profiles = {name: _read_profile(table) for name, table in tables.items()}
    return Configuration(profiles, str(content.get("default_profile", DEFAULT_PROFILE)))


def _read_profile(table: dict[str, object]) -> Profile:
    known = Profile.__dataclass_fields__
    return Profile(**{key: value for key, value in table.items() if key in known and isinstance(value, str)})


def save_profile(profile: Profile, name: str | None = None) -> Path:
    """Write one profile (the named or the default one) and keep the others. Return the file's path.

    Raises:
        ConfigurationError: the name does not consist of letters, digits, `-` and `_`, or the file cannot be
            written.
    """
    configuration = load_configuration()
    name = checked_profile_name(name or configuration.default_profile)
    return _write(Configuration(configuration.profiles | {name: profile}, configuration.default_profile))


def checked_profile_name(name: str) -> str:
    """Return the name if it is a valid profile name. Raises ConfigurationError."""
    if not _PROFILE_NAME.fullmatch(name):
        raise ConfigurationError("a profile's name is made of letters, digits, - and _")
    return name


def _write(configuration: Configuration) -> Path:
    lines = [f"default_profile = {_quote(configuration.default_profile)}"]
    for name, profile in sorted(configuration.profiles.items()):
        lines += ["", f"[profiles.{_quote(name)}]"]
        lines += [f"{key} = {_quote(value)}" for key, value in asdict(profile).items() if value]
    path = configuration_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A temporary file has mode 0600, so the token is never readable by others.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        Path(temporary).replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _quote(text: str) -> str:
    # A JSON string is a TOML basic string, except for the delete character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def resolve_profile(
    url: str | None = None, token: str | None = None, project: str | None = None, profile: str | None = None
) -> Profile:
    """Combine arguments, `PUNCTUAL_URL`, `PUNCTUAL_TOKEN`, `PUNCTUAL_PROJECT`, `PUNCTUAL_PROFILE` and the
    file.

    Raises:
        NoPlatformError: no address is known.
        ConfigurationError: it is not an http(s) address, or the named profile does not exist.
    """
    named = profile or os.environ.get("PUNCTUAL_PROFILE") or None
    given_url = url or os.environ.get("PUNCTUAL_URL") or ""
    given_token = token or os.environ.get("PUNCTUAL_TOKEN") or ""
    given_project = project or os.environ.get("PUNCTUAL_PROJECT") or ""
    stored = _stored_profile(named)
    if not given_url and not stored.url:
        raise NoPlatformError("no platform is known", hint="run `punctual login URL`, or set PUNCTUAL_URL")
    chosen_url = checked_url(given_url or stored.url)
    same_platform = not given_url or (bool(stored.url) and chosen_url == checked_url(stored.url))
    return Profile(
        url=chosen_url,
        token=given_token or (stored.token if same_platform else ""),
        username=stored.username if same_platform and not given_token else "",
        project=given_project or (stored.project if same_platform else ""),
    )


def _stored_profile(named: str | None) -> Profile:
    configuration = load_configuration()
    if named is not None and named not in configuration.profiles:
        known = ", ".join(sorted(configuration.profiles)) or "none"
        raise ConfigurationError(
            f"there is no profile “{checked_profile_name(named)}” (known: {known})",
            hint=f"run `punctual --profile {named} login URL`",
        )
    return configuration.profiles.get(named or configuration.default_profile, Profile())


def checked_url(url: str) -> str:
    """Return the platform's address without a trailing slash; `http://` is added to a bare host.

    Raises:
        ConfigurationError: it is not an http or https address.
    """
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = urlsplit(text)
        valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        valid = False
    if not valid or any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigurationError("the platform's address is not valid", hint="write it as http://host:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError("the platform's address carries more than host, port and path")
    return text.rstrip("/").removesuffix("/api/v1")
