"""Which GPUs count: one rule for plans, measurements, samples, summaries and pages."""

from __future__ import annotations

from itertools import product

import pytest

from cluster.choices import WHITELIST_OF, DrainState, LendingState, ServerState, Whitelist
from cluster.models import Cluster, Gpu, Server
from scheduling.choices import GenerationState, Purpose, ServiceClass
from scheduling.selectors.cluster.cluster_summary import gpu_counts
from scheduling.services.rows.borrowed import borrowing_kind
from scheduling.services.rows.utilisation import take_sample
from scheduling.services.snapshots.kinds import first_kind
from simulation.live.lent import kind_of
from tests.factories import (
    GenerationFactory,
    InferenceClusterFactory,
    InferenceServerFactory,
    JobFactory,
    ServerFactory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def every_server(cluster: Cluster) -> list[Server]:
    """Return a server in each possible state, each with a healthy and a broken GPU."""
    lender = InferenceClusterFactory.create(cluster=cluster)
    servers = []
    for state, drain, lending in product(ServerState, DrainState, LendingState):
        facts = {"cluster": cluster, "gpus": 2, "state": state, "drain": drain}
        if lending == LendingState.TRAINING:
            server = ServerFactory.create(**facts)
        else:
            server = InferenceServerFactory.create(
                **facts, inference_cluster=lender, lending_state=lending, whitelist=WHITELIST_OF[lending]
            )
        server.gpus.filter(index=1).update(healthy=False)
        servers.append(server)
    return servers


def test_usable_gpus_are_the_healthy_ones_of_usable_servers(every_server: list[Server]) -> None:
    expected = {
        gpu.pk for server in every_server for gpu in server.gpus.all() if gpu.healthy and server.usable()
    }
    assert expected
    assert set(Gpu.objects.usable().values_list("pk", flat=True)) == expected


def test_own_borrowed_and_training_gpus_are_distinguished(
    cluster: Cluster, every_server: list[Server]
) -> None:
    def of(servers: list[Server]) -> set[int]:
        return {gpu.pk for server in servers for gpu in server.gpus.all()}

    present = [server for server in every_server if server.state != ServerState.REMOVED]
    assert set(Gpu.objects.own(cluster).values_list("pk", flat=True)) == of(
        [server for server in every_server if server.inference_cluster_id is None]
    )
    assert set(Gpu.objects.on_loan(cluster).values_list("pk", flat=True)) == of(
        [server for server in present if server.on_loan]
    )
    assert set(Gpu.objects.for_training().values_list("pk", flat=True)) == of(
        [server for server in present if server.whitelist == Whitelist.TRAINING]
    )
    assert set(Server.objects.known()) == set(present)
    kind = Gpu.objects.earliest("pk").kind
    assert set(Gpu.objects.measurable(cluster, kind).values_list("pk", flat=True)) == of(
        [server for server in present if server.inference_cluster_id is None]
    ), "borrowed servers of the cluster's own kind are not measured"
    Gpu.objects.filter(server__inference_cluster__isnull=False).update(kind="lent alone")
    assert set(Gpu.objects.measurable(cluster, "lent alone").values_list("pk", flat=True)) == of(
        [server for server in present if server.on_loan]
    )


def test_the_kind_with_most_gpus_is_the_main_one_everywhere(cluster: Cluster) -> None:
    ServerFactory.create(cluster=cluster, gpus=2, gpus__kind="a100")
    ServerFactory.create(cluster=cluster, gpus=2, gpus__kind="t4")
    assert (borrowing_kind(cluster), first_kind(cluster, ServiceClass.SLO)) == ("a100", "a100")
    ServerFactory.create(cluster=cluster, gpus=1, gpus__kind="t4")
    gone = ServerFactory.create(cluster=cluster, gpus=8, gpus__kind="a100", state=ServerState.REMOVED)
    assert gone.gpus.count() == 8
    assert (borrowing_kind(cluster), first_kind(cluster, ServiceClass.SLO)) == ("t4", "t4")
    lender = InferenceClusterFactory.create(cluster=cluster)
    assert kind_of(lender) == ""
    InferenceServerFactory.create(cluster=cluster, inference_cluster=lender, gpus=1, gpus__kind="l4")
    InferenceServerFactory.create(cluster=cluster, inference_cluster=lender, gpus=2, gpus__kind="t4")
    assert kind_of(lender) == "t4"


def test_the_sample_and_the_summary_count_alike(cluster: Cluster, every_server: list[Server]) -> None:
    up, other = (
        server for server in every_server
        if server.state == ServerState.UP and server.lending_state == LendingState.TRAINING
        and server.drain != DrainState.DRAINED
    )  # fmt: skip
    trained = JobFactory.create(cluster=cluster)
    GenerationFactory.create(job=trained, gpus=[up.gpus.get(index=0)])
    measured = JobFactory.create(cluster=cluster)
    GenerationFactory.create(
        job=measured, gpus=[other.gpus.get(index=0)], purpose=Purpose.PROFILING, state=GenerationState.LIVE
    )
    sample, counts = take_sample(cluster), gpu_counts()
    assert {use: getattr(sample, use) for use in counts.by_use} == counts.by_use
    assert sample.total == counts.total == Gpu.objects.for_training().count()
    assert (sample.best_effort, sample.profiling) == (1, 1)
    assert sum(row["gpus"] for row in counts.by_kind if isinstance(row["gpus"], int)) == counts.total
