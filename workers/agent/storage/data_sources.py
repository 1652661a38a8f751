"""Data that jobs declare: URLs fetched by the agent, and read-only paths. Both are restricted to what jobs
may access."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from workers.agent.machine.configuration import Configuration
from workers.agent.storage.durable_store import fetch

REDIRECTS_LIMIT = 5
TIMEOUT = httpx.Timeout(60.0, connect=10.0)


class DataError(Exception):
    """The declared data is permanently unavailable; the message says why."""


class DataNotNow(Exception):
    """The source does not answer at the moment."""


def allowed_path(path: str, configuration: Configuration) -> Path:
    """Return the real path of declared read-only data. Raises DataError unless it is below a configured
    root."""
    real = Path(path).resolve()
    if not any(real.is_relative_to(root.resolve()) for root in configuration.data_roots):
        raise DataError(f"{path} is not below any of this server's data folders (setting data_roots)")
    if not real.exists():
        raise DataError(f"{path} does not exist on this server")
    return real


def fetch_url(url: str, target: Path, configuration: Configuration) -> None:
    """Copy the content of `url` to the new file `target`. Raises DataError, or DataNotNow if a retry may
    help."""
    scheme = urlsplit(url).scheme.lower()
    # fsspec chains "a::b", where b may be any URL.
    chained = "::" in url and scheme not in ("http", "https")
    if scheme not in configuration.data_schemes or chained:
        allowed = ", ".join(configuration.data_schemes)
        raise DataError(f"{url}: declared data must be one of {allowed}")
    if (url + "/").startswith(configuration.checkpoint_url + "/"):
        raise DataError(f"{url} lies in the platform's own store")
    if scheme in ("http", "https"):
        _fetch_http(url, target, configuration)
        return
    options: Mapping[str, Any] = configuration.data_options.get(scheme, {})
    try:
        fetch(url, target, configuration.data_limit_bytes, **options)
    except (FileNotFoundError, PermissionError, ValueError, ImportError) as error:
        raise DataError(f"{url}: {error}") from error
    except Exception as error:  # each storage library has its own exceptions
        raise DataNotNow(f"{url}: {error}") from error


def _fetch_http(url: str, target: Path, configuration: Configuration) -> None:
    # No proxy, so that the checked address is the one dialled.
    with httpx.Client(timeout=TIMEOUT, trust_env=configuration.allow_private_addresses) as client:
        for _ in range(REDIRECTS_LIMIT + 1):
            try:
                with client.stream("GET", **_request(url, configuration)) as response:
                    if not response.is_redirect:
                        _save(url, response, target, configuration.data_limit_bytes)
                        return
                    url = urljoin(url, response.headers["location"])
            except httpx.InvalidURL as error:
                raise DataError(f"{url}: {error}") from error
            except httpx.HTTPError as error:
                raise DataNotNow(f"{url}: {error or type(error).__name__}") from error
    raise DataError(f"{url}: more than {REDIRECTS_LIMIT} redirects")


def _request(url: str, configuration: Configuration) -> dict[str, Any]:
    """Return the request to the checked address itself, so that a second look-up cannot lead elsewhere."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DataError(f"{url} is no http(s) URL")
    if configuration.allow_private_addresses:
        return {"url": url}
    address = public_address(parts.hostname)
    host = f"[{address}]" if ":" in address else address
    port = f":{parts.port}" if parts.port else ""
    return {
        "url": parts._replace(netloc=f"{host}{port}").geturl(),
        "headers": {"Host": f"{parts.hostname}{port}"},
        "extensions": {"sni_hostname": parts.hostname},
    }


def public_address(host: str) -> str:
    """Return an address of `host`. Raises DataError if any of its addresses is not public, DataNotNow if it
    has none."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except (OSError, UnicodeError) as error:
        raise DataNotNow(f"{host}: {error}") from error
    for text in found:
        address = ipaddress.ip_address(text.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if not address.is_global or address.is_multicast:
            raise DataError(
                f"{host} leads to the private address {address} (setting allow_private_addresses)"
            )
    return sorted(found, key=lambda text: ":" in text)[0]


def _save(url: str, response: httpx.Response, target: Path, limit_bytes: int) -> None:
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        raise DataNotNow(f"{url}: {response.status_code} {response.reason_phrase}")
    if not response.is_success:
        raise DataError(f"{url}: {response.status_code} {response.reason_phrase}")
    size = 0
    with target.open("xb") as file:
        for piece in response.iter_bytes(1 << 20):
            size += len(piece)
            if size > limit_bytes:
                raise DataError(f"{url} is larger than {limit_bytes} bytes (setting data_limit_bytes)")
            file.write(piece)
