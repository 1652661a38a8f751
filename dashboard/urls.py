"""URLs of the dashboard."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from dashboard.views.decisions import decisions
from dashboard.views.deployments import deployment, deployment_panel, deployments
from dashboard.views.jobs import job, job_log, job_panel, jobs
from dashboard.views.lending import lending, lending_order, lending_panel
from dashboard.views.login import LoginView
from dashboard.views.overview import overview, overview_panel
from dashboard.views.recoveries import recovery, recovery_panel
from dashboard.views.servers import servers, servers_panel
from dashboard.views.simulations import simulation, simulation_panel, simulations
from dashboard.views.streams import stream_address
from projects.api import converters as _converters  # noqa: F401 - registers them

app_name = "dashboard"
urlpatterns = [
    path("", overview, name="overview"),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("stream-address/", stream_address, name="stream-address"),
    path("panels/<slug:name>/", overview_panel, name="overview-panel"),
    path("jobs/", jobs, name="jobs"),
    path("jobs/<str:job_id>/", job, name="job"),
    path("jobs/<str:job_id>/log/", job_log, name="job-log"),
    path("jobs/<str:job_id>/panels/<slug:name>/", job_panel, name="job-panel"),
    path("jobs/<str:job_id>/recoveries/<row:number>/", recovery, name="recovery"),
    path(
        "jobs/<str:job_id>/recoveries/<row:number>/panels/<slug:name>/", recovery_panel, name="recovery-panel"
    ),
    path("servers/", servers, name="servers"),
    path("servers/panels/<slug:name>/", servers_panel, name="servers-panel"),
    path("decisions/", decisions, name="decisions"),
    path("lending/", lending, name="lending"),
    path("lending/panels/<slug:name>/", lending_panel, name="lending-panel"),
    path("lending/orders/<uuid:order_id>/", lending_order, name="lending-order"),
    path("deployments/", deployments, name="deployments"),
    path("deployments/<job:deployment_id>/", deployment, name="deployment"),
    path("deployments/<job:deployment_id>/panels/<slug:name>/", deployment_panel, name="deployment-panel"),
    path("simulations/", simulations, name="simulations"),
    path("simulations/<row:study_id>/", simulation, name="simulation"),
    path("simulations/<row:study_id>/panels/<slug:name>/", simulation_panel, name="simulation-panel"),
]
