"""Reads and writes what is long in one thread, so that the event loop goes on.

There is one thread, not several: each that computes makes the loop wait for the interpreter's lock.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def read_in_thread(read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Return or raise what `read` does, when its turn comes.

    If the caller leaves before, it never begins.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread(), partial(read, *args, **kwargs))


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="reading")
