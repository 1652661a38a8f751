"""Environments that are not built yet: whose turn it is, and what a job waits for."""

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


#: Who asked for an environment: the person who created the project that did, or that project where nobody
#: did. An id of a project is negative, so that it is nobody's.
_REQUESTER = Coalesce(F("project__created_by"), -F("project"), Value(0), output_field=BigIntegerField())


def build_order() -> list[str]:
    """The digests of queued environments in the order in which they are built."""
    found = Environment.objects.annotate(requester=_REQUESTER)
    queued = found.filter(state=WorkState.QUEUED).order_by("created_at", "pk")
    waiting = list(queued.values_list("pk", "requester"))
    if not waiting:
        return []
    started = found.filter(requester__in={requester for _, requester in waiting}, started_at__isnull=False)
    latest = started.order_by().values_list("requester").annotate(at=Max("started_at"))
    return in_turn(waiting, dict(latest))


def in_turn(queued: Iterable[tuple[str, int]], started: Mapping[int, datetime]) -> list[str]:
    """Digests in the order of their builds: requesters take turns, whoever has waited longest since a build
    of theirs started goes first.

    Args:
        queued: digest and requester of each environment, the oldest first.
        started: when a build of a requester started last; whoever is missing never had one.
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
    """What the installer of the job's requirements printed last; empty unless the job waits for it."""
    if job.state != JobState.SUBMITTED:
        return ""
    running = Environment.objects.filter(pk=job.function_version.requirements_digest, state=WorkState.RUNNING)
    return running.values_list("log", flat=True).first() or ""


class BuildQueue:
    """The builds that are queued or under way, read when first asked."""

    @cached_property
    def _started_at(self) -> dict[str, datetime | None]:
        running = Environment.objects.filter(state=WorkState.RUNNING)
        return dict(running.values_list("pk", "started_at"))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {digest: place for place, digest in enumerate(build_order(), start=len(self._started_at))}

    def builds_before(self, digest: str) -> int | None:
        """How many builds go before this one, those under way included; None where it is not queued."""
        return self._places.get(digest)

    def wait_of(self, job: Job) -> str | None:
        """What the job waits for, as a sentence; None unless it waits for its requirements."""
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
