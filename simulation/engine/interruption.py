"""Ctrl-C between two steps: compiled code must not be interrupted, nor a step left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed inside. The second time it interrupts at once, as
    usual.

    In a thread other than the main one, and where somebody else handles Ctrl-C, it always says no.
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
