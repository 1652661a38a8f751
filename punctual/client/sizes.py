"""Sizes as people write them."""

from __future__ import annotations

import re

from punctual.errors import InvalidInputError

_UNITS = {
    unit: base**power
    for base, units in ((1000, ("B", "kB", "MB", "GB", "TB")), (1024, ("B", "KiB", "MiB", "GiB", "TiB")))
    for power, unit in enumerate(units)
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(\w*)")


def parse_size(text: str) -> int:
    """Read a size such as `20GB` (10^9) or `512MiB` (2^20); a bare number is bytes.

    Raises:
        InvalidInputError: it is none, or below one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2] or "B" if match else ""
    size = int(float(match[1]) * _UNITS[unit]) if match and unit in _UNITS else 0
    if size < 1:
        raise InvalidInputError(f"“{text[:40]}” is not a size", hint="such as 20GB or 512MiB")
    return size
