"""The present use of each GPU that training may use."""

from __future__ import annotations

from collections import Counter

from cluster.choices import DrainState, ServerState
from cluster.models.machines import GpuQuerySet
from projects.prepared import PreparedValues
from scheduling.choices import AssignmentState, GenerationState, Purpose, ServiceClass
from scheduling.models import Assignment


def count_uses(gpus: GpuQuerySet) -> Counter[str]:
    """Count the GPUs by use (`cluster.selectors.utilisation.USES`), each once.

    GPUs of a server that was given up, broken ones, and idle ones of a draining or standby server are
    unavailable.
    """
    uses = _held()
    counts: Counter[str] = Counter()
    columns = ("pk", "healthy", "server__state", "server__drain", "server__standby")
    for gpu_id, healthy, state, drain, standby in gpus.values_list(*columns):
        out = state == ServerState.DOWN or not healthy
        withheld = (drain != DrainState.NONE or standby) and gpu_id not in uses
        counts["unavailable" if out or withheld else uses.get(gpu_id, "idle")] += 1
    return counts


def _held() -> dict[int, str]:
    """Return the use of each held GPU by its primary key; the newest generation counts."""
    return {gpu_id: _use(*what) for gpu_id, *what in _HOLDERS.ask()}


_HOLDERS = PreparedValues(
    lambda: (
        Assignment.objects.filter(state__in=(AssignmentState.HELD, AssignmentState.CLEARING))
        .order_by("generation__number")
        .values_list(
            "gpu_id", "generation__purpose", "generation__state", "job__promised", "job__service_class"
        )
    )
)


def _use(purpose: str, state: str, promised: bool, service_class: str) -> str:
    """Return the use of an assignment's GPU, from its generation's purpose and state and its job."""
    if purpose == Purpose.PROFILING:
        return "profiling"
    if state != GenerationState.LIVE:
        return "changing"
    if promised:
        return "promised"
    return "best_effort" if service_class == ServiceClass.BEST_EFFORT else "soft"
