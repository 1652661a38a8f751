"""The cluster's servers, GPUs and agents: open to look at, steered by operators."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from cluster.api import serializers as cluster_shapes
from cluster.models import Agent, Gpu, Server
from cluster.selectors.machines import (
    agent_get,
    agents_known,
    cluster_shown,
    gpus_known,
    server_get,
    servers_known,
)
from projects.access import require_operator
from projects.api.base import ApiView
from projects.api.serializers import ProblemSerializer
from projects.errors import NotFound
from projects.models import Scope
from scheduling.api import cluster_serializers as shapes
from scheduling.selectors.cluster import cluster_summary
from scheduling.selectors.cluster.occupancy import occupants
from scheduling.selectors.cluster.standby import standby_of
from scheduling.selectors.network.codec_times import codec_times
from scheduling.selectors.network.link_matrix import link_matrix
from scheduling.selectors.recovery.recoveries import recovery_summary
from scheduling.services.agents.drain import server_drain, server_undrain
from scheduling.services.agents.enrolment import agent_revoke
from scheduling.services.agents.server_ends import server_set_end
from scheduling.services.agents.standby import standby_set


class BrokenPromiseSerializer(serializers.Serializer):
    job = serializers.CharField()
    name = serializers.CharField()
    project = serializers.CharField()
    deadline_at = serializers.DateTimeField(allow_null=True)


class DrainProblemSerializer(ProblemSerializer):
    """A conflict; `broken_promises` lists what `force` would break."""

    broken_promises = BrokenPromiseSerializer(many=True, required=False)


@extend_schema(tags=["cluster"])
class ClusterView(ApiView):
    """The cluster in numbers, and its standby servers."""

    token_scopes = {"PATCH": Scope.OPERATE}

    @extend_schema(
        operation_id="cluster",
        summary="Show the cluster in numbers",
        responses=shapes.ClusterSummarySerializer,
    )
    def get(self, request: Request) -> Response:
        return self._answer()

    @extend_schema(
        operation_id="cluster_update",
        summary="Set how many servers stand by (operator)",
        description=(
            "A server joins the standby pool once that breaks no promise; `standby` in the answer "
            "names what prevents it. The advised number follows from the failures and the "
            "replacement time."
        ),
        request=shapes.ClusterPatchSerializer,
        responses=shapes.ClusterSummarySerializer,
    )
    def patch(self, request: Request) -> Response:
        require_operator(self.user)
        cluster = cluster_shown()
        if cluster is None:
            raise NotFound("There is no cluster yet: it is made when its first server is set up.")
        body = self.read(shapes.ClusterPatchSerializer)
        standby_set(cluster=cluster, actor=self.user, **body)
        return self._answer()

    def _answer(self) -> Response:
        now = timezone.now()
        cluster = cluster_shown()
        gpus = cluster_summary.gpu_counts()
        summary = {
            "name": cluster.name if cluster else None,
            "now": now,
            "settings": cluster,
            "planner": cluster_summary.planner_facts(cluster, now) if cluster else None,
            "standby": standby_of(cluster) if cluster else None,
            "gpus": gpus,
            "servers": cluster_summary.servers_by_state(),
            "jobs": cluster_summary.jobs_by_state(),
            "promises": {**cluster_summary.promises_by_outcome(), **cluster_summary.promises_in_danger()},
            "recovery": recovery_summary(now),
            "emulated": any(kind["emulated"] for kind in gpus.by_kind),
            "stream_url": settings.STREAM_URL,
        }
        return Response(shapes.ClusterSummarySerializer(summary).data)


@extend_schema(tags=["cluster"])
class ClusterLinksView(ApiView):
    """The network between servers."""

    @extend_schema(
        operation_id="cluster_links",
        summary="Show the links between servers",
        description=(
            "Agents measure each link about once an hour, while no job that spans servers uses "
            "it. Communication plans assume the slowest link that they use."
        ),
        responses=shapes.LinkMatrixSerializer,
    )
    def get(self, request: Request) -> Response:
        return Response(shapes.LinkMatrixSerializer(link_matrix(timezone.now())).data)


@extend_schema(tags=["cluster"])
class ClusterCodecsView(ApiView):
    """What codecs take."""

    @extend_schema(
        operation_id="cluster_codecs",
        summary="Show the time of compressing gradients on each kind of GPU",
        description="Workers measure the codecs with a function's gradients; plans use these times.",
        responses=shapes.CodecTableSerializer,
    )
    def get(self, request: Request) -> Response:
        return Response(shapes.CodecTableSerializer({"codecs": codec_times()}).data)


class OccupiedView(ApiView):
    """Base of views that say what runs where."""

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "occupants": occupants(self.user), "now": timezone.now()}


@extend_schema(tags=["cluster"])
class ServersView(OccupiedView):
    """All servers."""

    queryset = Server.objects.none()

    @extend_schema(
        operation_id="server_list",
        summary="List servers",
        description="Jobs of other people's projects are shown as `busy`.",
        responses=shapes.ServerSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        return self.page(servers_known(), shapes.ServerSerializer)


@extend_schema(tags=["cluster"])
class ServerView(OccupiedView):
    """One server."""

    token_scopes = {"PATCH": Scope.OPERATE}
    queryset = Server.objects.none()

    @extend_schema(operation_id="server", summary="Show a server", responses=shapes.ServerSerializer)
    def get(self, request: Request, server_id: int) -> Response:
        return self._answer(server_get(server_id))

    @extend_schema(
        operation_id="server_update",
        summary="Set when a server leaves (operator)",
        description=(
            "No promise relies on the server beyond that time, and its workers move away in time. "
            "409 lists the promises that only `force` breaks."
        ),
        request=cluster_shapes.ServerPatchSerializer,
        responses={
            200: shapes.ServerSerializer,
            (409, "application/problem+json"): OpenApiResponse(
                DrainProblemSerializer, description="Promises would break."
            ),
        },
    )
    def patch(self, request: Request, server_id: int) -> Response:
        require_operator(self.user)
        server = server_get(server_id)
        body = self.read(cluster_shapes.ServerPatchSerializer)
        server_set_end(server=server, actor=self.user, **body)
        return self._answer(server_get(server_id))

    def _answer(self, server: Server) -> Response:
        return Response(shapes.ServerSerializer(server, context=self.get_serializer_context()).data)


@extend_schema(tags=["cluster"])
class DrainView(OccupiedView):
    """Emptying a server."""

    token_scopes = {"POST": Scope.OPERATE}
    queryset = Server.objects.none()

    @extend_schema(
        operation_id="server_drain",
        summary="Drain a server (operator)",
        description="Gives it no new work and moves what is there. 409 lists the promises that only `force` "
        "breaks.",
        request=cluster_shapes.DrainRequestSerializer,
        responses={
            200: shapes.ServerSerializer,
            (409, "application/problem+json"): OpenApiResponse(
                DrainProblemSerializer, description="Promises would break, or it is drained already."
            ),
        },
    )
    def post(self, request: Request, server_id: int) -> Response:
        require_operator(self.user)
        return self.idempotently(lambda: self._drain(server_id))

    def _drain(self, server_id: int) -> Response:
        body = self.read(cluster_shapes.DrainRequestSerializer)
        server_drain(server=server_get(server_id), actor=self.user, **body)
        return Response(
            shapes.ServerSerializer(server_get(server_id), context=self.get_serializer_context()).data
        )


@extend_schema(tags=["cluster"])
class UndrainView(OccupiedView):
    """Using a server again."""

    token_scopes = {"POST": Scope.OPERATE}
    queryset = Server.objects.none()

    @extend_schema(
        operation_id="server_undrain",
        summary="Use a drained server again (operator)",
        request=None,
        responses={200: shapes.ServerSerializer},
    )
    def post(self, request: Request, server_id: int) -> Response:
        require_operator(self.user)
        return self.idempotently(lambda: self._undrain(server_id))

    def _undrain(self, server_id: int) -> Response:
        server_undrain(server=server_get(server_id), actor=self.user)
        return Response(
            shapes.ServerSerializer(server_get(server_id), context=self.get_serializer_context()).data
        )


@extend_schema(tags=["cluster"])
class GpusView(OccupiedView):
    """All GPUs."""

    queryset = Gpu.objects.none()

    @extend_schema(operation_id="gpu_list", summary="List GPUs", responses=shapes.GpuSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.page(gpus_known(), shapes.GpuSerializer)


@extend_schema(tags=["cluster"])
class AgentsView(ApiView):
    """All node agents."""

    queryset = Agent.objects.none()

    @extend_schema(
        operation_id="agent_list", summary="List agents", responses=cluster_shapes.AgentSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        return self.page(agents_known(), cluster_shapes.AgentSerializer)


@extend_schema(tags=["cluster"])
class AgentRevokeView(ApiView):
    """Locking an agent out."""

    token_scopes = {"POST": Scope.OPERATE}
    queryset = Agent.objects.none()

    @extend_schema(
        operation_id="agent_revoke",
        summary="Revoke an agent's credential (operator)",
        description="Its lease runs out, its workers end, its server is fenced.",
        request=None,
        responses={200: cluster_shapes.AgentSerializer},
    )
    def post(self, request: Request, agent_id: int) -> Response:
        require_operator(self.user)
        return self.idempotently(lambda: self._revoke(agent_id))

    def _revoke(self, agent_id: int) -> Response:
        agent_revoke(agent=agent_get(agent_id))
        return Response(cluster_shapes.AgentSerializer(agent_get(agent_id)).data)
