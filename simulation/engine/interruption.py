"""Ctrl-C handling that lets a step finish, since compiled code must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed inside. A second Ctrl-C interrupts at once.

    Outside the main thread, and if another handler for SIGINT is installed, it always returns False.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, usual)
