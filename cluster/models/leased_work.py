"""Rows of work that worker processes take under a lease; work of a dead worker is queued again."""

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
    """A row that one worker at a time holds. The worker takes a lease, renews it, and writes only under its
    token.

    A worker with an old token can no longer write. ``wake_at``: when the message about the queued work counts
    as lost and is sent again.
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
        """Return the queued row, locked in this transaction; None if it is not queued, or another worker is
        taking it."""
        rows = cls._default_manager.select_for_update(skip_locked=True, of=("self",)).select_related(*related)
        return rows.filter(pk=pk, state=WorkState.QUEUED).first()

    def take(self, lease: timedelta) -> str:
        """Give this process the lease, in memory. Returns the token under which it may write."""
        now = timezone.now()
        self.state, self.started_at = WorkState.RUNNING, now
        self.attempts += 1
        self.lease_owner = f"{socket.gethostname()}:{os.getpid()}"
        self.lease_token = secrets.token_hex(16)
        self.lease_expires_at = now + lease
        return self.lease_token

    def held(self, token: str) -> models.QuerySet[Self]:
        """Return the row while ``token`` holds it: an update of this queryset writes nothing once another
        worker has the lease."""
        return type(self)._default_manager.filter(pk=self.pk, state=WorkState.RUNNING, lease_token=token)

    @classmethod
    def lock_lost(cls, now: datetime) -> models.QuerySet[Self]:
        """Return rows whose worker did not renew its lease in time, locked in this transaction."""
        running = cls._default_manager.select_for_update(skip_locked=True)
        return running.filter(state=WorkState.RUNNING, lease_expires_at__lt=now)

    def take_back(self, now: datetime, *, most_attempts: int, error: str) -> bool:
        """Take the lease from a lost worker, in memory. Returns whether the work is queued again.

        Work whose cancellation was requested is cancelled instead. After ``most_attempts`` attempts, it fails
        with ``error``.
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
    """Return the database constraints: a lease exists only and always for running work, a finish time for
    finished work."""
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
