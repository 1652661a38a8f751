"""Environments that are not built yet: their order, and what a job waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property

from django.db.models import BigIntegerField, F, Max, Value
from django.db.models.functions import Coalesce

from cluster.choices import WorkState
from scheduling.choices import JobState
from scheduling.models import Environment, Job

#: Environments that wait for a build or are being built.
UNBUILT_STATES = (WorkState.QUEUED, WorkState.RUNNING)


#: Requester of an environment: the creator of its project, or that project if it has no creator. Project ids
#: are negative, so that they do not clash with persons.
_REQUESTER = Coalesce(F("project__created_by"), -F("project"), Value(0), output_field=BigIntegerField())


def build_order() -> list[str]:
    """Return the digests of queued environments in the order in which they are built."""
    found = Environment.objects.annotate(requester=_REQUESTER)
    queued = found.filter(state=WorkState.QUEUED).order_by("created_at", "pk")
    waiting = list(queued.values_list("pk", "requester"))
    if not waiting:
        return []
    started = found.filter(requester__in={requester for _, requester in waiting}, started_at__isnull=False)
    latest = started.order_by().values_list("requester").annotate(at=Max("started_at"))
    return in_turn(waiting, dict(latest))


def in_turn(queued: Iterable[tuple[str, int]], started: Mapping[int, datetime]) -> list[str]:
    """Return digests in build order. Requesters take turns; the one whose last build started longest ago is
    first.

    Args:
        queued: digest and requester of each environment, the oldest first.
        started: start of a requester's last build; missing if there was none.
    """
    own: dict[int, list[str]] = {}
    for digest, requester in queued:
        own.setdefault(requester, []).append(digest)
    new = [requester for requester in own if requester not in started]
    known = sorted((requester for requester in own if requester in started), key=started.__getitem__)
    turns = [*new, *known]
    rounds = range(max(map(len, own.values()), default=0))
    return [own[requester][turn] for turn in rounds for requester in turns if turn < len(own[requester])]


def installer_output(job: Job) -> str:
    """Return the last output of the installer of the job's requirements; empty unless the job waits for
    it."""
    if job.state != JobState.SUBMITTED:
        return ""
    running = Environment.objects.filter(pk=job.function_version.requirements_digest, state=WorkState.RUNNING)
    return running.values_list("log", flat=True).first() or ""


class BuildQueue:
    """Queued and running builds, read on first use."""

    @cached_property
    def _started_at(self) -> dict[str, datetime | None]:
        running = Environment.objects.filter(state=WorkState.RUNNING)
        return dict(running.values_list("pk", "started_at"))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {digest: place for place, digest in enumerate(build_order(), start=len(self._started_at))}

    def builds_before(self, digest: str) -> int | None:
        """Return how many builds precede this one, including running ones; None if it is not queued."""
        return self._places.get(digest)

    def wait_of(self, job: Job) -> str | None:
        """Return what the job waits for, as a sentence; None unless it waits for its requirements."""
        digest = job.function_version.requirements_digest
        if job.state != JobState.SUBMITTED or not digest:
            return None
        if digest in self._started_at:
            started_at = self._started_at[digest]
            return f"Its requirements are being installed since {started_at:%Y-%m-%d %H:%M:%S} UTC."
        before = self.builds_before(digest)
        if before is None:
            return None
        if before == 0:
            return "Its requirements are installed next."
        builds = "build goes" if before == 1 else "builds go"
        return f"Its requirements wait to be installed; {before} {builds} first."
