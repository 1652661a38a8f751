"""What Pollux's search knows from one tick to the next: when it searched, and the best placements that it
found."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.genetic_operators import WorkerCounts

_HEADER = 6
_ENTRY = 4


@dataclass(frozen=True)
class PolluxMemory:
    """Jobs are known by numbers, given to them in turn, because their rows change as others come and go.

    ``searched_at``: on the caller's axis; ``rest_seconds``: from then to the next search if nothing happens;
    0 before the first. ``numbered``: numbers that were given so far. ``jobs`` and ``gpus``: that took part.
    ``servers``: of the fleet then; with any other number, rows of servers stand for others and no member is
    remembered. ``entries``: one row for each job on a server in a member: (member, server, number of the job,
    workers).
    """

    searched_at: float = 0.0
    rest_seconds: float = 0.0
    numbered: int = 0
    jobs: int = 0
    gpus: int = 0
    servers: int = 0
    entries: IntArray = field(default_factory=lambda: np.zeros((0, _ENTRY), dtype=np.int64))

    @classmethod
    def recalled(cls, noted: FloatArray) -> PolluxMemory:
        """From the floats that `noted` gave; from none, that nothing was searched yet."""
        if noted.size < _HEADER:
            return cls()
        numbered, jobs, gpus, servers = (int(count) for count in noted[2:_HEADER])
        entries = noted[_HEADER:].astype(np.int64).reshape(-1, _ENTRY)
        return cls(float(noted[0]), float(noted[1]), numbered, jobs, gpus, servers, entries)

    def noted(self) -> FloatArray:
        """As floats, the form in which policies remember."""
        times = (self.searched_at, self.rest_seconds)
        header = np.array([*times, self.numbered, self.jobs, self.gpus, self.servers], dtype=np.float64)
        return np.concatenate((header, self.entries.ravel().astype(np.float64)))

    def members(self, numbers: IntArray, servers: IntArray, fleet: int) -> WorkerCounts:
        """The remembered placements of jobs with these numbers on these servers, shaped (members, servers,
        jobs); others have none."""
        count = int(self.entries[:, 0].max(initial=-1)) + 1
        found = np.zeros((count, servers.size, numbers.size), dtype=np.int16)
        if fleet != self.servers or not found.size:
            return found[:0]
        column = np.full(max(self.numbered, int(numbers.max(initial=0))) + 1, -1)
        column[numbers] = np.arange(numbers.size)
        row = np.full(fleet, -1)
        row[servers] = np.arange(servers.size)
        member, server, number, workers = self.entries.T
        known = (column[number] >= 0) & (row[server] >= 0)
        found[member[known], row[server[known]], column[number[known]]] = workers[known]
        return found


def entries_of(members: WorkerCounts, numbers: IntArray, servers: IntArray) -> IntArray:
    """Placements as `PolluxMemory.entries`, by the numbers of their jobs and the fleet's rows of their
    servers."""
    member, server, job = np.nonzero(members)
    return np.stack(
        (member, servers[server], numbers[job], members[member, server, job].astype(np.int64)), axis=1
    )
