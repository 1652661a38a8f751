"""URLs of the stream process below /stream/."""

from django.urls import re_path

from streams.views import agent_wakeups, cluster_stream, job_events, job_logs

urlpatterns = [
    re_path(r"^cluster/?$", cluster_stream),
    re_path(r"^jobs/(?P<job_id>[a-z0-9]{1,16})/events/?$", job_events),
    re_path(r"^jobs/(?P<job_id>[a-z0-9]{1,16})/logs/?$", job_logs),
    re_path(r"^agents/wakeups/?$", agent_wakeups),
]
