"""Copies of workers' files to the durable store: in threads, retried after failures, resumed after a restart
of the agent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from punctual.protocol import limits
from workers.agent.machine import clock
from workers.agent.machine.durable_files import read_json, write_json_soon
from workers.agent.machine.main_loop import MainLoop
from workers.agent.processes.worker_messages import FileWritten
from workers.agent.storage import box_files
from workers.agent.storage.durable_store import DurableStore, StoredFile, artifact_key, shard_key
from workers.agent.talking.event_outbox import event_id

logger = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 15.0
UPLOAD_THREADS = 2


@dataclass(frozen=True)
class Upload:
    """An announced file or folder and its owner. `since_boot_seconds`: when it was announced."""

    worker_key: str
    #: Folder of the worker that wrote it.
    box: Path
    job: str
    generation: int
    rank: int
    #: The worker's announcement.
    written: FileWritten
    since_boot_seconds: float

    @property
    def identity(self) -> str:
        """Equal for repetitions of an announcement."""
        return f"{self.written.path}#{self.written.iteration}#{self.written.reason}"


@dataclass(frozen=True)
class StoredUpload:
    """The result of an upload: the event to report, or None if there was nothing to store.

    `refused`: why some of its files were left out.
    """

    upload: Upload
    event: dict[str, Any] | None
    refused: tuple[str, ...] = ()


class Uploads:
    """Uploads of all workers. All methods run in the agent's main thread, to which `loop` returns results."""

    def __init__(self, store: DurableStore, loop: MainLoop, done: Callable[[StoredUpload], None]) -> None:
        self._store = store
        self._loop = loop
        self._done = done
        self._threads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")
        self._pending: dict[tuple[str, str], Upload] = {}

    def add(self, upload: Upload) -> None:
        """Store a file unless that is in progress; report it again if it is done."""
        if (upload.worker_key, upload.identity) in self._pending:
            return
        finished = _read_finished(upload.box).get(upload.identity)
        if finished is not None:
            self._done(StoredUpload(upload, finished))
            return
        self._pending[upload.worker_key, upload.identity] = upload
        self._write_pending(upload)
        self._submit(upload, FIRST_WAIT_SECONDS)

    def resume(self, worker_key: str, box: Path, job: str, generation: int, rank: int) -> None:
        """Continue uploads that a worker announced before the agent was restarted."""
        for entry in read_json(box.parent / "uploads.json") or []:
            written, now = FileWritten(**entry), clock.boot_time_seconds()
            self.add(Upload(worker_key, box, job, generation, rank, written, now))

    def pending(self, worker_key: str) -> list[Upload]:
        """Return that worker's files that are not stored yet."""
        return [upload for (key, _), upload in self._pending.items() if key == worker_key]

    def any_pending(self) -> bool:
        """Whether any file is not stored yet."""
        return bool(self._pending)

    def give_up(self, worker_key: str) -> None:
        """Drop all uploads of that worker."""
        for upload in self.pending(worker_key):
            del self._pending[worker_key, upload.identity]

    def stop(self) -> None:
        """Start nothing new; uploads in progress end with the process and are resumed at the next start."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self, upload: Upload, wait_seconds: float) -> None:
        if (upload.worker_key, upload.identity) in self._pending:
            self._threads.submit(self._run, upload, wait_seconds)

    def _run(self, upload: Upload, wait_seconds: float) -> None:
        """Run an upload in a thread, retrying after any error of the store's library."""
        try:
            event, refused = store_upload(self._store, upload)
        except box_files.BoxFileError as error:
            reason = str(error)
            self._loop.post(lambda: self._missing(upload, reason))
        except Exception as error:  # noqa: BLE001
            logger.warning("cannot store %s of job %s yet: %s", upload.written.path, upload.job, error)
            longer_seconds = min(LONGEST_WAIT_SECONDS, wait_seconds * 2)
            self._loop.post_later(wait_seconds, lambda: self._submit(upload, longer_seconds))
        else:
            self._loop.post(lambda: self._finish(upload, event, refused))

    def _missing(self, upload: Upload, reason: str) -> None:
        """Handle a missing file: the worker did not write it, or its state is already stored for another
        reason."""
        for finished in _read_finished(upload.box).values():
            if finished.get("kind") == "shard_stored" and finished["iteration"] == upload.written.iteration:
                again = {**finished, "id": _event_id(upload), "reason": upload.written.reason}
                self._finish(upload, again)
                return
        logger.error("job %s: %s cannot be stored: %s", upload.job, upload.written.path, reason)
        self._finish(upload, _unstorable(upload, reason) if upload.written.kind == "final" else None)

    def _finish(self, upload: Upload, event: dict[str, Any] | None, refused: tuple[str, ...] = ()) -> None:
        if self._pending.pop((upload.worker_key, upload.identity), None) is None:
            return
        if event is not None and upload.box.exists():
            finished = _read_finished(upload.box)
            finished[upload.identity] = event
            write_json_soon(upload.box.parent / "stored.json", finished)
        self._done(StoredUpload(upload, event, refused))
        if not any(other.written.path == upload.written.path for other in self.pending(upload.worker_key)):
            box_files.delete(upload.box, upload.written.path.removeprefix("out/"))
        self._write_pending(upload)

    def _write_pending(self, upload: Upload) -> None:
        if upload.box.exists():
            entries = [item.written.to_json() for item in self.pending(upload.worker_key)]
            write_json_soon(upload.box.parent / "uploads.json", entries)


