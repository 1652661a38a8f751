"""Emulated bandwidth and latency of the links between emulated servers, to demonstrate a slow network."""

from __future__ import annotations

import re
from typing import Any

from launch.errors import LaunchError

_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(M|G)bps(?::(\d+(?:\.\d+)?)ms)?")
_BITS = {"M": 1e6, "G": 1e9}
#: Limits of the rate: training over less is impractical, and a machine cannot emulate more.
_LEAST_BITS, _MOST_BITS = 1e6, 1e12
_LONGEST_MILLISECONDS = 10_000.0


def emulated_link(text: str) -> dict[str, Any]:
    """Parse ``RATEMbps`` or ``RATEGbps``, optionally with ``:LATENCYms``, to the table of an agent's links.

    Without a latency, the agents' default applies. Links across racks have the same rate.

    Raises:
        LaunchError: the text has another format, or a value is out of range.
    """
    found = _PATTERN.fullmatch(text)
    bits = float(found[1]) * _BITS[found[2]] if found else 0.0
    milliseconds = float(found[3]) if found and found[3] else 0.0
    if found is None or not _LEAST_BITS <= bits <= _MOST_BITS or milliseconds > _LONGEST_MILLISECONDS:
        raise LaunchError(
            "PUNCTUAL_EMULATED_LINK is a rate from 1Mbps to 1000Gbps, perhaps with a latency of at most "
            f"10000ms, such as 100Mbps or 1Gbps:2ms, not {text!r}"
        )
    rate: dict[str, Any] = {"bytes_per_second": bits / 8}
    network = {**rate, "latency_seconds": 1e-3 * milliseconds if found[3] else 0.001}
    return {"network": network, "spine": {**rate, "latency_seconds": 0.0}}
