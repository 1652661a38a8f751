"""What Pollux's search remembers between ticks: the time of its last search and the best placements found."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.baselines.against_lyra.genetic_operators import WorkerCounts

_HEADER = 6
_ENTRY = 4


@dataclass(frozen=True)
class PolluxMemory:
    """The memory of one search. Jobs have lasting numbers, because their rows change from tick to tick."""

    #: When the last search was, in seconds on the caller's axis.
    searched_at: float = 0.0
    #: Seconds from then to the next search if nothing changes; 0 before the first.
    rest_seconds: float = 0.0
    #: How many numbers were given so far.
    numbered: int = 0
    #: Number of jobs in the last search.
    jobs: int = 0
    #: Number of GPUs in the last search.
    gpus: int = 0
    #: Servers of the fleet then. If the number changed, rows mean other servers and no placement is
    #: remembered.
    servers: int = 0
    #: Rows (member, server, number of the job, workers), one for each job on a server in a member.
    entries: IntArray = field(default_factory=lambda: np.zeros((0, _ENTRY), dtype=np.int64))

    @classmethod
    def recalled(cls, noted: FloatArray) -> PolluxMemory:
        """The memory from the floats of `noted`; without floats, a memory before the first search."""
        if noted.size < _HEADER:
            return cls()
        numbered, jobs, gpus, servers = (int(count) for count in noted[2:_HEADER])
        entries = noted[_HEADER:].astype(np.int64).reshape(-1, _ENTRY)
        return cls(float(noted[0]), float(noted[1]), numbered, jobs, gpus, servers, entries)

    def noted(self) -> FloatArray:
        """The memory as floats, the form in which policies store it."""
        times = (self.searched_at, self.rest_seconds)
        header = np.array([*times, self.numbered, self.jobs, self.gpus, self.servers], dtype=np.float64)
        return np.concatenate((header, self.entries.ravel().astype(np.float64)))

    def members(self, numbers: IntArray, servers: IntArray, fleet: int) -> WorkerCounts:
        """The remembered placements of these jobs on these servers, shaped (members, servers, jobs); new jobs
        have no workers."""
        count = int(self.entries[:, 0].max(initial=-1)) + 1
        memory = np.zeros((count, servers.size, numbers.size), dtype=np.int16)
        if fleet != self.servers or not memory.size:
            return memory[:0]
        column = np.full(max(self.numbered, int(numbers.max(initial=0))) + 1, -1)
        column[numbers] = np.arange(numbers.size)
        row = np.full(fleet, -1)
        row[servers] = np.arange(servers.size)
        member, server, number, workers = self.entries.T
        known = (column[number] >= 0) & (row[server] >= 0)
        memory[member[known], row[server[known]], column[number[known]]] = workers[known]
        return memory


def entries_of(members: WorkerCounts, numbers: IntArray, servers: IntArray) -> IntArray:
    """Placements in the form of `PolluxMemory.entries`, with job numbers and the fleet's rows of servers."""
    member, server, job = np.nonzero(members)
    return np.stack(
        (member, servers[server], numbers[job], members[member, server, job].astype(np.int64)), axis=1
    )