def store_upload(store: DurableStore, upload: Upload) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Copy an upload into the durable store.

    Returns the event that reports it, and why files were left out. Raises BoxFileError and the store's
    errors.
    """
    written = upload.written
    name = written.path.removeprefix("out/")
    event: dict[str, Any] = {**_head(upload), "iteration": written.iteration, "reason": written.reason}
    refused: tuple[str, ...] = ()
    with box_files.open_output_folder(upload.box) as folder:
        if written.kind == "checkpoint":
            with box_files.open_file(folder, name) as file:
                key = shard_key(upload.job, upload.generation, written.iteration, upload.rank)
                stored = store.store(file, key)
            event |= {"kind": "shard_stored", **asdict(stored)}
            if written.copy_seconds is not None and written.writing_seconds is not None:
                event |= {"copy_seconds": written.copy_seconds, "writing_seconds": written.writing_seconds}
        else:
            artifacts, refused = _store_folder(store, upload, folder, name)
            event |= {
                "kind": "completed",
                "artifacts": artifacts,
                "metrics": dict(written.metrics),
                "sample_order_digest": written.sample_order_digest,
            }
    event["store_seconds"] = max(0.0, clock.boot_time_seconds() - upload.since_boot_seconds)
    return event, refused


def _head(upload: Upload) -> dict[str, Any]:
    return {"id": _event_id(upload), "job": upload.job, "generation": upload.generation, "rank": upload.rank}


def _unstorable(upload: Upload, reason: str) -> dict[str, Any]:
    """Return the failure of a job whose results cannot be stored; training again would end the same way."""
    return {
        **_head(upload),
        "kind": "failed",
        "reason": "function_error",
        "message": limits.clean_text(f"its results cannot be stored: {reason}"),
        "traceback": "",
        "iteration": upload.written.iteration,
    }


def _store_folder(
    store: DurableStore, upload: Upload, folder: int, name: str
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Store a folder's files, leaving out those with unusable names."""
    artifacts, refused = [], []
    for path in box_files.list_files(folder, name):
        problem = limits.artifact_name_problem(path)
        if problem is not None:
            refused.append(problem)
            continue
        with box_files.open_nested_file(folder, f"{name}/{path}") as file:
            stored: StoredFile = store.store(file, artifact_key(upload.job, upload.generation, path))
        artifacts.append({"name": path, **asdict(stored)})
    return artifacts, tuple(refused)


def _event_id(upload: Upload) -> str:
    return event_id(upload.worker_key, upload.identity)


def _read_finished(box: Path) -> dict[str, dict[str, Any]]:
    value: dict[str, dict[str, Any]] | None = read_json(box.parent / "stored.json")
    return value or {}
