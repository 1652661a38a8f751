"""Idempotency: storing the first response to a request with an ``Idempotency-Key``.

A claim is a committed row, so a second request sees it while the first still runs. The response is saved in
the transaction of the work itself: either both exist or neither. A process that dies in between leaves a
claim without work. While a request runs, its database session holds an advisory lock. A claim whose lock is
free is taken over within seconds, one whose lock is held after `TAKE_OVER_AFTER`. Saving the response checks
the claim's timestamp, so a slow request whose claim was taken over cannot commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, connection
from django.utils import timezone

from projects.errors import Conflict
from projects.models import IdempotencyRecord, User

REMEMBERED_FOR = timedelta(hours=24)
#: Far longer than any request's transaction.
TAKE_OVER_AFTER = timedelta(seconds=120)
#: Longest time from the claim until its lock is held, and from a process's death until its session ends.
LOCKED_WITHIN = timedelta(seconds=5)
_LOCK_CLASS = 0x4944454D  # "IDEM": separates our advisory locks from others' in a shared database


class KeyReused(Conflict):
    """The key was used for another request."""

    code = "idempotency_key_reused"
    title = "Idempotency key reused"


class StillRunning(Conflict):
    """The first request with this key has not been answered yet."""

    code = "idempotent_request_running"
    title = "First request still running"

    def __init__(self) -> None:
        super().__init__(
            "The first request with this Idempotency-Key is still running; repeat it in a second.",
            extra={"retry_after_seconds": 1},
        )


def idempotency_claim(*, user: User, key: str, request_digest: str) -> IdempotencyRecord:
    """Claim the key for a request. A record with ``finished_at`` holds the response to repeat.

    Raises:
        KeyReused: the key belongs to a request with another body.
        StillRunning: the first request runs.
    """
    try:
        record, created = IdempotencyRecord.objects.get_or_create(
            user=user, key=key, defaults={"request_digest": request_digest}
        )
    except IntegrityError as error:  # deleted between the failed insert and the look-up
        raise StillRunning from error
    if created:
        return record
    age = timezone.now() - record.created_at
    if age < REMEMBERED_FOR and record.request_digest != request_digest:
        raise KeyReused(
            "This Idempotency-Key was used for a different request; take a new key for a new request."
        )
    if record.finished_at is not None and age < REMEMBERED_FOR:
        return record
    if record.finished_at is None and age < TAKE_OVER_AFTER and (age < LOCKED_WITHIN or _is_held(record)):
        raise StillRunning
    return _take_over(record, request_digest)


@contextmanager
def idempotency_held(record: IdempotencyRecord) -> Iterator[None]:
    """Hold the claim's lock while the request runs and the process lives."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_try_advisory_lock(%s, %s)", _lock_of(record))
        (held,) = cursor.fetchone()
    try:
        yield
    finally:
        # A broken connection has already released the lock.
        if held and connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("select pg_advisory_unlock(%s, %s)", _lock_of(record))


def _is_held(record: IdempotencyRecord) -> bool:
    """Return whether a live session holds this claim's lock (or the lock of a claim with the same number)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select exists (select 1 from pg_locks where locktype = 'advisory' and granted and objsubid = 2 "
            "and database = (select oid from pg_database where datname = current_database()) and classid = "
            "%s and objid = %s)",
            _lock_of(record),
        )
        (held,) = cursor.fetchone()
    return bool(held)


def _lock_of(record: IdempotencyRecord) -> list[int]:
    return [_LOCK_CLASS, record.pk % 2**31]


def _take_over(record: IdempotencyRecord, request_digest: str) -> IdempotencyRecord:
    now = timezone.now()
    taken = _same_claim(record).update(
        created_at=now,
        request_digest=request_digest,
        finished_at=None,
        status_code=None,
        body=None,
        headers={},
    )
    if not taken:
        raise StillRunning
    return IdempotencyRecord.objects.get(pk=record.pk)


def idempotency_finish(
    *, record: IdempotencyRecord, status_code: int, body: Any, headers: dict[str, str]
) -> None:
    """Save the response; call it in the transaction that does the work.

    Raises:
        StillRunning: another request took the claim over, and the work must be rolled back.
    """
    written = (
        _same_claim(record)
        .filter(finished_at__isnull=True)
        .update(finished_at=timezone.now(), status_code=status_code, body=body, headers=headers)
    )
    if not written:
        raise StillRunning


def idempotency_amend(*, record: IdempotencyRecord, body: Any) -> None:
    """Replace a stored response by a later one to the same request (which waited for a verdict)."""
    _same_claim(record).filter(finished_at__isnull=False).update(body=body)


def idempotency_release(*, record: IdempotencyRecord) -> None:
    """Delete the claim: the request got no final response and may be tried again."""
    _same_claim(record).filter(finished_at__isnull=True).delete()


def expire_idempotency_records() -> int:
    """Delete responses older than 24 hours. Returns how many."""
    deleted, _ = IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - REMEMBERED_FOR).delete()
    return deleted


def _same_claim(record: IdempotencyRecord):  # type: ignore[no-untyped-def]
    return IdempotencyRecord.objects.filter(pk=record.pk, created_at=record.created_at)
