"""Work that waits in a row until a worker process takes it, and comes back when that process is gone."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.choices import FINAL_WORK_STATES, WorkState


class LeasedWork(models.Model):
    """A row that one worker at a time holds: it takes a lease, renews it, and writes under the lease's token
    alone.

    Whoever holds an old token writes nothing any more. ``wake_at``: when the message that told of queued work
    counts as lost and is sent again.
    """

    state = models.CharField(max_length=9, choices=WorkState.choices, default=WorkState.QUEUED)
    created_at = models.DateTimeField(default=timezone.now)
    wake_at = models.DateTimeField(default=timezone.now)

    attempts = models.PositiveIntegerField(default=0)
    lease_owner = models.CharField(max_length=200, blank=True)
    lease_token = models.CharField(max_length=40, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    cancel_requested = models.BooleanField(default=False)

    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        abstract = True

    @classmethod
    def lock_queued(cls, pk: int, *related: str) -> Self | None:
        """The queued row, locked in this transaction; None where it is not queued, or somebody else takes it
        at this moment."""
        rows = cls._default_manager.select_for_update(skip_locked=True, of=("self",)).select_related(*related)
        return rows.filter(pk=pk, state=WorkState.QUEUED).first()

    def take(self, lease: timedelta) -> str:
        """Give this process the lease, in memory; returns the token under which it may write."""
        now = timezone.now()
        self.state, self.started_at = WorkState.RUNNING, now
        self.attempts += 1
        self.lease_owner = f"{socket.gethostname()}:{os.getpid()}"
        self.lease_token = secrets.token_hex(16)
        self.lease_expires_at = now + lease
        return self.lease_token

    def held(self, token: str) -> models.QuerySet[Self]:
        """The row as long as ``token`` holds it: an update of this writes nothing once the lease is
        another's."""
        return type(self)._default_manager.filter(pk=self.pk, state=WorkState.RUNNING, lease_token=token)

    @classmethod
    def lock_lost(cls, now: datetime) -> models.QuerySet[Self]:
        """Rows whose worker has not renewed its lease in time, locked in this transaction."""
        running = cls._default_manager.select_for_update(skip_locked=True)
        return running.filter(state=WorkState.RUNNING, lease_expires_at__lt=now)

    def take_back(self, now: datetime, *, most_attempts: int, error: str) -> bool:
        """Take the lease from a lost worker, in memory. Returns whether the work is queued again.

        It is not where it was to be cancelled anyway, nor after ``most_attempts``, when it fails with
        ``error``.
        """
        self.lease_token = self.lease_owner = ""
        self.lease_expires_at = None
        if self.cancel_requested:
            self.state, self.finished_at = WorkState.CANCELLED, now
        elif self.attempts >= most_attempts:
            self.state, self.finished_at, self.error = WorkState.FAILED, now, error
        else:
            self.state = WorkState.QUEUED
        return self.state == WorkState.QUEUED


def lease_constraints(what: str) -> list[models.BaseConstraint]:
    """What the database holds to: running work, and no other, has a lease; finished work, and no other, has
    an end."""
    running, final = Q(state=WorkState.RUNNING), Q(state__in=FINAL_WORK_STATES)
    return [
        models.CheckConstraint(
            condition=Q(state=WorkState.RUNNING, lease_expires_at__isnull=False) & ~Q(lease_token="")
            | ~running & Q(lease_expires_at__isnull=True, lease_token=""),
            name=f"running_{what}_has_a_lease",
        ),
        models.CheckConstraint(
            condition=Q(state__in=FINAL_WORK_STATES, finished_at__isnull=False)
            | ~final & Q(finished_at__isnull=True),
            name=f"final_{what}_has_finish_time",
        ),
    ]
