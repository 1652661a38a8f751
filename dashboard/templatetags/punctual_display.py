"""Formats of times, durations, shares and states on pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cluster.choices import SERVER_COLOURS, ServerState, WorkState
from deployments.choices import DEPLOYMENT_COLOURS, DeploymentState
from deployments.models import Deployment
from lending.choices import LoanState, ReclaimState
from lending.models import LoanOrder, ReclaimOrder
from punctual.names import shown
from scheduling.choices import JOB_COLOURS, JobEventKind, JobState, PromiseOutcome
from scheduling.core.question import quantities
from scheduling.models import Job
from simulation.choices import RUN_COLOURS
from simulation.models import SimulationRun

register = template.Library()

_OUTCOME_STYLES = {
    PromiseOutcome.MET: "good",
    PromiseOutcome.MISSED: "bad",
    PromiseOutcome.OPEN: "accent",
    PromiseOutcome.VOID: "quiet",
}
_LOAN_STYLES = {
    LoanState.PENDING: "quiet",
    LoanState.DONE: "good",
    LoanState.WITHDRAWN: "quiet",
    LoanState.REFUSED: "bad",
}
_RECLAIM_STYLES = {
    ReclaimState.PENDING: "quiet",
    ReclaimState.RECLAIMING: "warning",
    ReclaimState.RETURNED: "accent",
    ReclaimState.CONFIRMED: "good",
}


_EVENTS = {str(kind): kind.label for kind in JobEventKind}


def duration_text(seconds: float) -> str:
    """Return a duration in whole seconds, or minutes from ten on, without its sign: `2 h 5 min`, `0 s`.

    The page's script uses the same format (static/dashboard/times.js).
    """
    whole = round(abs(seconds))
    return quantities.duration_text(whole if whole < 600 else whole - whole % 60)


@register.filter
def event_words(kind: str) -> str:
    """Return the label of a kind of job event: `State loaded`, `At risk`."""
    return _EVENTS.get(kind, kind.replace("_", " ").capitalize())


@register.filter
def duration(seconds: float | None) -> str:
    """Return a duration in words, or a dash."""
    return "–" if seconds is None or abs(seconds) == float("inf") else duration_text(seconds)


@register.simple_tag
def when(moment: datetime | None, empty: str = "–") -> str | SafeString:
    """Return a time relative to now, with the exact UTC time on hover. The page's script keeps it current."""
    if moment is None:
        return empty
    moment = moment.astimezone(UTC)
    seconds = (moment - timezone.now()).total_seconds()
    text = f"in {duration_text(seconds)}" if seconds > 0 else f"{duration_text(seconds)} ago"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S"),
        "now" if abs(seconds) < 1 else text,
    )


@register.simple_tag
def clock(moment: datetime | None) -> str | SafeString:
    """Return the time of day in UTC, with the date on hover."""
    if moment is None:
        return "–"
    moment = moment.astimezone(UTC)
    return format_html(
        '<span title="{} UTC">{}</span>', moment.strftime("%Y-%m-%d %H:%M:%S"), moment.strftime("%H:%M:%S")
    )


@register.simple_tag
def slack(seconds: float | None) -> str | SafeString:
    """Return slack in words and colour: lateness is red and marked as late."""
    if seconds is None or abs(seconds) == float("inf"):
        return "–"
    if seconds < 0:
        return format_html('<span class="bad-text">{} late</span>', duration_text(seconds))
    return format_html('<span class="good-text">{}</span>', duration_text(seconds))


@register.filter
def percent(share: float | None) -> str:
    """Return a share between 0 and 1 in whole percent, rounded down: 99.9 % is not yet 100 %."""
    return "0%" if not share else f"{int(share * 100)}%"


@register.filter
def number(value: int) -> str:
    """Return a whole number with thousands separators."""
    return f"{value:,}"


