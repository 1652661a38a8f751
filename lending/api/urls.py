"""Addresses of inference clusters, and of the tokens that let servers in, below /api/v1/."""

from django.urls import include, path

from lending.api.views import enrolment_tokens, inference_clusters, orders
from projects.api import converters as _converters  # noqa: F401 - registers them

_OF_INFERENCE_CLUSTERS = [
    path("", inference_clusters.InferenceClustersView.as_view(), name="inference-clusters"),
    path(
        "<project:inference_name>/",
        inference_clusters.InferenceClusterView.as_view(),
        name="inference-cluster",
    ),
    path(
        "<project:inference_name>/credential/",
        inference_clusters.CredentialView.as_view(),
        name="inference-cluster-credential",
    ),
    path(
        "<project:inference_name>/servers/",
        inference_clusters.InferenceServersView.as_view(),
        name="inference-cluster-servers",
    ),
    path(
        "<project:inference_name>/usage/",
        inference_clusters.UsageView.as_view(),
        name="inference-cluster-usage",
    ),
    path(
        "<project:inference_name>/forecasts/",
        inference_clusters.ForecastsView.as_view(),
        name="inference-cluster-forecasts",
    ),
    path(
        "<project:inference_name>/events/",
        inference_clusters.LendingEventsView.as_view(),
        name="inference-cluster-events",
    ),
    path(
        "<project:inference_name>/trainings/",
        inference_clusters.TrainingsView.as_view(),
        name="inference-cluster-trainings",
    ),
    path(
        "<project:inference_name>/trainings/<row:training_id>/cancel/",
        inference_clusters.TrainingCancelView.as_view(),
        name="inference-cluster-training-cancel",
    ),
    path(
        "<project:inference_name>/loan-orders/",
        orders.LoanOrdersView.as_view(),
        name="inference-cluster-loan-orders",
    ),
    path(
        "<project:inference_name>/loan-orders/<uuid:order_id>/",
        orders.LoanOrderView.as_view(),
        name="inference-cluster-loan-order",
    ),
    path(
        "<project:inference_name>/reclaim-orders/",
        orders.ReclaimOrdersView.as_view(),
        name="inference-cluster-reclaim-orders",
    ),
    path(
        "<project:inference_name>/reclaim-orders/<uuid:order_id>/",
        orders.ReclaimOrderView.as_view(),
        name="inference-cluster-reclaim-order",
    ),
    path(
        "<project:inference_name>/reclaim-orders/<uuid:order_id>/confirm/",
        orders.ReclaimConfirmView.as_view(),
        name="inference-cluster-reclaim-confirm",
    ),
]

urlpatterns = [
    path("inference-clusters/", include(_OF_INFERENCE_CLUSTERS)),
    path("enrolment-tokens/", enrolment_tokens.EnrolmentTokensView.as_view(), name="enrolment-tokens"),
]
