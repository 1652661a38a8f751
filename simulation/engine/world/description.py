"""Settings of a simulation as plain values, for its reports."""

from __future__ import annotations

from scheduling.core.question.columns import BEST_EFFORT
from scheduling.policies.punctual import Punctual
from simulation.engine.asked.settings import Recovery, SimulationSettings
from simulation.engine.world.jobs import JobStates
from simulation.workloads.workload import Workload


def described(settings: SimulationSettings, workload: Workload) -> dict[str, str | int | float | bool]:
    """Return policy, workload, first pool and rules by name."""
    first = settings.pools[0]
    return {
        "policy": settings.policy,
        "trace": workload.name,
        "trace_source": workload.source,
        "seed": settings.seed,
        "servers": first.servers,
        "gpus_per_server": first.gpus_per_server,
        "gpu_type": ", ".join(pool.kind for pool in settings.pools),
        "slot_seconds": settings.slot_seconds,
        "pauses": str(settings.pauses),
        "fill": str(settings.fill),
        "admission": str(settings.admission),
        "newcomers": str(settings.newcomers),
        "reserve_servers": settings.reserve_servers,
        "standby_servers": settings.standby_servers,
        **(
            {"recovery": str(settings.recovery), "replicas": settings.replicas}
            if settings.recovery is Recovery.MEMORY
            else {}
        ),
        "best_effort_jobs": sum(
            one == BEST_EFFORT for one in JobStates.of(workload, 0).service_class.tolist()
        ),
        **({"ageing_weight": settings.ageing_weight} if settings.policy == Punctual.name else {}),
        **({"servers_that_end": len(settings.known_ends)} if settings.known_ends else {}),
        **({} if settings.sharing is None else settings.sharing.described()),
    }
