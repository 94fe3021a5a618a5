"""What takes long to read is read by one thread: the loop that answers everybody goes on.

One thread, not several: each that computes would let the loop wait for the interpreter's lock.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def read_aside(read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What `read` returns or raises, when it is this reading's turn. If the caller leaves before,
    it is never begun."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread(), partial(read, *args, **kwargs))


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="reading")
