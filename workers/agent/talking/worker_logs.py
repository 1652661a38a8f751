"""The tails of workers' logs, in pieces for the reports. What was delivered is remembered, so a restart
repeats nothing.

A report carries so much and no more. Jobs share it fairly, and so do the workers of each. Workers that have
ended come last, with a small part that is theirs in any case. Of a job that prints faster than that, only the
newest output is sent, and a line in its log says how much is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.agent.processes.worker_record import Assignment, WorkerRecord
from workers.agent.talking.fair_shares import fair_shares

REPORT_BYTES = 256 * 1024
#: Of these, for workers that have ended: they must be settled some day.
ENDED_BYTES = REPORT_BYTES // 8
#: What of one job may wait on this node before the older part is left out, and what of it is kept then.
BACKLOG_OF_A_JOB_BYTES = 2 * 1024 * 1024
KEPT_OF_A_JOB_BYTES = BACKLOG_OF_A_JOB_BYTES // 2
#: Less than the longest character could not be sent.
LEAST_PIECE_BYTES = 4


@dataclass(frozen=True)
class LogPiece:
    """A piece of one worker's log. `end` is the offset after it, in bytes."""

    record: WorkerRecord
    assignment: Assignment
    offset: int
    end: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """The piece as reported (protocol 2.2)."""
        return {
            "job": self.assignment.job,
            "generation": self.assignment.generation,
            "rank": self.assignment.rank,
            "offset": self.offset,
            "text": self.text,
        }


@dataclass(frozen=True)
class _Waiting:
    """Output of a worker that is not delivered yet: from `begin` on, after `left_out` bytes that are not
    sent."""

    record: WorkerRecord
    assignment: Assignment
    begin: int
    end: int
    left_out: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def next_pieces(records: Iterable[WorkerRecord]) -> list[LogPiece]:
    """What was written since the last delivered piece, as much as one report carries."""
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
    """The same, without the older output of jobs of which too much waits."""
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
    """Bytes by worker: fair between jobs, then between the workers of each."""
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
        # From the beginning of a line on, where there is one.
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
        # At an offset that no piece can have begun at: one that was sent before must not be taken for it.
        pieces.append(LogPiece(found.record, found.assignment, begin - 1, begin, text))
    if content:
        end = begin + len(content)
        text = content.decode(errors="replace").replace("\0", "\ufffd")
        pieces.append(LogPiece(found.record, found.assignment, begin, end, text))
    return pieces


def delivered(pieces: Iterable[LogPiece]) -> None:
    """Remember that the control plane has these pieces."""
    for piece in pieces:
        if piece.record.folder.exists():
            piece.record.log_offset = max(piece.record.log_offset, piece.end)
            piece.record.save_progress()


def whole_characters(content: bytes) -> bytes:
    """`content` without the beginning of a UTF-8 character at its end, the rest of which is still to come."""
    for length in range(1, min(4, len(content) + 1)):
        byte = content[-length]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            expected = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return content[:-length] if expected > length else content
    return content
