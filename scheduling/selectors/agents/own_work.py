"""Which work was given to a server: what its agent may speak of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from projects.prepared import PreparedValues
from scheduling.models import Assignment

#: Job, generation and rank.
Place = tuple[str, int, int]


_GIVEN = PreparedValues(
    lambda server_id, job_ids: Assignment.objects.filter(
        gpu__server=server_id, job__pk__any_of=job_ids
    ).values_list("job_id", "generation__number", "rank", "gpu__index")
)


class OwnWork:
    """The places (job, generation, rank) that a server was ever given, of the jobs that are asked for.

    Also those that it gave back: what happened there may be told late.
    """

    def __init__(self, server_id: int, jobs: Iterable[str]) -> None:
        asked = list(set(jobs))
        rows = _GIVEN.ask(server_id, asked) if asked else []
        self._gpu_of: dict[Place, int] = {(job, number, rank): gpu for job, number, rank, gpu in rows}
        self._jobs = {job for job, _, _ in self._gpu_of}

    def knows(self, job: str | None) -> bool:
        """Whether the server was ever given a part of the job."""
        return job in self._jobs

    def problem(self, item: Mapping[str, Any], *, rank: int | None = None) -> str | None:
        """Why the server may not speak of this item's place; None where it may.

        Args:
            item: has `job`, `generation` and, unless it is given apart, `rank`; `gpu_index` is checked where
                there is one. rank: the rank whose business it is.
        """
        wanted = item["rank"] if rank is None else rank
        gpu = self._gpu_of.get((item["job"], item["generation"], wanted))
        if gpu is None:
            return (
                f"rank {wanted} of generation {item['generation']} of this job was not given to this server"
            )
        if item.get("gpu_index", gpu) != gpu:
            return f"rank {wanted} was given GPU {gpu}, not {item['gpu_index']}"
        return None
