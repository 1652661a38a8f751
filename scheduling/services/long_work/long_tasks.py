"""Long tasks: one loop for all work that outlasts a message.

A row describes the work (`cluster.models.LeasedWork`); messages only wake a worker. A worker owns a row while
it renews the lease, which a separate thread does: a slow database does not slow the work down, and a long
step does not let the lease expire. All writes require the lease's token, so writes of a worker that was taken
for dead have no effect. The sweep finds rows whose worker is gone and sends lost messages again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, TypeVar

import structlog
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Q
from django.utils import timezone

from cluster.choices import FINAL_WORK_STATES, WorkState
from cluster.models.leased_work import LeasedWork
from scheduling.core.question.quantities import duration_text
from scheduling.services.rows.wakeups import MESSAGE_LASTS, wake

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=30)
#: Two writes a second; people do not see faster changes.
BEAT_SECONDS = 0.5
#: Work is given up after this many workers died with it.
MOST_ATTEMPTS = 3
#: Limit of outstanding messages: a long queue must not fill the broker with messages that expire there.
MOST_MESSAGES = 32
_LONGEST_ERROR = 2000

Row = TypeVar("Row", bound=LeasedWork)


class AttemptStopped(Exception):
    """The work must not go on."""


class CancelledByOperator(AttemptStopped):
    """An operator cancelled the work."""


class LeaseLost(AttemptStopped):
    """The row was given to another worker, ended or deleted. Nothing may be written any more."""


class TookTooLong(AttemptStopped):
    """The work exceeded its time limit."""


def nothing(row: Any) -> None:
    """Default callback: do nothing."""


@dataclass(frozen=True)
class LongTask(Generic[Row]):
    """One kind of long task.

    Attributes:
        rows: the model whose rows are the work.
        topic: the message that wakes a worker; also the name of the Celery task that calls `work_off`.
        argument: name of the row's key in the message.
        related: relations that are read with a taken row.
        progress: columns of an attempt's progress, with their initial values.
        lost: error text of a row that was given up; ``{attempts}`` is the number of lost workers.
        given_up: called with a given-up row, in the same transaction.
        tell: called when a row was taken, advanced or ended, so that pages are updated.
    """

    rows: type[Row]
    topic: str
    argument: str
    related: tuple[str, ...] = ()
    progress: Mapping[str, Any] = field(default_factory=dict)
    lost: str = "Its worker process was lost {attempts} times."
    given_up: Callable[[Row], None] = nothing
    tell: Callable[[Row], None] = nothing

    def announce(self, row: Row) -> None:
        """Wake a worker for a row that was just queued, when the present transaction commits."""
        row.wake_at = timezone.now() + MESSAGE_LASTS
        row.save(update_fields=["wake_at"])
        wake(self.topic, **{self.argument: row.pk})

    def cancel(self, row: Row) -> Row:
        """Cancel a queued row at once, and a running one as soon as its worker notices. A finished row
        stays as it is. Return the present row."""
        with transaction.atomic():
            current = self.rows._default_manager.select_for_update().get(pk=row.pk)
            if current.state in FINAL_WORK_STATES:
                return current
            current.cancel_requested = True
            if current.state == WorkState.QUEUED:
                current.state, current.finished_at = WorkState.CANCELLED, timezone.now()
            current.save(update_fields=["cancel_requested", "state", "finished_at"])
            self.tell(current)
        return current

    def attempt(self, key: Any, *, longest_seconds: float | None = None) -> TaskAttempt[Row] | None:
        """Take a queued row. Return None if it is not queued or is being taken by another worker."""
        with transaction.atomic():
            row = self.rows.lock_queued(key, *self.related)
            if row is None:
                return None
            token = row.take(LEASE)
            for name, value in self.progress.items():
                setattr(row, name, value)
            row.save()
            self.tell(row)
        return TaskAttempt(self, row, token, longest_seconds)

    def work_off(
        self,
        key: Any,
        work: Callable[[TaskAttempt[Row]], bool],
        *,
        explain: Callable[[Exception], str | None],
        longest_seconds: float | None = None,
    ) -> bool:
        """Do the work of a row if it is queued and not taken by another worker. Return the result of
        ``work``, else False.

        ``explain``: a sentence on what is wrong with the work itself; None for a defect of the platform,
        which is raised after the row records it. If the database is away, the lease expires and another
        attempt follows.
        """
        return self.work_off_first([key], work, explain=explain, longest_seconds=longest_seconds)

    def work_off_first(
        self,
        keys: Iterable[Any],
        work: Callable[[TaskAttempt[Row]], bool],
        *,
        explain: Callable[[Exception], str | None],
        longest_seconds: float | None = None,
    ) -> bool:
        """Call `work_off` for the first of these rows that is queued and not taken by another worker."""
        tried = (self.attempt(key, longest_seconds=longest_seconds) for key in keys)
        attempt = next((taken for taken in tried if taken is not None), None)
        if attempt is None:
            return False
        key = attempt.row.pk
        try:
            with attempt:
                return work(attempt)
        except CancelledByOperator:
            attempt.cancelled()
        except LeaseLost:
            log.warning("work is no longer this worker's", task=self.topic, row=key)
        except TookTooLong as error:
            attempt.fail(str(error))
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            sentence = explain(error)
            attempt.fail(
                sentence or f"It stopped with {type(error).__name__}: {error}. The worker's log says more."
            )
            if sentence is None:
                raise
            log.warning("work failed", task=self.topic, row=key, error=sentence)
        return False

    def sweep(self) -> int:
        """Queue rows again whose worker is gone, and send lost messages again. Return their number."""
        now = timezone.now()
        lost = Q(state=WorkState.RUNNING, lease_expires_at__lt=now)
        overdue = Q(state=WorkState.QUEUED, wake_at__lte=now)
        if not self.rows._default_manager.filter(lost | overdue).exists():  # as in most sweeps
            return 0
        with transaction.atomic():
            return self._take_back_lost() + self._wake_queued()

    def _take_back_lost(self) -> int:
        now = timezone.now()
        count = 0
        for row in self.rows.lock_lost(now):
            count += 1
            error = self.lost.format(attempts=row.attempts)
            again = row.take_back(now, most_attempts=MOST_ATTEMPTS, error=error)
            if again:
                row.wake_at = now + MESSAGE_LASTS
                for name, value in self.progress.items():
                    setattr(row, name, value)
                wake(self.topic, **{self.argument: row.pk})
            row.save()
            if row.state == WorkState.FAILED:
                self.given_up(row)
            self.tell(row)
            log.warning(
                "work lost its worker", task=self.topic, row=row.pk, attempts=row.attempts, state=row.state
            )
        return count

    def _wake_queued(self) -> int:
        now = timezone.now()
        queued = self.rows._default_manager.filter(state=WorkState.QUEUED)
        room = max(0, MOST_MESSAGES - queued.filter(wake_at__gt=now).count())
        overdue = (
            queued.select_for_update(skip_locked=True).filter(wake_at__lte=now).order_by("created_at", "pk")
        )
        count = 0
        for row in overdue[:room]:
            count += 1
            self.announce(row)
        return count


class TaskAttempt(Generic[Row]):
    """A row that this worker owns, and the thread that renews its lease while the context is entered."""

    def __init__(
        self, task: LongTask[Row], row: Row, token: str, longest_seconds: float | None = None
    ) -> None:
        self.row = row
        self.token = token
        self._task = task
        self._longest_seconds = longest_seconds
        self._ends_at = float("inf") if longest_seconds is None else time.monotonic() + longest_seconds
        self._progress: dict[str, Any] = {}
        self._left = threading.Event()
        self._stop: AttemptStopped | None = None
        self._thread = threading.Thread(target=self._beat, name=f"lease-{task.topic}-{row.pk}", daemon=True)

    def told(self, **progress: Any) -> None:
        """Set the progress, which the thread stores.

        Raises:
            AttemptStopped: the work must not go on.
        """
        self._progress = progress
        if self._stop is not None:
            raise self._stop

    def finish(self, **values: Any) -> bool:
        """Store the result. Return False if the row is another worker's or was cancelled."""
        if self._end(self.row.held(self.token).filter(cancel_requested=False), WorkState.DONE, values):
            return True
        self.cancelled()
        return False

    def fail(self, error: str, **values: Any) -> bool:
        """End the work with an error sentence. Return False if the row is another worker's."""
        values["error"] = error[:_LONGEST_ERROR] or "It failed without a word."
        return self._end(self.row.held(self.token), WorkState.FAILED, values)

    def cancelled(self) -> bool:
        """End the work as cancelled. Return False if the row is another worker's."""
        return self._end(self.row.held(self.token), WorkState.CANCELLED, {})

    def renew(self, **progress: Any) -> bool | None:
        """Renew the lease and store the progress. Return whether the work was cancelled; None if the lease
        is lost."""
        held = self.row.held(self.token)
        if not held.update(lease_expires_at=timezone.now() + LEASE, **progress):
            return None
        self._task.tell(self.row)
        return held.filter(cancel_requested=True).exists()

    def _end(self, held: Any, state: WorkState, values: Mapping[str, Any]) -> bool:
        no_lease = {"lease_token": "", "lease_owner": "", "lease_expires_at": None}
        ended = bool(held.update(state=state, finished_at=timezone.now(), **no_lease, **values))
        self._task.tell(self.row)
        return ended

    def __enter__(self) -> TaskAttempt[Row]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._left.wait(BEAT_SECONDS):
                try:
                    self._renew()
                except (OperationalError, InterfaceError) as problem:
                    # The lease outlasts a short absence of the database; after a long one the result is
                    # refused.
                    log.warning(
                        "lease not renewed", task=self._task.topic, row=self.row.pk, error=str(problem)
                    )
                    connection.close()
        except Exception:
            # Without a renewed lease the work must not go on.
            self._stop = LeaseLost()
            raise
        finally:
            connection.close()

    def _renew(self) -> None:
        stop = self.renew(**self._progress)
        if stop is None:
            self._stop = LeaseLost()
        elif stop:
            self._stop = CancelledByOperator()
        elif time.monotonic() > self._ends_at:
            self._stop = TookTooLong(
                f"It ran for {duration_text(self._longest_seconds or 0.0)}, longer than it may; ask for less."
            )
