"""Counts the calls in progress, and limits them."""

import asyncio
from collections import Counter
from typing import Any, Final

from inference_store.platform.metrics import REFUSED_CALLS

MOST_CALLS: Final = 4096
MESSAGE_SECONDS: Final = 300.0
FIRST_MESSAGE_SECONDS: Final = 1.0


class Calls:
    """Takes calls while there is room for them, and counts those refused: the server's own limit
    refuses without a log line or a metric."""

    def __init__(
        self,
        most: int = MOST_CALLS,
        *,
        most_of_one: int | None = None,
        message_seconds: float = MESSAGE_SECONDS,
        first_message_seconds: float = FIRST_MESSAGE_SECONDS,
    ) -> None:
        """`most` in total, `most_of_one` from one address (None: half of them); a call with a
        single message may take `message_seconds` to send it. A stream that the upstream refused
        before its first message arrived waits `first_message_seconds` for it: without it the call
        has no model, and is not captured."""
        self._most = most
        self._most_of_one = min(most, most_of_one or max(1, most // 2))
        self.message_seconds = message_seconds
        self.first_message_seconds = first_message_seconds
        self._by_address: Counter[str] = Counter()
        self._all = 0

    def take(self, peer: str) -> str | None:
        """Count a call until its task ends, and return None; or return why there is no room for it.
        Call it in the task of that call, before its messages are read. `peer`: gRPC's name of the
        caller, which ends with a port."""
        address = peer.rpartition(":")[0]
        if reason := self._find_refusal(address):
            REFUSED_CALLS.inc()
            return reason
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is not None:
            self._all += 1
            self._by_address[address] += 1
            task.add_done_callback(lambda _: self._release(address))
        return None

    def _find_refusal(self, address: str) -> str | None:
        if self._all >= self._most:
            return "the proxy has as many calls under way as it may: try again later"
        if self._by_address.get(address, 0) >= self._most_of_one:
            return "the proxy has as many calls from one address as it may: try again later"
        return None

    def _release(self, address: str) -> None:
        self._all -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    async def why_full(self) -> str | None:
        """Return why no call is taken, for the readiness check; None if there is room."""
        if self._all < self._most:
            return None
        return (
            f"all {self._most} gRPC calls are taken:"
            " raise INFERENCE_STORE_CONNECTIONS, or find who holds them"
        )
