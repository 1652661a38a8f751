"""The tails of workers' logs, in pieces for the reports. What was delivered is remembered, so a restart repeats nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workers.agent.worker_record import Assignment, WorkerRecord

WORKER_BYTES_PER_REPORT = 64 * 1024
REPORT_BYTES = 256 * 1024


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


def next_pieces(records: Iterable[WorkerRecord]) -> list[LogPiece]:
    """What was written since the last delivered piece, as much as one report carries."""
    left_bytes = REPORT_BYTES
    pieces = []
    for record in records:
        if record.assignment is None or left_bytes <= 0 or record.log_size <= record.log_offset:
            continue
        with (record.folder / "worker.log").open("rb") as file:
            file.seek(record.log_offset)
            content = file.read(min(left_bytes, WORKER_BYTES_PER_REPORT))
        if record.alive or len(content) == WORKER_BYTES_PER_REPORT:
            content = whole_characters(content)
        if content:
            end = record.log_offset + len(content)
            text = content.decode(errors="replace").replace("\0", "\ufffd")
            pieces.append(LogPiece(record, record.assignment, record.log_offset, end, text))
            left_bytes -= len(content)
    return pieces


def delivered(pieces: Iterable[LogPiece]) -> None:
    """Remember that the control plane has these pieces."""
    for piece in pieces:
        if piece.record.folder.exists():
            piece.record.log_offset = piece.end
            piece.record.save_progress()


def whole_characters(content: bytes) -> bytes:
    """`content` without the beginning of a UTF-8 character at its end, the rest of which is still to come."""
    for length in range(1, min(4, len(content) + 1)):
        byte = content[-length]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            expected = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return content[:-length] if expected > length else content
    return content
