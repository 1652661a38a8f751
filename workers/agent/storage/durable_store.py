"""The durable store: checkpoints and artifacts under keys of protocol 3, by fsspec."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs

from workers.agent.machine.durable_files import synchronise_folder
from workers.agent.storage.link_copies import Carry, at_once

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A durable file. `uri`: its location for anyone with access to the store."""

    uri: str
    bytes: int
    sha256: str


def shard_key(job: str, generation: int, iteration: int, rank: int) -> str:
    """Return a key unique to generation, iteration and rank, so that an old generation overwrites nothing."""
    return f"jobs/{job}/checkpoints/{generation}-{iteration}/{rank}.pt"


def artifact_key(job: str, generation: int, name: str) -> str:
    """Return the key of a file in a job's result."""
    return f"jobs/{job}/artifacts/{generation}/{name}"


class DurableStore:
    """Stores and fetches files. Raises the errors of fsspec's file systems; a retry may help with any."""

    def __init__(self, url: str, carry: Carry = at_once) -> None:
        """`carry`: waits for emulated links."""
        self.url = url
        self._carry = carry
        self._file_system, self._root = url_to_fs(url)
        self._is_local = "file" in _protocols(self._file_system)

    def store(self, source: BinaryIO, key: str) -> StoredFile:
        """Copy `source` to `key`; on return it survives a power cut. It is never visible partially."""
        if self._is_local:
            size, digest = _store_locally(source, Path(self._root) / key, self._carry)
        else:
            # Object stores show an object only once it is complete.
            with self._file_system.open(f"{self._root}/{key}", "wb") as target:
                size, digest = _copy(source, target, carry=self._carry)
        return StoredFile(f"{self.url}/{key}", size, digest)


def fetch(uri: str, target: Path, limit_bytes: int, carry: Carry = at_once, **options: Any) -> str:
    """Copy the content of `uri` to the new file `target`; return its SHA-256. `carry` waits for emulated
    links.

    Raises FileNotFoundError, ValueError (too big), and the errors of fsspec's file systems.
    """
    with fsspec.open(uri, "rb", **options) as source, target.open("xb") as file:
        return _copy(cast(BinaryIO, source), file, limit_bytes, carry)[1]


def _protocols(file_system: Any) -> tuple[str, ...]:
    protocol = file_system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _store_locally(source: BinaryIO, target: Path, carry: Carry) -> tuple[int, str]:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            result = _copy(source, file, carry=carry)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    synchronise_folder(target.parent)
    return result


def _copy(
    source: BinaryIO, target: Any, limit_bytes: int | None = None, carry: Carry = at_once
) -> tuple[int, str]:
    digest, size, begun = hashlib.sha256(), 0, time.monotonic()
    read: Callable[[], bytes] = lambda: source.read(PIECE_BYTES)  # noqa: E731 - iter() wants a callable
    for piece in iter(read, b""):
        size += len(piece)
        if limit_bytes is not None and size > limit_bytes:
            raise ValueError(f"more than {limit_bytes} bytes")
        digest.update(piece)
        target.write(piece)
        begun = carry(len(piece), begun)
    return size, digest.hexdigest()
