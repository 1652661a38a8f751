"""The problem of a decision with on-loan servers: the jobs, the servers of both kinds and the workers on
them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import JobArrays, Plans
from scheduling.core.question.columns import JobColumns
from scheduling.core.question.host_memory import within_host_memory
from scheduling.core.question.known_ends import with_known_ends
from scheduling.core.question.snapshot import IntArray, Snapshot
from scheduling.core.together.sharing import Sharing
from scheduling.core.together.worker_ranges import borrowed_sharing


@dataclass
class SharedProblem(Problem):
    """A problem with what Lyra's algorithms see of it."""

    #: The servers, workers and demands that Lyra's algorithms see.
    sharing: Sharing = field(kw_only=True)

    def on_owned(self, columns: JobColumns, jobs: JobArrays, stored: Plans) -> Problem:
        """The problem without on-loan servers, with the given jobs and stored plans."""
        facts = _facts(self) | {"columns": columns, "jobs": jobs, "stored": stored}
        return Problem(**facts)


def _facts(problem: Problem) -> dict[str, Any]:
    """The fields of a problem by name."""
    return {each.name: getattr(problem, each.name) for each in fields(Problem)}


def shared(problem: Problem, sharing: Sharing) -> SharedProblem:
    """The problem with on-loan servers, or with servers that may be on loan."""
    return SharedProblem(**_facts(problem), sharing=sharing)


def problem_of(snapshot: Snapshot, memory_width: int = 0, *, measured: bool = False) -> Problem:
    """Read a snapshot as `build_problem` does. The result is a `SharedProblem` if the snapshot has servers on
    loan or with a known end."""
    problem = build_problem(snapshot, memory_width, measured=measured)
    snapshot = with_known_ends(snapshot)
    if not any(server.on_loan for server in snapshot.servers):
        return problem
    snapshot = within_host_memory(snapshot)
    by_id = {job.id: job for job in snapshot.jobs}
    jobs = [by_id[job_id] for job_id in problem.columns.ids]
    return shared(
        problem,
        borrowed_sharing(problem, snapshot.servers, jobs, _blocked_on_loan(snapshot, problem.columns)),
    )


def _blocked_on_loan(snapshot: Snapshot, columns: JobColumns) -> IntArray:
    """Addresses on borrowed servers that are blocked and that no job holds."""
    addresses = {address for block in snapshot.blocked for address in block.addresses}
    on_loan = np.repeat(
        [server.on_loan for server in snapshot.servers], [server.gpus for server in snapshot.servers]
    )
    held = set(columns.addresses.tolist())
    found = sorted(address for address in addresses - held if address < on_loan.size and on_loan[address])
    return np.array(found, dtype=np.int64)
