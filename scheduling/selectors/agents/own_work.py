"""The work that was given to a server, about which its agent may report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from projects.prepared import PreparedValues
from scheduling.models import Assignment, Bundle
from scheduling.other_work import registered

#: Job, generation and rank.
Place = tuple[str, int, int]


_GIVEN = PreparedValues(
    lambda server_id, job_ids: Assignment.objects.filter(
        gpu__server=server_id, job__pk__any_of=job_ids
    ).values_list("job_id", "generation__number", "rank", "gpu__index")
)


def bundle_to_run(server_id: int, digest: str) -> bytes | None:
    """Return the bytes of a bundle that work on the server runs; None if none does."""
    given = Assignment.objects.filter(gpu__server_id=server_id, job__function_version__bundle_id=digest)
    if not given.exists() and not any(work.needs_bundle(server_id, digest) for work in registered()):
        return None
    bundle = Bundle.objects.filter(pk=digest).first()
    return None if bundle is None else bytes(bundle.content)


def needs_environment(server_id: int, digest: str) -> bool:
    """Return whether work on the server needs the environment."""
    given = Assignment.objects.filter(
        gpu__server_id=server_id, job__function_version__requirements_digest=digest
    )
    return given.exists() or any(work.needs_environment(server_id, digest) for work in registered())


class OwnWork:
    """The places (job, generation, rank) of some jobs that a server was ever given.

    Released places are included, since their events may be reported late.
    """

    def __init__(self, server_id: int, jobs: Iterable[str]) -> None:
        asked = list(set(jobs))
        rows = _GIVEN.ask(server_id, asked) if asked else []
        self._gpu_of: dict[Place, int] = {(job, number, rank): gpu for job, number, rank, gpu in rows}
        self._jobs = {job for job, _, _ in self._gpu_of}

    def knows(self, job: str | None) -> bool:
        """Return whether the server was ever given a part of the job."""
        return job in self._jobs

    def problem(self, item: Mapping[str, Any], *, rank: int | None = None) -> str | None:
        """Return why the server may not report about this item's place; None if it may.

        Args:
            item: has `job`, `generation` and, unless it is given separately, `rank`; `gpu_index` is checked
                if present.
            rank: the rank that may report such items.
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
