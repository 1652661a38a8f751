"""Addresses under which browsers and agents reach the processes: each process answers to the host name of its
own."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit


def with_host_of(url: str, hosts: Sequence[str]) -> list[str]:
    """``hosts`` and the host name of ``url``, as Django's ALLOWED_HOSTS takes them."""
    host = urlsplit(url).hostname or ""
    bracketed = f"[{host}]" if ":" in host else host
    return [*hosts, *([bracketed] if bracketed and bracketed not in hosts else [])]
