"""Messages that follow from committed rows: stored with them, sent on commit, sent again when lost.

Topics in ``TASK_TOPICS`` start the Celery task of that name. ``agent:<server id>``, ``job:<job id>``,
``cluster:<cluster id>`` and ``session:<digest of its key>`` are published on Redis. Nothing depends on
delivery: every receiver also polls the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import structlog
from celery import current_app
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from projects.models import BrowserSession, User
from projects.redis_connection import redis_client
from scheduling.models import OutboxMessage

log = structlog.get_logger(__name__)

#: Time that the sender of a message has before the sweeper sends it.
SWEEP_AFTER = timedelta(seconds=3)
#: Age at which a wake-up has been overtaken by the periodic ticks.
FORGET_AFTER = timedelta(minutes=5)
#: The broker drops a message to a worker after this time.
MESSAGE_SECONDS = 60
#: Age at which a message counts as lost.
MESSAGE_LASTS = timedelta(seconds=MESSAGE_SECONDS + 5)
TASK_TOPICS = (
    "plan", "reconcile", "build_environment", "simulate_run", "compare_runs", "orchestrate",
    "forecast_usage",
    "train_forecaster", "steer_deployments",
)  # fmt: skip
_PLANNER_WOKEN = "punctual:planner-woken"


def wake(topic: str, **payload: Any) -> None:
    """Store a message and send it when the present transaction commits.

    A wake-up of the planner is not stored: the planner polls every second, sooner than a lost message would
    be found.
    """
    if topic == "plan":
        transaction.on_commit(lambda: _wake_planner(payload))
        return
    message = OutboxMessage.objects.create(topic=topic, payload=payload, due_at=timezone.now() + SWEEP_AFTER)
    transaction.on_commit(lambda: _send(message))


def _wake_planner(payload: dict[str, Any]) -> None:
    """Send the message unless one is queued that the planner has not taken yet: its pass will read this
    transaction's rows too."""
    lasts = timedelta(seconds=settings.PLANNER_LOOKS_EVERY_SECONDS)
    try:
        first = redis_client().set(_PLANNER_WOKEN, 1, nx=True, px=lasts)
    except (RedisError, OSError) as error:
        log.warning("wake-up not sent", topic="plan", error=str(error))
        return
    if first:
        _deliver_or_log("plan", payload)


def planner_begins() -> None:
    """Let later commits wake the planner again. Called before a pass reads anything."""
    try:
        redis_client().delete(_PLANNER_WOKEN)
    except (RedisError, OSError) as error:
        # The key expires before the planner's next poll.
        log.warning("the planner's wake-ups are held back", error=str(error))


def wake_agents(versions: Mapping[int, int]) -> None:
    """Wake the agents of servers with their desired versions: one row and one message each, in one round
    trip."""
    if not versions:
        return
    due_at = timezone.now() + SWEEP_AFTER
    messages = OutboxMessage.objects.bulk_create(
        OutboxMessage(topic=f"agent:{server_id}", payload={"desired_version": version}, due_at=due_at)
        for server_id, version in versions.items()
    )
    transaction.on_commit(lambda: _send_all(messages))


def _send_all(messages: Sequence[OutboxMessage]) -> None:
    if _publish_all([(message.topic, message.payload) for message in messages]):
        OutboxMessage.objects.filter(pk__in=[message.pk for message in messages]).delete()


def hint(topic: str, **payload: Any) -> None:
    """Publish on commit without a row: for pages and followers, which only lose a little time."""
    transaction.on_commit(lambda: _deliver_or_log(topic, payload))


def hint_all(hints: Sequence[tuple[str, str]]) -> None:
    """Call `hint` for many topics, each with its kind, in one round trip."""
    if hints:
        told = [(topic, {"kind": kind}) for topic, kind in hints]
        transaction.on_commit(lambda: _publish_all(told))


def _publish_all(told: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    try:
        with redis_client().pipeline(transaction=False) as pipeline:
            for topic, payload in told:
                pipeline.publish(f"punctual:{topic}", json.dumps(payload))
            pipeline.execute()
    except (RedisError, OSError) as error:
        log.warning("wake-ups not sent", count=len(told), error=str(error))
        return False
    return True


def session_ended(instance: BrowserSession, **_: Any) -> None:
    """Tell the stream process that a session ended, so that its streams end at once."""
    hint(f"session:{instance.key_digest}")


def account_changed(
    instance: User, created: bool, update_fields: Collection[str] | None = None, **_: Any
) -> None:
    """Tell the stream process that a user was disabled or has a new password, so that affected streams end
    at once."""
    if not created and set(update_fields or ()) != {"last_login"}:
        hint(f"session:user:{instance.pk}")


def sweep_outbox() -> int:
    """Send messages whose own process did not, because it died or the broker was away. Return their
    number."""
    now = timezone.now()
    due = list(OutboxMessage.objects.filter(due_at__lte=now).order_by("id")[:500])
    if any(message.created_at < now - FORGET_AFTER for message in due):
        OutboxMessage.objects.filter(created_at__lt=now - FORGET_AFTER).delete()
    sent = 0
    for message in due:
        if message.created_at < now - FORGET_AFTER:
            continue
        claimed = OutboxMessage.objects.filter(pk=message.pk, due_at=message.due_at).update(
            due_at=now + SWEEP_AFTER, attempts=F("attempts") + 1
        )
        sent += bool(claimed and _send(message))
    return sent


def _send(message: OutboxMessage) -> bool:
    if not _deliver_or_log(message.topic, message.payload):
        return False
    OutboxMessage.objects.filter(pk=message.pk).delete()
    return True


def _deliver_or_log(topic: str, payload: dict[str, Any]) -> bool:
    try:
        if topic in TASK_TOPICS:
            current_app.send_task(f"workers.tasks.{topic}", kwargs=payload, expires=MESSAGE_SECONDS)
        else:
            redis_client().publish(f"punctual:{topic}", json.dumps(payload))
    except (RedisError, OperationalError, OSError) as error:
        log.warning("wake-up not sent", topic=topic, error=str(error))
        return False
    return True
