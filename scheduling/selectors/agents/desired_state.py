"""The desired state of one server: the generations for which its agent holds GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django.db.models import F
from django.utils import timezone

from cluster.models import Cluster, Server
from projects.prepared import PreparedRows, PreparedValues
from scheduling.checkpoint_interval import told_intervals
from scheduling.choices import AssignmentState, GenerationState
from scheduling.models import Assignment, Generation
from scheduling.other_work import registered
from scheduling.selectors.agents.peers import peers_of
from scheduling.selectors.network.link_probes import link_probe_of
from scheduling.selectors.recovery.memory_points import jobs_to_remember

#: Columns of a generation, its job and its function that agents need. Each agent asks after every change.
_TOLD = (
    "number", "epoch", "purpose", "goal", "start", "world_size", "master_port", "profile", "runtime_plan",
    "master_server__address", "job__hyperparameters", "job__max_iterations", "job__target", "job__seed",
    "job__checkpoint_seconds", "job__protection_class", "job__asked_protection", "job__data",
    "job__function_version__bundle", "job__function_version__entry",
    "job__function_version__requirements_digest",
)  # fmt: skip


_SERVER = PreparedRows(lambda server_id: Server.objects.filter(pk=server_id))
_CLUSTER = PreparedRows(
    lambda cluster_id: Cluster.objects.only("epoch", "reserve_servers", "failures_per_server_day").filter(
        pk=cluster_id
    )
)
_HELD_HERE = PreparedValues(
    lambda server_id: (
        Assignment.objects.filter(
            gpu__server=server_id, state=AssignmentState.HELD, rank__lt=F("generation__world_size")
        )
        .exclude(generation__state=GenerationState.RETIRED)
        .order_by("rank")
        .values_list("generation_id", "rank", "gpu__index", "handover_port")
    )
)
_GENERATIONS = PreparedRows(
    lambda generation_ids: (
        Generation.objects.filter(pk__any_of=generation_ids, held_at__isnull=False)
        .select_related("job__function_version", "master_server")
        .only(*_TOLD)
        .order_by("job_id", "number")
    )
)
_HOMES = PreparedValues(
    lambda generation_ids: (
        Assignment.objects.filter(generation__pk__any_of=generation_ids, rank__lt=F("generation__world_size"))
        .order_by("generation_id", "rank")
        .values_list("generation_id", "gpu__server_id", "gpu__server__rack")
    )
)


def desired_state(server_id: int) -> dict[str, Any]:
    """Return the answer to `GET desired` (docs/protocols.md 2.3). The version is read first, so that
    everything else is at least as new."""
    server = _SERVER.get(server_id)
    cluster = _CLUSTER.get(server.cluster_id)
    members: dict[int, list[dict[str, int | None]]] = {}
    for generation_id, rank, gpu_index, handover_port in _HELD_HERE.ask(server_id):
        members.setdefault(generation_id, []).append(
            {"rank": rank, "gpu_index": gpu_index, "handover_port": handover_port}
        )
    generations = _GENERATIONS.ask(list(members)) if members else []
    places = _places(members) if members else {}
    secrets = _job_secrets({generation.job_id for generation in generations})
    remembered = jobs_to_remember(server_id, timezone.now())
    return {
        "epoch": cluster.epoch,
        "desired_version": server.desired_version,
        "generations": [
            {
                **_entry(generation, members[generation.pk], cluster),
                "secret": secrets[generation.job_id],
                "places": places[generation.pk],
            }
            for generation in generations
        ]
        + [dict(entry) for work in registered() for entry in work.desired(server)],
        "remembered": remembered.needed,
        # A generation that starts here reads the spare state, so its memory must not be given away.
        "spare": [job for job in remembered.spare if job not in secrets],
        "link_probe": link_probe_of(server),
        "memory": peers_of(
            server, {one: [member["rank"] or 0 for member in members[one.pk]] for one in generations}
        ),
    }


def _places(generation_ids: Iterable[int]) -> dict[int, dict[str, list[int]]]:
    """Return the places of all ranks of each generation: numbers of their servers and racks. Workers do
    not get the names."""
    homes: dict[int, list[tuple[int, str]]] = {}
    for generation_id, server_id, rack in _HOMES.ask(list(generation_ids)):
        homes.setdefault(generation_id, []).append((server_id, rack))
    return {
        generation_id: {
            "servers": _numbered([server for server, _rack in ranks]),
            "racks": _numbered([rack for _server, rack in ranks]),
        }
        for generation_id, ranks in homes.items()
    }


def _numbered(values: Sequence[int | str]) -> list[int]:
    """Return the number of each value in order of appearance."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return [numbers[value] for value in values]


def _entry(generation: Generation, workers: list[dict[str, int | None]], cluster: Cluster) -> dict[str, Any]:
    job = generation.job
    version = job.function_version
    return {
        "job": job.pk,
        "generation": generation.number,
        "epoch": generation.epoch,
        "purpose": generation.purpose,
        "goal": generation.goal,
        "start": generation.start,
        "world_size": generation.world_size,
        "master_address": generation.master_server.address,
        "master_port": generation.master_port,
        "workers": workers,
        "function": {
            "digest": version.bundle_id,
            "entry": version.entry,
            "requirements_digest": version.requirements_digest or None,
        },
        "hyperparameters": job.hyperparameters,
        "termination": {"max_iterations": job.max_iterations, "target": job.target},
        "seed": job.seed,
        **told_intervals(
            job.checkpoint_seconds, job.protection_class, cluster.reserve_servers, job.asked_protection
        ),
        "failures_per_server_day": cluster.failures_per_server_day,
        "data": job.data,
        "profile": generation.profile,
        "runtime_plan": generation.runtime_plan,
    }


def _job_secrets(job_ids: Collection[str]) -> dict[str, str]:
    """Return one secret for all generations of a job (that of its first): a successor authenticates to its
    predecessor with it."""
    return dict(_SECRETS.ask(list(job_ids))) if job_ids else {}


_SECRETS = PreparedValues(
    lambda job_ids: (
        Generation.objects.filter(job__pk__any_of=job_ids)
        .order_by("job_id", "number")
        .distinct("job_id")
        .values_list("job_id", "secret")
    )
)
