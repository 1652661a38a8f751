"""Lending, for operators: servers lent to training, servers asked back, and the cost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from plotly.utils import PlotlyJSONEncoder

from dashboard.figures import LENDING_PANELS, PanelRequest
from dashboard.views.access import data, page, person
from dashboard.views.rendering import Fragment, render_page
from lending.core.history import condensed
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder
from lending.selectors.effects_on_jobs import borrowed_use, promises_touched
from lending.selectors.history import combined_usage_history, inference_cluster_chosen, lending_counters
from lending.selectors.inference_clusters import servers_at_home, standing
from lending.selectors.orders import order_found, order_shortfalls, orders_page, reclaim_row
from lending.selectors.reclaim_explanation import (
    alternatives,
    chosen_servers,
    job_fates,
    order_timeline,
)

#: Selectable time windows of the charts.
WINDOWS = {
    "1h": ("1 h", timedelta(hours=1)),
    "6h": ("6 h", timedelta(hours=6)),
    "24h": ("24 h", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
}
DEFAULT_WINDOW = "24h"
COUNTED = timedelta(hours=24)
MOST_TABLE_ROWS = 12


def _operators_only(request: HttpRequest) -> None:
    if not person(request).operates():
        raise PermissionDenied(
            "Lending is for operators: it shows the jobs of all projects. Ask an operator for a figure, or "
            "for the right."
        )


def chosen_window(request: HttpRequest) -> str:
    """Return the window that the address names, or the default one."""
    name = request.GET.get("window", "")
    return name if name in WINDOWS else DEFAULT_WINDOW


def _chosen_cluster(request: HttpRequest) -> tuple[InferenceCluster | None, list[InferenceCluster]]:
    """Return the inference cluster that the address names, else the first, and all of them. None if there is
    none."""
    name = request.GET.get("cluster", "")[:64].replace("\x00", "")
    found, known = inference_cluster_chosen(name)
    if found is None and name:
        raise Http404("no such inference cluster")
    return found, known


@page
def lending(request: HttpRequest) -> HttpResponse:
    """Show one inference cluster: its state, its usage, its servers over time and its orders."""
    _operators_only(request)
    chosen, known = _chosen_cluster(request)
    context = {
        "chosen": chosen,
        "known": known,
        "panels": LENDING_PANELS,
        "windows": {name: label for name, (label, _) in WINDOWS.items()},
        "window": chosen_window(request),
    }
    fragments = {} if chosen is None else _fragments(chosen)
    return render_page(request, "dashboard/lending.html", fragments, section="lending", context=context)


def _fragments(chosen: InferenceCluster) -> dict[str, Fragment]:
    return {
        "standing": Fragment("dashboard/parts/lending/standing.html", lambda _: _standing(chosen)),
        "combined": Fragment(
            "dashboard/parts/lending/combined.html", lambda request: _combined(request, chosen)
        ),
        "orders": Fragment("dashboard/parts/lending/orders.html", lambda request: _orders(request, chosen)),
    }


def _standing(chosen: InferenceCluster) -> dict[str, Any]:
    return {
        "now": standing(chosen),
        "counters": lending_counters(chosen, timezone.now() - COUNTED),
        "promises": promises_touched(chosen),
        "at_home_names": servers_at_home(chosen),
    }


def _combined(request: HttpRequest, chosen: InferenceCluster) -> dict[str, Any]:
    now = timezone.now()
    since = now - WINDOWS[chosen_window(request)][1]
    points = combined_usage_history(chosen, since, now)
    return {
        "rows": condensed(points, MOST_TABLE_ROWS),
        "mean": next(iter(condensed(points, 1)), None),
        "borrowed": borrowed_use(chosen, since, now),
    }


def _orders(request: HttpRequest, chosen: InferenceCluster) -> dict[str, Any]:
    text = request.GET.get("page", "1")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    rows, found = orders_page(chosen, number, timezone.now())
    query = request.GET.copy()
    query.pop("page", None)
    query.pop("fragment", None)
    return {"rows": rows, "page": found, "query": query.urlencode()}


@data
def lending_panel(request: HttpRequest, name: str) -> HttpResponse:
    """Return one figure of the page as JSON."""
    _operators_only(request)
    chosen, _ = _chosen_cluster(request)
    panel = LENDING_PANELS.get(name)
    if panel is None or chosen is None:
        raise Http404("no such panel")
    window = WINDOWS[chosen_window(request)][1]
    asked = PanelRequest(user=person(request), now=timezone.now(), window=window, inference_cluster=chosen)
    return JsonResponse(panel.draw(asked), encoder=PlotlyJSONEncoder)


@page
def lending_order(request: HttpRequest, order_id: UUID) -> HttpResponse:
    """Show one loan or reclaim order; for a reclaim also why these servers were chosen, and the
    alternatives."""
    # Other users get the same response as for an order that does not exist.
    order = (
        order_found(order_id, loan_first=request.GET.get("kind") == "loan")
        if person(request).operates()
        else None
    )
    if order is None:
        raise Http404("no such order")
    is_loan = isinstance(order, LoanOrder)
    context = {"order": order, "is_loan": is_loan, "inference_cluster": order.inference_cluster}
    fragments = {"summary": Fragment("dashboard/parts/lending/order.html", lambda _: _summary(order))}
    if isinstance(order, ReclaimOrder):
        fragments["choice"] = Fragment("dashboard/parts/lending/choice.html", lambda _: _choice(order))
    fragments["timeline"] = Fragment(
        "dashboard/parts/lending/timeline.html", lambda _: order_timeline(order, timezone.now())
    )
    return render_page(request, "dashboard/lending_order.html", fragments, section="lending", context=context)


def _summary(order: LoanOrder | ReclaimOrder) -> dict[str, Any]:
    if isinstance(order, LoanOrder):
        return {}
    shortfalls = order_shortfalls(order.inference_cluster, [order], timezone.now())
    return {"row": reclaim_row(order, shortfalls[order.pk]), "fates": job_fates(order)}


def _choice(order: ReclaimOrder) -> dict[str, Any]:
    others = alternatives(order)
    return {
        "servers": chosen_servers(order),
        "alternatives": others,
        "timed": any(one.compute_seconds is not None for one in others),
        "candidates": order.choice.get("candidates", ()),
    }
