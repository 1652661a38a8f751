"""The process that reads one bundle and ends, which frees the memory that a hostile file makes the parser
take.

Started by ``bounded``. Standard input: one line of JSON, then the bundle's bytes. Standard output: one line
of JSON. The process limits its own resources before it reads the bundle, and holds no secrets.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from pathlib import Path
from typing import Any

from punctual.bundles.archive import BundleLimits
from scheduling.bundles.errors import BundleError
from scheduling.bundles.reading import read_bundle


def main() -> None:
    """Read a request and a bundle from standard input, and write the answer to standard output."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _bind(request["memory_bytes"], request["cpu_seconds"])
    answer = _answer(request)
    sys.stdout.write(json.dumps(answer) + "\n")


def _bind(memory_bytes: int, cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(what, (0, 0))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        content = sys.stdin.buffer.read()
        facts = read_bundle(content, request["filename"], request["entry"], BundleLimits(**request["limits"]))
    except BundleError as error:
        if isinstance(error.__cause__, MemoryError) and _peak_bytes() > request["memory_bytes"] / 2:
            return {"out_of_memory": True}
        return {"refused": {"reason": error.reason, "detail": error.detail, "field": error.field}}
    except MemoryError:
        return {"out_of_memory": True}
    return {"facts": dataclasses.asdict(facts)}


def _peak_bytes() -> int:
    """Return the largest address space that this process had. It tells real exhaustion from a parser's
    MemoryError."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak:"):
            return 1024 * int(line.split()[1])
    return 0
