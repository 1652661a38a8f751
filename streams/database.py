"""Database access from streams: in a few threads, each of which closes its connection after every call.

A stream is open for hours. If each kept a connection, a few hundred pages would exhaust PostgreSQL's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import connections

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stream-database")


async def in_database(
    read: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call a selector in a thread, with its own connection that is closed afterwards."""

    def call() -> Result:
        try:
            return read(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.get_running_loop().run_in_executor(_threads, call)
