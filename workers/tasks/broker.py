"""The transport to the broker: Kombu's Redis transport, made to survive a broker that dies or hangs.

Messages are only wake-ups, so it suffices that workers continue. The broker redelivers unacknowledged
messages after its visibility time-out.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual


class QoS(redis.QoS):
    """A channel's delivered and unacknowledged messages."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; without an answer of the broker, drop it from the unacknowledged ones too.
        Celery does not retry, and a worker that may hold one message would never get the next."""
        if self._is_cut_off():
            virtual.QoS.ack(self, delivery_tag)
            return
        try:
            super().ack(delivery_tag)
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return one message to the queue, with the same handling of errors."""
        if self._is_cut_off():
            virtual.QoS.ack(self, delivery_tag)
            return
        try:
            super().reject(delivery_tag, requeue=requeue)
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def restore_unacked(self, client: Any = None) -> None:
        """Return all messages to the queue, if the broker is connected."""
        if not self._is_cut_off():
            super().restore_unacked(client)

    def _is_cut_off(self) -> bool:
        """Return whether the connection was closed. Celery 5.7 closes it again and acknowledges its messages
        when tasks end; without this check an AttributeError would end the worker."""
        transport = self.channel.connection
        return transport is None or transport.client is None


class Channel(redis.Channel):
    """A channel with this QoS."""

    QoS = QoS


class Transport(redis.Transport):
    """The transport with these channels."""

    Channel = Channel


def use() -> None:
    """Use this transport for all Redis connections."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
