"""Where a request comes from: the one answer for throttles, login pages and logs."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

from django.conf import settings

#: Who has one IPv6 address has a network of them.
_IPV6_NETWORK_BITS = 64


def client_address(meta: Mapping[str, object]) -> str:
    """The address of a request's caller, as the outermost of our own proxies saw it; "" where there is none.
    ``meta`` is its ``META``.

    ``TRUSTED_PROXIES`` counts the proxies in front: each adds the address that it saw to ``X-Forwarded-For``,
    so what lies further left was written by the caller and is not believed. What is no address counts as the
    proxy's own.
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
    """What throttles count by and who takes turns: an IPv4 address, or the network of an IPv6 address."""
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
    """Some proxies write ``192.0.2.7:4711`` and ``[2001:db8::1]:4711``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
