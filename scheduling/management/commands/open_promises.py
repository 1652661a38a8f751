"""Name the open promises that a stop of the platform breaks, and by when each needs it again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from scheduling.core.question.quantities import duration_text
from scheduling.selectors.jobs.promises import open_promises

_MOST_NAMED = 10


class Command(BaseCommand):
    """Prints nothing where no promise is open."""

    help = "List open promises, and by when each needs the platform to run again if it is stopped now."
    # As in `bootstrap_demo`.
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        found = open_promises(now)
        if not found:
            return
        self.stdout.write("Stopping the platform breaks open promises unless it runs again in time:")
        for promise in found[:_MOST_NAMED]:
            left = (
                f"within {duration_text(promise.spare_seconds)}"
                if promise.spare_seconds > 0
                else "at once: there is no time to spare"
            )
            self.stdout.write(
                f"  {promise.job_id} {promise.job_name}: deadline "
                f"{promise.deadline_at:%Y-%m-%d %H:%M:%S} UTC, needed again {left}"
            )
        if len(found) > _MOST_NAMED:
            self.stdout.write(f"  and {len(found) - _MOST_NAMED} more with more time to spare")