@register.filter
def pairs(mapping: Mapping[Any, Any] | None) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping; none for None.

    ``mapping.items`` in a template would look up the key "items" first, and people and their code choose the
    keys of labels, hyperparameters and metrics.
    """
    return () if mapping is None else mapping.items()


@register.filter
def visible(value: Any) -> str:
    """Return text of users or their code without characters that reverse the direction of surrounding
    text."""
    return shown(str(value), line_breaks=True)


@register.simple_tag
def state_badge(job: Job) -> SafeString:
    """Return a badge of the job's state in its colour; a pause by the owner replaces the state."""
    state = JobState(job.state)
    paused = job.paused_by_owner and not job.finished()
    label = "Paused" if paused else state.label
    return format_html('<span class="badge" style="--badge: {}">{}</span>', JOB_COLOURS[state], label)


@register.simple_tag
def server_badge(state: str) -> SafeString:
    """Return a badge of the server's state in its colour."""
    found = ServerState(state)
    return format_html(
        '<span class="badge" style="--badge: {}">{}</span>', SERVER_COLOURS[found], found.label
    )


@register.simple_tag
def deployment_badge(deployment: Deployment) -> SafeString:
    """Return a badge of the deployment's state in its colour."""
    state = DeploymentState(deployment.state)
    return format_html(
        '<span class="badge" style="--badge: {}">{}</span>', DEPLOYMENT_COLOURS[state], state.label
    )


@register.simple_tag
def run_badge(run: SimulationRun) -> SafeString:
    """Return a badge of a simulated run's state in its colour."""
    state = WorkState(run.state)
    return format_html('<span class="badge" style="--badge: {}">{}</span>', RUN_COLOURS[state], state.label)


@register.simple_tag
def order_badge(order: LoanOrder | ReclaimOrder) -> SafeString:
    """Return a tag with the state of a loan or reclaim order."""
    style = (
        _LOAN_STYLES[LoanState(order.state)]
        if isinstance(order, LoanOrder)
        else _RECLAIM_STYLES[ReclaimState(order.state)]
    )
    return format_html('<span class="tag {}">{}</span>', style, order.get_state_display())


@register.filter
def tenths(share: float | None) -> str:
    """Return a share between 0 and 1 in percent with one decimal, or a dash."""
    return "–" if share is None else f"{share:.1%}"


@register.filter
def gpu_hours(gpu_seconds: float) -> str:
    """Return GPU time in hours, or in minutes if it is less than one hour."""
    if gpu_seconds < 3600:
        return f"{gpu_seconds / 60:.1f} GPU minutes"
    return f"{gpu_seconds / 3600:,.1f} GPU hours"


@register.filter
def milliseconds(seconds: float) -> str:
    """Return a short time, such as that of a computation: `2.0 ms`, or `4 µs` if that would round to zero."""
    if 0.0 < seconds < 1e-4:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1000:.1f} ms"


@register.filter
def byte_rate(bytes_per_second: float) -> str:
    """Return a link's rate or load: `2.5 GB/s`, `730 kB/s`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.3g} {unit}/s"
    return f"{bytes_per_second:.0f} B/s"


@register.filter
def shortened_list(names: Sequence[str], most: int = 4) -> str:
    """Return the first names of a list, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


@register.simple_tag
def promise_badge(job: Job) -> str | SafeString:
    """Return a tag with the state of the promise, or with what threatens it; nothing for a job without a
    promise."""
    if job.at_risk and not job.finished():
        return format_html('<span class="tag {}">{}</span>', "warning", "At risk")
    if job.late and not job.finished():
        return format_html('<span class="tag {}">{}</span>', "bad", "Late")
    outcome = PromiseOutcome(job.promise_outcome)
    if outcome in (PromiseOutcome.NONE,):
        return ""
    label = "Promised" if outcome == PromiseOutcome.OPEN else f"Promise {outcome.label.lower()}"
    title = job.get_void_reason_display() if job.void_reason else ""
    return format_html('<span class="tag {}" title="{}">{}</span>', _OUTCOME_STYLES[outcome], title, label)


@register.filter
def item(mapping: dict[str, str], key: str) -> str:
    """Return ``mapping[key]``, or an empty string if it is missing."""
    return mapping.get(key, "")
