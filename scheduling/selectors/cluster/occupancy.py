"""The job on each GPU, for one person: other projects' jobs are shown as "busy"."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.choices import DrainState, ServerState
from cluster.models import Server
from projects.models import User
from scheduling.choices import AssignmentState, GenerationState, Purpose
from scheduling.models import Assignment
from scheduling.selectors.scope.visibility import visible_project_ids


@dataclass(frozen=True, slots=True)
class Occupant:
    """What holds a GPU. ``job_id`` and ``job_name`` are None for a job of another project."""

    job_id: str | None
    job_name: str | None
    #: "training", "profiling", "preparing" (a successor prepares) or "leaving" (ordered to leave, not
    #: confirmed).
    phase: str
    promised: bool


@dataclass(frozen=True, slots=True)
class GpuCell:
    """One GPU with its occupant, or None if it is free."""

    #: Number of the GPU on its server.
    index: int
    kind: str
    emulated: bool
    healthy: bool
    #: The job that holds it; None if there is none.
    occupant: Occupant | None


@dataclass(frozen=True, slots=True)
class ServerCells:
    """One server with its GPUs in order."""

    id: int
    name: str
    state: ServerState
    drain: DrainState
    gpus: tuple[GpuCell, ...]


def occupants(user: User) -> dict[int, Occupant]:
    """Return occupants by GPU id. If two generations of a job share a GPU, the live one counts."""
    seen = visible_project_ids(user)
    found: dict[int, Occupant] = {}
    assignments = (
        Assignment.objects.filter(state__in=(AssignmentState.HELD, AssignmentState.CLEARING))
        .select_related("job", "generation")
        .order_by("id")
    )
    for assignment in assignments:
        phase = _phase(assignment)
        earlier = found.get(assignment.gpu_id)
        if earlier is not None and earlier.phase in ("training", "profiling"):
            continue
        mine = seen is None or assignment.job.project_id in seen
        found[assignment.gpu_id] = Occupant(
            job_id=assignment.job_id if mine else None,
            job_name=assignment.job.name if mine else None,
            phase=phase,
            promised=assignment.job.promised,
        )
    return found


def _phase(assignment: Assignment) -> str:
    if assignment.state == AssignmentState.CLEARING:
        return "leaving"
    if assignment.generation.purpose == Purpose.PROFILING:
        return "profiling"
    if assignment.generation.state == GenerationState.LIVE:
        return "training"
    return "preparing"


def servers_with_occupants(user: User) -> list[ServerCells]:
    """Return every server of the cluster by name, with its GPUs."""
    held = occupants(user)
    servers = Server.objects.known().prefetch_related("gpus").order_by("name")
    return [
        ServerCells(
            id=server.id,
            name=server.name,
            state=ServerState(server.state),
            drain=DrainState(server.drain),
            gpus=tuple(
                GpuCell(
                    index=gpu.index,
                    kind=gpu.kind,
                    emulated=gpu.emulated,
                    healthy=gpu.healthy,
                    occupant=held.get(gpu.id),
                )
                for gpu in server.gpus.all()
            ),
        )
        for server in servers
    ]
