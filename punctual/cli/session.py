"""The identity and platform of a command: the options before the command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from punctual.cli import output
from punctual.client import Client
from punctual.client.configuration import load_configuration
from punctual.client.durations import format_duration
from punctual.errors import ConfigurationError

_RETRY_SECONDS = 15.0


@dataclass(frozen=True)
class Chosen:
    """Options given before the command; None leaves them to environment and configuration file."""

    #: Address of the platform; None: the profile's.
    url: str | None = None
    #: Name of the profile; None: the default.
    profile: str | None = None


_chosen = Chosen()


def choose(url: str | None, profile: str | None) -> None:
    """Set the options of this invocation."""
    global _chosen
    _chosen = Chosen(url, profile)


def chosen() -> Chosen:
    """Return the options of this invocation."""
    return _chosen


def profile_name() -> str:
    """Return the name of the stored profile that this invocation uses."""
    return _chosen.profile or os.environ.get("PUNCTUAL_PROFILE") or load_configuration().default_profile


@contextmanager
def client(*, url: str | None = None, token: str | None = None) -> Iterator[Client]:
    """Open the client of this invocation. Retries of an unavailable server are reported once."""
    told = False

    def tell(problem: str, _seconds: float) -> None:
        nonlocal told
        if not told:
            output.note(f"{problem}; trying again for up to {format_duration(retry_seconds())} …")
        told = True

    with Client(
        url or _chosen.url, token, profile=_chosen.profile, retry_seconds=retry_seconds(), on_retry=tell
    ) as opened:
        yield opened


def retry_seconds() -> float:
    """Return how long requests to an unavailable server are retried (`PUNCTUAL_RETRY_SECONDS`)."""
    text = os.environ.get("PUNCTUAL_RETRY_SECONDS", "")
    try:
        seconds = float(text) if text else _RETRY_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise ConfigurationError("PUNCTUAL_RETRY_SECONDS is not a number of seconds")
    return seconds
