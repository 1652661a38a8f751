"""Send agents' reports over HTTP, with a credential, to the agent API."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import Any

from django.test import Client
from django.utils import timezone

from cluster.models import Gpu, Server
from scheduling.choices import JobState
from scheduling.models import Generation, Job
from tests.factories import GenerationFactory, JobFactory, ScalingCurveFactory, ServerFactory

_sequences = itertools.count(1)
ITERATIONS = 1_000_000


def credential(server: Server) -> str:
    """Return the credential with which `ServerFactory` enrolled the server's agent."""
    return f"credential-of-{server.name}"


def send(sender: Server | str | None, report: dict[str, Any] | bytes) -> Any:
    """Post a report as that server's agent; omitted parts are empty."""
    envelope = {"sequence": next(_sequences), "boot_id": "boot", "workers": []}
    body = json.dumps({**envelope, **report}) if isinstance(report, dict) else report
    return Client().post(
        "/agent/v1/report", body, content_type="application/json", headers=authorization(sender)
    )


def fetch(sender: Server | str | None, path: str) -> Any:
    """Get one of the agent API's addresses."""
    return Client().get(f"/agent/v1/{path}", headers=authorization(sender))


def authorization(sender: Server | str | None) -> dict[str, str]:
    if sender is None:
        return {}
    return {"Authorization": f"Agent {credential(sender) if isinstance(sender, Server) else sender}"}


def training_job(server: Server, index: int = 0, **fields: Any) -> tuple[Job, Generation]:
    """Return a job and its generation, which trains on one GPU of the server."""
    job: Job = JobFactory.create(
        cluster=server.cluster,
        state=JobState.RUNNING,
        max_iterations=ITERATIONS,
        curve=ScalingCurveFactory.create(levels={}),
        last_generation=1,
        **fields,
    )
    gpu = Gpu.objects.get(server=server, index=index)
    generation: Generation = GenerationFactory.create(
        job=job,
        master_server=server,
        gpus=[gpu],
        profile={"levels": [1]},
        held_at=timezone.now(),
        secret=f"secret-of-{job.pk}",
    )
    return job, generation


def busy_server(name: str) -> Server:
    server: Server = ServerFactory.create(name=name, gpus=4)
    return server


def worker(generation: Generation, **fields: Any) -> dict[str, Any]:
    """Return an entry of `workers` for the generation's rank 0."""
    gpu = generation.assignments.get(rank=0).gpu
    return {
        "key": f"{generation.job_id}-0",
        "job": generation.job_id,
        "generation": generation.number,
        "rank": 0,
        "gpu_index": gpu.index,
        "phase": "training",
        **fields,
    }


def metric(generation: Generation, **fields: Any) -> dict[str, Any]:
    return {
        "job": generation.job_id,
        "generation": generation.number,
        "iteration": 7,
        "values": {"loss": 1.5},
        "iterations_per_second": 3.0,
        "train_seconds": 0.1,
        "age_seconds": 0.1,
        **fields,
    }


def log_piece(generation: Generation, **fields: Any) -> dict[str, Any]:
    return {
        "job": generation.job_id,
        "generation": generation.number,
        "rank": 0,
        "offset": 0,
        "text": "hello\n",
        **fields,
    }


def stored_in_memory(*generations: Generation) -> dict[str, Any]:
    """A store that holds rank 0 of these."""
    holdings = [
        {
            "job": generation.job_id,
            "generation": generation.number,
            "rank": 0,
            "iteration": 5,
            "bytes": 1_000,
            "reserved_bytes": 2_000,
            "age_seconds": 0.5,
        }
        for generation in generations
    ]
    return {"used_bytes": 2_000, "limit_bytes": 10_000, "holdings": holdings}


def event(generation: Generation, kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "kind": kind,
        "job": generation.job_id,
        "generation": generation.number,
        "rank": 0,
        "age_seconds": 0.1,
        **EVENT_FIELDS[kind],
        **fields,
    }


EVENT_FIELDS: dict[str, dict[str, Any]] = {
    "first_iteration": {"iteration": 1, "pause_seconds": 0.1},
    "shard_stored": {
        "iteration": 9,
        "uri": "memory://x",
        "bytes": 9,
        "sha256": "0" * 64,
        "reason": "periodic",
    },
    "profile_level": {
        "gpus": 1,
        "iterations_per_second": 9.0,
        "train_seconds": 0.1,
        "pause_seconds": 0.1,
        "memory_bytes": 1,
    },
    "profile_done": {"reason": "all_levels"},
    "nonfinite": {"what": "loss_began", "iteration": 7, "since": 7},
    "copy_traffic": {
        "every": 2,
        "iterations": 2,
        "spans": 3,
        "bytes": 700_000,
        "iteration_seconds": 0.4,
        "idle_seconds": 0.3,
        "copy_seconds": 0.04,
        "extension_seconds": 0.0,
        "write_seconds": 0.001,
        "with_seconds": 0.404,
        "without_seconds": 0.4,
    },
    "completed": {
        "iteration": ITERATIONS,
        "reason": "max_iterations",
        "artifacts": [{"name": "weights.pt", "uri": "memory://w", "bytes": 4, "sha256": "0" * 64}],
        "metrics": {"loss": 0.1},
        "sample_order_digest": "abc",
        "store_seconds": 0.1,
    },
    "failed": {"reason": "function_error", "message": "no", "traceback": "", "iteration": 3},
    "refused": {"what": "metrics", "reason": "a metric's name is a text"},
}
