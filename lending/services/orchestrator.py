"""The resource orchestrator (Lyra section 3.3): carries out orders when woken and periodically.

It keeps no state between runs: its work follows from rows, so it may run twice, concurrently, late or never.
"""

from __future__ import annotations

import structlog
from django.utils import timezone

from lending.models import InferenceCluster
from lending.services.loans import carry_out_loans
from lending.services.reclaiming import begin_reclaims, return_servers
from lending.services.usage import ask_back

log = structlog.get_logger(__name__)


def orchestrate() -> None:
    """Ask back the servers that the next period needs, where the platform does that, and carry out all
    orders."""
    for inference_cluster in InferenceCluster.objects.all():
        ask_back(inference_cluster, timezone.now())
    work_off_orders()


def work_off_orders() -> int:
    """Carry out what is due. Returns how many servers and orders moved.

    Reclaims come before loans, so that a server asked back is not lent first.
    """
    moved = 0
    for inference_cluster in InferenceCluster.objects.all():
        now = timezone.now()
        begun = begin_reclaims(inference_cluster, now)
        returned = return_servers(inference_cluster)
        lent = carry_out_loans(inference_cluster, now)
        moved += begun + returned + lent
        if begun or returned or lent:
            log.info(
                "servers moved",
                inference_cluster=inference_cluster.name,
                reclaims_begun=begun,
                servers_returned=returned,
                servers_lent=lent,
            )
    return moved
