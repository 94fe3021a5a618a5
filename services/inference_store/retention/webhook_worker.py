"""Sends to receivers what erasures took of exports, beside the turns of retention.

A turn only begins to send, and never waits for a receiver: a few webhooks of each origin at once,
each by a task of its own, so that one that is slow holds up only others of its origin. The order
makes every crash harmless:

1. read     the oldest event that the receiver has not acknowledged (`export.webhooks.event`)
2. send     it
3. record   that it is acknowledged, or when the next attempt comes

A crash before 3 sends it again, with the same id. It goes on beside an erasure: what is sent has
been committed.
"""

import asyncio
from collections import Counter
from typing import Final
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.webhooks import webhook as webhooks
from inference_store.export.webhooks.attempts import compute_delay
from inference_store.export.webhooks.event import ErasedEvent
from inference_store.export.webhooks.sending import SECONDS, Outcome, Sender
from inference_store.export.webhooks.webhook import DueWebhook
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import WEBHOOK_ATTEMPTS, from_zero
from inference_store.platform.settings import RetentionSettings

AT_ONCE_OF_ORIGIN: Final = 4
"""Webhooks of one origin that are sent to at once."""
_AT_ONCE: Final = 32
_MOST_EVENTS: Final = 20
_RESULTS: Final = ("delivered", "failed", "given_up", "ended")
_log = structlog.get_logger()


class WebhookWorker:
    """Sends webhooks. `close` ends what is under way; it is sent again later."""

    def __init__(
        self, settings: RetentionSettings, engine: AsyncEngine, *, seconds: float = SECONDS
    ) -> None:
        """`seconds`: how long a receiver may take to answer."""
        from_zero(WEBHOOK_ATTEMPTS, _RESULTS)
        self._engine = engine
        self._sender = Sender(settings.webhook_origins, settings.webhook_keys, seconds=seconds)
        self._sending: dict[UUID, tuple[str, asyncio.Task[None]]] = {}
        # one connection at a time, so that erasures find the others free
        self._turn = asyncio.Lock()

    async def run_turn(self) -> None:
        """Begin to send what is due. Raises what went wrong since, except for what a receiver did:
        the errors of the database."""
        self._collect()
        async with self._engine.connect() as connection:
            due = await webhooks.list_due(
                connection, but=list(self._sending), limit=AT_ONCE_OF_ORIGIN
            )
        busy = Counter(origin for origin, _ in self._sending.values())
        for webhook in due:
            is_free = busy[webhook.origin] < AT_ONCE_OF_ORIGIN
            if is_free and len(self._sending) < _AT_ONCE:
                busy[webhook.origin] += 1
                task = asyncio.create_task(self._deliver(webhook))
                self._sending[webhook.export] = webhook.origin, task

    async def close(self) -> None:
        """Cancel what is being sent."""
        tasks = [task for _, task in self._sending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sending.clear()
        self._sender.close()

    def _collect(self) -> None:
        """Forget the tasks that have ended; raise the error of one."""
        for export, (_, task) in list(self._sending.items()):
            if task.done():
                del self._sending[export]
                task.result()

    async def _deliver(self, webhook: DueWebhook) -> None:
        """Send some events in their order, up to the first that fails."""
        attempts = webhook.attempts
        for _ in range(_MOST_EVENTS):
            event = await self._find_event(webhook)
            if event is None:
                return
            failpoint("retention.webhook.send.before")
            outcome = await self._sender.send(webhook.url, event.id, event.make_body())
            failpoint("retention.webhook.send.after")
            await self._record(webhook, event, outcome, failed=attempts + 1)
            failpoint("retention.webhook.record.after")
            if outcome.error is not None:
                return
            attempts = 0

    async def _find_event(self, webhook: DueWebhook) -> ErasedEvent | None:
        async with self._turn, self._engine.begin() as connection:
            return await webhooks.find_event(connection, webhook.export)

    async def _record(
        self, webhook: DueWebhook, event: ErasedEvent, outcome: Outcome, *, failed: int
    ) -> None:
        delay = compute_delay(failed, asked=outcome.retry_after)
        export, error = webhook.export, outcome.error
        async with self._turn, self._engine.begin() as connection:
            if error is None:
                result = "delivered"
                await webhooks.record_delivery(connection, event)
            elif outcome.is_gone:
                result = "ended"
                await webhooks.end_webhook(connection, export, error)
            elif delay is None:
                result = "given_up"
                await webhooks.give_up(connection, export, error)
            else:
                result = "failed"
                await webhooks.record_failure(connection, export, error, seconds=delay)
        WEBHOOK_ATTEMPTS.labels(result).inc()
        about = {"export": str(export), "origin": webhook.origin, "error": error}
        _log.log(20 if error is None else 30, "webhook", action="webhook", result=result, **about)
