"""Addresses of inference clusters below /api/v1/inference-clusters/."""

from django.urls import path

from projects.api import converters as _converters  # noqa: F401 - registers them
from scheduling.api.views import inference, inference_orders

urlpatterns = [
    path("", inference.InferenceClustersView.as_view(), name="inference-clusters"),
    path("<project:inference_name>/", inference.InferenceClusterView.as_view(), name="inference-cluster"),
    path(
        "<project:inference_name>/credential/",
        inference.CredentialView.as_view(),
        name="inference-cluster-credential",
    ),
    path(
        "<project:inference_name>/servers/",
        inference.InferenceServersView.as_view(),
        name="inference-cluster-servers",
    ),
    path("<project:inference_name>/usage/", inference.UsageView.as_view(), name="inference-cluster-usage"),
    path(
        "<project:inference_name>/forecasts/",
        inference.ForecastsView.as_view(),
        name="inference-cluster-forecasts",
    ),
    path(
        "<project:inference_name>/events/",
        inference.LendingEventsView.as_view(),
        name="inference-cluster-events",
    ),
    path(
        "<project:inference_name>/trainings/",
        inference.TrainingsView.as_view(),
        name="inference-cluster-trainings",
    ),
    path(
        "<project:inference_name>/trainings/<row:training_id>/cancel/",
        inference.TrainingCancelView.as_view(),
        name="inference-cluster-training-cancel",
    ),
    path(
        "<project:inference_name>/loan-orders/",
        inference_orders.LoanOrdersView.as_view(),
        name="inference-cluster-loan-orders",
    ),
    path(
        "<project:inference_name>/loan-orders/<uuid:order_id>/",
        inference_orders.LoanOrderView.as_view(),
        name="inference-cluster-loan-order",
    ),
    path(
        "<project:inference_name>/reclaim-orders/",
        inference_orders.ReclaimOrdersView.as_view(),
        name="inference-cluster-reclaim-orders",
    ),
    path(
        "<project:inference_name>/reclaim-orders/<uuid:order_id>/",
        inference_orders.ReclaimOrderView.as_view(),
        name="inference-cluster-reclaim-order",
    ),
    path(
        "<project:inference_name>/reclaim-orders/<uuid:order_id>/confirm/",
        inference_orders.ReclaimConfirmView.as_view(),
        name="inference-cluster-reclaim-confirm",
    ),
]
