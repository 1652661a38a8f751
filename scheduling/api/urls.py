"""Addresses of functions, jobs, decisions and the cluster below /api/v1/."""

from django.urls import path

from projects.api import converters as _converters  # noqa: F401 - registers them
from scheduling.api.views import cluster, decisions, functions, job_records, jobs, recoveries

urlpatterns = [
    path("functions/", functions.FunctionsView.as_view(), name="functions"),
    path("functions/<row:function_id>/", functions.FunctionView.as_view(), name="function"),
    path("functions/<row:function_id>/versions/", functions.VersionsView.as_view(), name="function-versions"),
    path(
        "functions/<row:function_id>/versions/<row:number>/",
        functions.VersionView.as_view(),
        name="function-version",
    ),
    path(
        "functions/<row:function_id>/versions/<row:number>/bundle/",
        functions.BundleView.as_view(),
        name="function-bundle",
    ),
    path(
        "functions/<row:function_id>/versions/<row:number>/environment/cancel/",
        functions.EnvironmentCancelView.as_view(),
        name="function-environment-cancel",
    ),
    path(
        "functions/<row:function_id>/versions/<row:number>/environment/build/",
        functions.EnvironmentBuildView.as_view(),
        name="function-environment-build",
    ),
    path("jobs/", jobs.JobsView.as_view(), name="jobs"),
    path("jobs/<job:job_id>/", jobs.JobView.as_view(), name="job"),
    path("jobs/<job:job_id>/cancel/", jobs.JobCancelView.as_view(), name="job-cancel"),
    path("jobs/<job:job_id>/pause/", jobs.JobPauseView.as_view(), name="job-pause"),
    path("jobs/<job:job_id>/resume/", jobs.JobResumeView.as_view(), name="job-resume"),
    path("jobs/<job:job_id>/accept-offer/", jobs.JobAcceptOfferView.as_view(), name="job-accept-offer"),
    path("jobs/<job:job_id>/decline-offer/", jobs.JobDeclineOfferView.as_view(), name="job-decline-offer"),
    path("jobs/<job:job_id>/clone/", jobs.JobCloneView.as_view(), name="job-clone"),
    path("jobs/<job:job_id>/deadline/", jobs.JobDeadlineView.as_view(), name="job-deadline"),
    path("jobs/<job:job_id>/events/", job_records.EventsView.as_view(), name="job-events"),
    path("jobs/<job:job_id>/metrics/", job_records.JobMetricsView.as_view(), name="job-metrics"),
    path("jobs/<job:job_id>/logs/", job_records.LogsView.as_view(), name="job-logs"),
    path("jobs/<job:job_id>/checkpoints/", job_records.CheckpointsView.as_view(), name="job-checkpoints"),
    path("jobs/<job:job_id>/recoveries/", recoveries.RecoveriesView.as_view(), name="job-recoveries"),
    path("jobs/<job:job_id>/memory-point/", recoveries.MemoryPointView.as_view(), name="job-memory-point"),
    path("jobs/<job:job_id>/artifacts/", job_records.ArtifactsView.as_view(), name="job-artifacts"),
    path("jobs/<job:job_id>/artifacts/<file:name>/", job_records.ArtifactView.as_view(), name="job-artifact"),
    path("jobs/<job:job_id>/plan/", job_records.PlanView.as_view(), name="job-plan"),
    path(
        "jobs/<job:job_id>/communication/",
        job_records.CommunicationView.as_view(),
        name="job-communication",
    ),
    path("jobs/<job:job_id>/experts/", job_records.ExpertsView.as_view(), name="job-experts"),
    path("jobs/<job:job_id>/curve/", job_records.CurveView.as_view(), name="job-curve"),
    path("what-if/", jobs.WhatIfView.as_view(), name="what-if"),
    path("cluster/", cluster.ClusterView.as_view(), name="cluster"),
    path("cluster/links/", cluster.ClusterLinksView.as_view(), name="cluster-links"),
    path("cluster/codecs/", cluster.ClusterCodecsView.as_view(), name="cluster-codecs"),
    path("servers/", cluster.ServersView.as_view(), name="servers"),
    path("servers/<row:server_id>/", cluster.ServerView.as_view(), name="server"),
    path("servers/<row:server_id>/drain/", cluster.DrainView.as_view(), name="server-drain"),
    path("servers/<row:server_id>/undrain/", cluster.UndrainView.as_view(), name="server-undrain"),
    path("gpus/", cluster.GpusView.as_view(), name="gpus"),
    path("agents/", cluster.AgentsView.as_view(), name="agents"),
    path("agents/<row:agent_id>/revoke/", cluster.AgentRevokeView.as_view(), name="agent-revoke"),
    path("decisions/", decisions.DecisionsView.as_view(), name="decisions"),
    path("decisions/<row:decision_id>/", decisions.DecisionView.as_view(), name="decision"),
    path("decisions/<row:decision_id>/snapshot/", decisions.SnapshotView.as_view(), name="decision-snapshot"),
]
