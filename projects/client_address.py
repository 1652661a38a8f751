"""The client address of a request, for throttles, login pages and logs."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

from django.conf import settings

#: The holder of one IPv6 address controls its whole network.
_IPV6_NETWORK_BITS = 64


def client_address(meta: Mapping[str, object]) -> str:
    """Return the caller's address as the outermost of our own proxies saw it; "" if unknown. ``meta`` is the
    request's ``META``.

    ``TRUSTED_PROXIES`` is the number of proxies in front. Each appends the address that it saw to
    ``X-Forwarded-For``, so entries further left were written by the caller and are ignored. An entry that is
    not an address is replaced by the proxy's own address.
    """
    peer = str(meta.get("REMOTE_ADDR", ""))
    forwarded = [part.strip() for part in str(meta.get("HTTP_X_FORWARDED_FOR", "")).split(",")]
    proxies = settings.TRUSTED_PROXIES
    if proxies < 1 or forwarded == [""]:
        return peer
    claimed = _without_port(forwarded[-min(proxies, len(forwarded))])
    try:
        return str(ip_address(claimed))
    except ValueError:
        return peer


def throttled_address(meta: Mapping[str, object]) -> str:
    """Return the key for throttles and fair queueing: an IPv4 address, or the network of an IPv6 address."""
    text = client_address(meta)
    try:
        address = ip_address(text)
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = int(address) >> (128 - _IPV6_NETWORK_BITS) << (128 - _IPV6_NETWORK_BITS)
    return f"{IPv6Address(network)}/{_IPV6_NETWORK_BITS}"


def _without_port(text: str) -> str:
    """Strip the port: some proxies write ``192.0.2.7:4711`` and ``[2001:db8::1]:4711``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
