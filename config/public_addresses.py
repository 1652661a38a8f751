"""Public addresses of the processes for browsers and agents: each process accepts its own host name."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit


def with_host_of(url: str, hosts: Sequence[str]) -> list[str]:
    """Return ``hosts`` with the host name of ``url`` added, in the format of Django's ALLOWED_HOSTS."""
    host = urlsplit(url).hostname or ""
    bracketed = f"[{host}]" if ":" in host else host
    return [*hosts, *([bracketed] if bracketed and bracketed not in hosts else [])]
