"""Stores the inventory that an agent reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from cluster.models import Gpu, Server
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import wake


@transaction.atomic
def inventory_update(server: Server, inventory: Mapping[str, Any]) -> None:
    """Make the server's rows say what the agent reports. A GPU that is gone is kept as unhealthy."""
    cluster = lock_cluster(server.cluster_id)
    before = _planned_on(server)
    Server.objects.filter(pk=server.pk).update(
        hostname=inventory.get("hostname", "")[:255],
        cpu_cores=int(inventory.get("cpu_cores") or 0),
        memory_bytes=int(inventory.get("memory_bytes") or 0),
        worker_memory_bytes=int(inventory.get("worker_memory_bytes") or 0),
        memory_store_bytes=int(inventory.get("memory_store_bytes") or 0),
        disk_free_bytes=int(inventory.get("disk_free_bytes") or 0),
        worker_disk_bytes=int(inventory.get("worker_disk_bytes") or 0),
        sandbox=inventory.get("sandbox", "")[:20],
        links=inventory.get("links"),
    )
    # For a repeated index the last entry counts.
    gpus = {
        int(entry["index"]): Gpu(
            server=server,
            index=int(entry["index"]),
            uuid=str(entry.get("uuid", ""))[:100],
            kind=str(entry["kind"])[:100],
            memory_bytes=int(entry.get("memory_bytes") or 0),
            emulated=bool(entry.get("emulated", False)),
            healthy=True,
        )
        for entry in inventory.get("gpus", [])
    }
    Gpu.objects.bulk_create(
        gpus.values(),
        update_conflicts=True,
        unique_fields=["server", "index"],
        update_fields=["uuid", "kind", "memory_bytes", "emulated", "healthy"],
    )
    server.gpus.exclude(index__in=gpus).update(healthy=False)
    if before != _planned_on(server):
        planning_fact_changed(cluster)
        wake("plan", trigger=f"what server {server.name} has changed")


def _planned_on(server: Server) -> tuple[Any, ...]:
    """Return the facts that plans depend on."""
    columns = ("memory_bytes", "worker_memory_bytes", "memory_store_bytes", "worker_disk_bytes")
    memory = Server.objects.values_list(*columns).get(pk=server.pk)
    return memory, {gpu.index: (gpu.kind, gpu.healthy) for gpu in server.gpus.all()}
