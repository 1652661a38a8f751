"""How promises stand: the one rule for tiles, charts, the summary and the monitoring system."""

from __future__ import annotations

from django.db.models import Q

from scheduling.choices import PLANNED_STATES, PromiseOutcome

UNFINISHED = Q(state__in=PLANNED_STATES)
#: The deadline is still to come.
OPEN = UNFINISHED & Q(promise_outcome=PromiseOutcome.OPEN)
#: Open, and no plan meets the deadline.
AT_RISK = OPEN & Q(at_risk=True)
#: Missed already, though the job still runs: each of them counts as missed too.
LATE = UNFINISHED & Q(promise_outcome=PromiseOutcome.MISSED)
