"""What must hold after every event if promises rest on owned servers and other servers are borrowed."""

from __future__ import annotations

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray
from simulation.engine.checks.invariants import InvariantCheck, InvariantViolation
from simulation.engine.world.pool import PoolState
from simulation.engine.world.running import ACTIVE
from simulation.engine.world.shared_pool import SharedPool
from simulation.engine.world.world import World


class LoanInvariantCheck(InvariantCheck):
    """I1 to I9 on lasting owned servers, and that no promise rests on a borrowed or ending server."""

    def __call__(self, world: World, pool: PoolState, answer: Answer) -> None:
        """Raise InvariantViolation naming the first invariant that does not hold."""
        super().__call__(world, pool, answer)
        assert isinstance(pool, SharedPool)
        server_of = pool.servers.server_of()
        there = pool.on_loan & ~pool.broken
        there[: pool.size.servers] = [server.ends_at > world.now for server in pool.own_servers]
        there |= pool.silent
        for position, row in enumerate(pool.rows.tolist()):
            held = pool.addresses[pool.offsets[position] : pool.offsets[position + 1]]
            borrowed = ~pool.lasting(held)
            if world.jobs.phase[row] != ACTIVE or not borrowed.any():
                continue
            name = world.workload.job_id[row]
            if not there[server_of[held[borrowed]]].all():
                raise InvariantViolation(f"L2: job {name} is on a server that is lost, over or not on loan")
            if (held[borrowed] < pool.size.gpus).any() and (answer.problem.origin > 0 or pool.silent.any()):
                continue  # an end that became known takes effect when GPUs change hands
            marks = pool.flexible[pool.offsets[position] : pool.offsets[position + 1]]
            if not borrowed.all():
                _check_extension(pool, name, marks[borrowed])
            elif world.jobs.promised[row] and not world.jobs.at_risk[row]:
                raise InvariantViolation(f"L7: the promise to job {name} rests on borrowed servers alone")

    def _setbacks(self, world: World) -> int:
        """Add reclaims, which also stop and shrink jobs between two decisions."""
        return super()._setbacks(world) + world.reclaims

    def _sizes(self, pool: PoolState, row: int) -> IntArray:
        """Return the levels measured on the training cluster's GPUs and on the inference cluster's."""
        assert isinstance(pool, SharedPool)
        assert pool.lent_tables is not None
        return np.concatenate((super()._sizes(pool, row), pool.lent_tables.planned.levels[row]))


def _check_extension(pool: SharedPool, name: str, flexible: BoolArray) -> None:
    """Require that a job on owned and borrowed servers at once can do without the borrowed ones, and that
    these have the owned kind of GPU."""
    if not pool.same_kind:
        raise InvariantViolation(f"L4: job {name} is on both kinds of servers")
    if not flexible.all():
        raise InvariantViolation(f"L8: base workers of job {name} are borrowed though it holds owned GPUs")
