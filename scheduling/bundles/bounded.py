"""Reading a bundle in a process of its own, with bounded memory and time.

A syntax tree can take 500 times the size of its source, and the parser's memory is not returned before the
process ends. Therefore the serving process does not parse.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from projects.errors import Unavailable
from punctual.bundles.archive import BundleFile, BundleLimits
from scheduling.bundles.errors import BundleError
from scheduling.bundles.reading import BundleFacts
from scheduling.bundles.requirements import Requirements

_SOURCE_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from scheduling.bundles.reading_process import main; main()"
)
#: Each serving process reads one bundle at a time, so memory is bounded by one bundle's bound per process.
_READING = threading.BoundedSemaphore(1)
_MEBIBYTE = 1024**2


@dataclass(frozen=True, slots=True)
class ReadingBounds:
    """Limits for reading one bundle: address space, processor time, and elapsed time (longer, for busy
    machines)."""

    memory_bytes: int = 512 * _MEBIBYTE
    cpu_seconds: int = 10
    wall_seconds: float = 30.0


def read_bundle_apart(
    content: bytes, filename: str, entry: str | None, limits: BundleLimits, bounds: ReadingBounds
) -> BundleFacts:
    """As :func:`scheduling.bundles.reading.read_bundle`, in a separate process without this one's
    environment.

    Raises:
        BundleError: the bundle is invalid, or reading it exceeds ``bounds``.
        Unavailable: other bundles are being read; retry soon.
    """
    request = {
        "filename": filename,
        "entry": entry,
        "limits": dataclasses.asdict(limits),
        "memory_bytes": bounds.memory_bytes,
        "cpu_seconds": bounds.cpu_seconds,
    }
    if not _READING.acquire(timeout=bounds.wall_seconds):
        raise Unavailable("Other functions are being read; send this one again soon.")
    try:
        answer = _ask(json.dumps(request).encode() + b"\n" + content, bounds)
    finally:
        _READING.release()
    if "facts" not in answer:
        raise BundleError(**answer["refused"])
    return _facts(answer["facts"])


def _ask(message: bytes, bounds: ReadingBounds) -> dict[str, Any]:
    command = [sys.executable, "-I", "-B", "-c", _PROGRAM, str(_SOURCE_ROOT)]
    try:
        # The environment holds the platform's credentials, so none of it is passed on.
        done = subprocess.run(
            command,
            input=message,
            capture_output=True,
            timeout=bounds.wall_seconds,
            check=False,
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as error:
        raise _too_much(f"{bounds.wall_seconds:g} s") from error
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise _too_much(f"{bounds.cpu_seconds} s of processor time")
    # Without memory, the parser cannot always report a MemoryError.
    if done.returncode < 0 or b"MemoryError" in done.stderr:
        raise _too_much_memory(bounds)
    if done.returncode != 0:
        raise RuntimeError(f"the bundle could not be read: {done.stderr[-2000:].decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if answer.get("out_of_memory"):
        raise _too_much_memory(bounds)
    return answer


def _too_much_memory(bounds: ReadingBounds) -> BundleError:
    return _too_much(f"{bounds.memory_bytes // _MEBIBYTE} MiB of memory")


def _too_much(what: str) -> BundleError:
    return BundleError(
        "too_costly_to_read",
        f"Reading the bundle's source takes more than {what}. Data does not belong into source: "
        "name it in the job's `data`.",
    )


def _facts(facts: dict[str, Any]) -> BundleFacts:
    requirements = facts["requirements"]
    return BundleFacts(
        digest=facts["digest"],
        size_bytes=facts["size_bytes"],
        entry=facts["entry"],
        description=facts["description"],
        speed_neutral=tuple(facts["speed_neutral"]),
        worker_counts=tuple(facts["worker_counts"]),
        predict_problem=facts["predict_problem"],
        experts=None if facts["experts"] is None else tuple(facts["experts"]),
        requirements=None if requirements is None else Requirements(**requirements),
        files=tuple(BundleFile(**file) for file in facts["files"]),
    )
