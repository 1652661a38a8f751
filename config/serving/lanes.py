"""Thread pools with fair queueing between callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
#: Limits on calls that wait for a thread: of one peer, and in total.
WAITING_OF_A_PEER = 64
WAITING = 512


class Crowded(Exception):
    """Too many calls are waiting."""


class Lane:
    """A pool of threads. Peers take turns, so a call waits for those of its own peer and for one of each
    other peer at a time."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = threads
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, peer: str, function: Callable[[], Result], *, has_begun: bool = False) -> Result:
        """Call the function in a thread when the peer's turn comes.

        Raises:
            Crowded: too many calls are waiting, and ``has_begun`` is false.
        """
        await self._turn(peer, has_begun)
        loop = asyncio.get_running_loop()

        def let_next(_done: Future[Result]) -> None:
            # The loop may have ended before its last thread.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._let_next)

        # The thread's own future: even if the awaiting task is cancelled, the thread is busy until it
        # returns.
        called = self._executor.submit(function)
        called.add_done_callback(let_next)
        return await asyncio.wrap_future(called)

    async def _turn(self, peer: str, has_begun: bool) -> None:
        if self._free:
            self._free -= 1
            return
        of_all, of_peer = sum(map(len, self._waiting.values())), len(self._waiting.get(peer, ()))
        if not has_begun and (of_peer >= WAITING_OF_A_PEER or of_all >= WAITING):
            raise Crowded
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._let_next()
            raise

    def _let_next(self) -> None:
        while self._waiting:
            peer, own = self._waiting.popitem(last=False)
            turn = own.popleft()
            if own:
                self._waiting[peer] = own
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
