"""The transport to the broker: Kombu's for Redis, which outlives a broker that dies or stands still.

Messages are wake-ups alone, so it is enough that workers go on. What was not acknowledged the broker gives
out again by itself once it has been out for too long.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual


class QoS(redis.QoS):
    """What a channel has been given and has not acknowledged."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message. Where the broker does not answer it counts as done all the same: Celery goes
        on without another word, and a worker that may hold one message at a time would never get the next."""
        if self._is_cut_off():
            virtual.QoS.ack(self, delivery_tag)
            return
        try:
            super().ack(delivery_tag)
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give one message back, with the same care."""
        if self._is_cut_off():
            virtual.QoS.ack(self, delivery_tag)
            return
        try:
            super().reject(delivery_tag, requeue=requeue)
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def restore_unacked(self, client: Any = None) -> None:
        """Give everything back, as long as there is a way to the broker."""
        if not self._is_cut_off():
            super().restore_unacked(client)

    def _is_cut_off(self) -> bool:
        """Whether the connection was given up. Celery 5.7 closes such a one again, and acknowledges what
        came by it when the task ends: an AttributeError would end the worker."""
        transport = self.channel.connection
        return transport is None or transport.client is None


class Channel(redis.Channel):
    """A channel with that memory."""

    QoS = QoS


class Transport(redis.Transport):
    """The transport with those channels."""

    Channel = Channel


def use() -> None:
    """Have all connections to a Redis go by it."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
