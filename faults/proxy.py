"""An HTTP proxy between an agent and the control plane that misbehaves on request.

It handles whole messages, so it can cut, delay, double and hold back each. Held-back messages arrive after
later ones, when their sender no longer waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

LONGEST_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
START_SECONDS = 10.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Behaviour:
    """Handling of messages. ``hold_back_seconds``: every second message waits this long, and others overtake
    it."""

    cut: bool = False
    delay_seconds: float = 0.0
    double: bool = False
    hold_back_seconds: float = 0.0


PASSES = Behaviour()


@dataclass(frozen=True)
class _Message:
    head: bytes
    body: bytes


class Proxy:
    """Listens on an address and forwards to another. Runs in its own thread."""

    def __init__(self, listen: tuple[str, int], upstream: tuple[str, int]) -> None:
        """Port 0 selects a free one: see `port` after the start."""
        self._listen = listen
        self._upstream = upstream
        self._behaviour = PASSES
        self._messages = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._cut_is_over: asyncio.Event | None = None
        #: Forwarded messages, including doubles.
        self.passed = 0

    def __enter__(self) -> Self:
        """Begin to listen. Raises OSError for an address that is not available."""
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def behave(self, behaviour: Behaviour) -> None:
        """Change the behaviour from now on."""
        self._run(self._behave(behaviour))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    async def _open(self) -> None:
        self._cut_is_over = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, *self._listen, limit=LONGEST_HEAD_BYTES)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _behave(self, behaviour: Behaviour) -> None:
        assert self._cut_is_over is not None
        was_cut = self._behaviour.cut
        self._behaviour = behaviour
        if behaviour.cut and not was_cut:
            self._cut_is_over = asyncio.Event()
        elif was_cut and not behaviour.cut:
            self._cut_is_over.set()
            # Messages under way are lost, as on a wire.
            for writer in self._writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (message := await self._read(reader)) is not None:
                if not await self._pass_on(message, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one end has disconnected; the other end notices
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> _Message | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise
        length = 0
        kept = []
        for number, line in enumerate(head[:-4].split(b"\r\n")):
            name, _, value = line.partition(b":")
            if number and name.lower() == b"content-length":
                length = int(value)
            elif number and name.lower() == b"transfer-encoding":
                raise ValueError("only messages of known length are passed on")
            if not number or name.lower() not in (b"host", b"connection"):
                kept.append(line)
        kept += [b"Host: %s:%d" % (self._upstream[0].encode(), self._upstream[1]), b"Connection: close"]
        return _Message(b"\r\n".join(kept) + b"\r\n\r\n", await reader.readexactly(length))

    async def _pass_on(self, message: _Message, writer: asyncio.StreamWriter) -> bool:
        """Forward the message. Returns whether the connection may be reused: never, since the answer closes
        it."""
        self._messages += 1
        behaviour = self._behaviour
        if behaviour.cut:
            await self._wait_for_the_cuts_end()
            return False
        if behaviour.delay_seconds:
            await asyncio.sleep(behaviour.delay_seconds)
        if behaviour.hold_back_seconds and self._messages % 2:
            await asyncio.sleep(behaviour.hold_back_seconds)
        if not behaviour.double:
            await self._send(message, writer)
        elif self._messages % 2:
            await self._send(message, writer)
            await self._send(message, None)
        else:
            await self._send(message, None)
            await self._send(message, writer)
        return False

    async def _wait_for_the_cuts_end(self) -> None:
        assert self._cut_is_over is not None
        await self._cut_is_over.wait()

    async def _send(self, message: _Message, answer_to: asyncio.StreamWriter | None) -> None:
        """Forward a message over a new connection, and its answer to ``answer_to``, if given."""
        try:
            reader, upstream = await asyncio.open_connection(*self._upstream)
        except OSError:
            return
        try:
            upstream.write(message.head + message.body)
            await upstream.drain()
            self.passed += 1
            while piece := await reader.read(PIECE_BYTES):
                if self._behaviour.cut:
                    await self._wait_for_the_cuts_end()
                    return
                if answer_to is not None and not answer_to.is_closing():
                    answer_to.write(piece)
                    await answer_to.drain()
                elif answer_to is not None:
                    return
        finally:
            upstream.close()
            with contextlib.suppress(OSError):
                await upstream.wait_closed()
