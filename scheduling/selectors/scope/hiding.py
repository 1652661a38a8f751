"""Hides ids of other projects' jobs in the planner's sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from projects.models import User
from scheduling.models import Job
from scheduling.selectors.scope.visibility import visible_jobs

Mask = Callable[[str], str]

#: Ids as :func:`scheduling.models.new_job_id` makes them.
_JOB_ID = re.compile(r"\b[a-hj-km-np-z2-9]{12}\b")
_PLACEHOLDER = "of another project"


def mask_for(user: User, texts: Iterable[str | None]) -> Mask:
    """Return a function that hides in ``texts`` the ids of jobs that the person may not see, in at most
    two queries."""
    named = {job_id for text in texts for job_id in _JOB_ID.findall(text or "")}
    if not named or user.operates():
        return str
    seen = set(visible_jobs(user).filter(pk__in=named).values_list("pk", flat=True))
    hidden = _all_jobs(named - seen)
    return lambda text: _JOB_ID.sub(lambda found: _PLACEHOLDER if found[0] in hidden else found[0], text)


def _all_jobs(candidates: set[str]) -> set[str]:
    """Return the candidates that are ids of jobs: an ordinary word of twelve letters stays visible."""
    return set(Job.objects.filter(pk__in=candidates).values_list("pk", flat=True)) if candidates else set()
