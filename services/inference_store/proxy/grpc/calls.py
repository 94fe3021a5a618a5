"""How many calls are under way, and that they are no more than there may be."""

import asyncio
from typing import Any, Final

from inference_store.platform.metrics import REFUSED_CALLS

MOST_CALLS: Final = 4096


class Calls:
    """Takes calls while there is room for them. What is counted and what is refused are told apart
    only here: the server's own limit refuses without a word."""

    def __init__(self, most: int = MOST_CALLS) -> None:
        self._most = most
        self._under_way: set[asyncio.Task[Any]] = set()

    def take(self) -> bool:
        """Count one in until its task ends; False: there is no room for it. Asked in the task of
        that call, before anything that it sends is read."""
        if len(self._under_way) >= self._most:
            REFUSED_CALLS.inc()
            return False
        if (task := asyncio.current_task()) is not None:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return True

    async def why_full(self) -> str | None:
        """A check of readiness. None: there is room."""
        if len(self._under_way) < self._most:
            return None
        return (
            f"all {self._most} gRPC calls are taken:"
            " raise INFERENCE_STORE_PROXY_GRPC_CALLS, or find who holds them"
        )
