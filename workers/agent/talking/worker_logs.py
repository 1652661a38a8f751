"""The tails of workers' logs, in pieces for reports. Delivered offsets are stored, so a restart repeats
nothing.

A report's log capacity is limited. Jobs share it fairly, and so do the workers of each. Ended workers come
last, with a small guaranteed part. If a job prints faster than that, only its newest output is sent, and a
line in its log says how much is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.agent.processes.worker_record import Assignment, WorkerRecord
from workers.agent.talking.fair_shares import fair_shares

REPORT_BYTES = 256 * 1024
#: Part reserved for ended workers, which must be settled eventually.
ENDED_BYTES = REPORT_BYTES // 8
#: Backlog of one job on this node beyond which older output is dropped, and the part kept then.
BACKLOG_OF_A_JOB_BYTES = 2 * 1024 * 1024
KEPT_OF_A_JOB_BYTES = BACKLOG_OF_A_JOB_BYTES // 2
#: Less could not hold the longest UTF-8 character.
LEAST_PIECE_BYTES = 4


@dataclass(frozen=True)
class LogPiece:
    """A piece of one worker's log. `end`: byte offset after it."""

    record: WorkerRecord
    assignment: Assignment
    #: Byte offset of its begin in the log.
    offset: int
    end: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the piece as reported (protocol 2.2)."""
        return {
            "job": self.assignment.job,
            "generation": self.assignment.generation,
            "rank": self.assignment.rank,
            "offset": self.offset,
            "text": self.text,
        }


@dataclass(frozen=True)
class _Waiting:
    """Undelivered output of a worker: from `begin` on, after `left_out` bytes that are skipped."""

    record: WorkerRecord
    assignment: Assignment
    begin: int
    end: int
    left_out: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def next_pieces(records: Iterable[WorkerRecord]) -> list[LogPiece]:
    """Return the output since the last delivered pieces, as much as one report may contain."""
    waiting = _bounded([found for record in records if (found := _waiting(record)) is not None])
    living = [found for found in waiting if found.record.alive]
    ended = [found for found in waiting if not found.record.alive]
    kept_back = min(ENDED_BYTES, sum(found.size for found in ended))
    shares = _shares(living, REPORT_BYTES - kept_back)
    shares |= _shares(ended, REPORT_BYTES - sum(shares.values()))
    pieces: list[LogPiece] = []
    for found in waiting:
        pieces += _pieces(found, shares[found.record.key])
    return pieces


def _waiting(record: WorkerRecord) -> _Waiting | None:
    size = record.log_size
    if record.assignment is None or size <= record.log_offset:
        return None
    return _Waiting(record, record.assignment, record.log_offset, size, left_out=0)


def _bounded(waiting: Sequence[_Waiting]) -> list[_Waiting]:
    """Drop the older output of jobs whose backlog is too large."""
    by_job: dict[str, list[_Waiting]] = {}
    for found in waiting:
        by_job.setdefault(found.assignment.job, []).append(found)
    bounded = []
    for of_one_job in by_job.values():
        sizes = {found.record.key: found.size for found in of_one_job}
        too_much = sum(sizes.values()) > BACKLOG_OF_A_JOB_BYTES
        kept = fair_shares(sizes, KEPT_OF_A_JOB_BYTES) if too_much else sizes
        for found in of_one_job:
            begin = found.end - kept[found.record.key]
            bounded.append(
                _Waiting(found.record, found.assignment, begin, found.end, left_out=begin - found.begin)
            )
    return bounded


def _shares(waiting: Sequence[_Waiting], total_bytes: int) -> dict[str, int]:
    """Return the bytes for each worker: fair between jobs, then between the workers of each."""
    by_job: dict[str, dict[str, int]] = {}
    for found in waiting:
        by_job.setdefault(found.assignment.job, {})[found.record.key] = found.size
    of_jobs = fair_shares({job: sum(sizes.values()) for job, sizes in by_job.items()}, total_bytes)
    shares: dict[str, int] = {}
    for job, sizes in by_job.items():
        shares |= fair_shares(sizes, of_jobs[job])
    return shares


def _pieces(found: _Waiting, share_bytes: int) -> list[LogPiece]:
    if share_bytes < min(LEAST_PIECE_BYTES, found.size):
        return []
    with (found.record.folder / "worker.log").open("rb") as file:
        file.seek(found.begin)
        content = file.read(share_bytes)
    begin = found.begin
    if found.left_out:
        # From the beginning of a line, if there is one.
        cut = content.find(b"\n") + 1
        begin, content = begin + cut, content[cut:]
    if found.record.alive or begin + len(content) < found.end:
        content = whole_characters(content)
    pieces = []
    if found.left_out:
        left_out = begin - found.record.log_offset
        text = (
            f"\n[{left_out:,} bytes of output are left out here: this job prints faster than logs are sent]\n"
        )
        # At an offset at which no sent piece can begin, so that it is not mistaken for one.
        pieces.append(LogPiece(found.record, found.assignment, begin - 1, begin, text))
    if content:
        end = begin + len(content)
        text = content.decode(errors="replace").replace("\0", "\ufffd")
        pieces.append(LogPiece(found.record, found.assignment, begin, end, text))
    return pieces


def delivered(pieces: Iterable[LogPiece]) -> None:
    """Record that the control plane has these pieces."""
    for piece in pieces:
        if piece.record.folder.exists():
            piece.record.log_offset = max(piece.record.log_offset, piece.end)
            piece.record.save_progress()


def whole_characters(content: bytes) -> bytes:
    """Return `content` without an incomplete UTF-8 character at its end."""
    for length in range(1, min(4, len(content) + 1)):
        byte = content[-length]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            expected = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return content[:-length] if expected > length else content
    return content
