"""Exports with a webhook, whose receiver is a server of the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from inference_store.export.webhooks.webhook import Webhook, insert_webhook, list_webhooks
from inference_store.platform.settings import RetentionSettings, read_origin
from inference_store.retention.webhook_worker import WebhookWorker
from tests.polling import until
from tests.receiver import SECRET, Message, Receiver

from .exported import Exported, export_all
from .stored import Stored, Storing


def listen_to(settings: RetentionSettings, *origins: str) -> RetentionSettings:
    """Settings that may send to these origins."""
    own = {"export_webhook_origins": ",".join(origins), "export_webhook_secret": SECRET}
    return RetentionSettings.model_validate(settings.model_dump() | own)


@dataclass
class Delivering:
    """An export whose receiver is told, and what does it."""

    storing: Storing
    exported: Exported
    worker: WebhookWorker

    async def read(self) -> Webhook:
        """Return how far the receiver is told."""
        return await read_webhook(self.storing, self.exported.id)

    async def run_until(self, enough: Callable[[Webhook], bool]) -> Webhook:
        """Run turns until the webhook is as it should be."""

        async def turn() -> Webhook:
            await self.worker.run_turn()
            return await self.read()

        return await until(turn, enough)

    async def attempt(self) -> Webhook:
        """Let the next attempt come now, and wait until its outcome is recorded."""
        async with self.storing.engine.begin() as connection:
            await connection.execute(text("UPDATE export_webhook SET retry_at = NULL"))
        await self.worker.run_turn()
        await asyncio.gather(*(task for _, task in self.worker._sending.values()))
        return await self.read()


async def read_webhook(storing: Storing, export: UUID) -> Webhook:
    async with storing.engine.connect() as connection:
        return (await list_webhooks(connection, [export]))[export]


async def export_to(storing: Storing, members: list[Stored], url: str) -> Exported:
    """Write an export with a webhook."""
    exported = await export_all(storing.engine, storing.blobs, members)
    async with storing.engine.begin() as connection:
        await insert_webhook(connection, exported.id, url, read_origin(url))
    return exported


@asynccontextmanager
async def deliver(
    storing: Storing, settings: RetentionSettings, members: list[Stored], url: str, *origins: str
) -> AsyncIterator[Delivering]:
    """Export these inferences with a webhook that may be sent to."""
    exported = await export_to(storing, members, url)
    allowed = listen_to(settings, *(origins or [read_origin(url)]))
    worker = WebhookWorker(allowed, storing.engine, seconds=600)
    try:
        yield Delivering(storing, exported, worker)
    finally:
        await worker.close()


async def wait_for_messages(receiver: Receiver, number: int) -> list[Message]:
    """Wait until so many messages have come, and return them."""
    async with asyncio.timeout(180):
        while len(receiver.messages) < number:
            receiver.arrived.clear()
            await receiver.arrived.wait()
    assert len(receiver.messages) == number
    return receiver.messages


def is_idle(webhook: Webhook) -> bool:
    return webhook.state == "idle"


def has_failed(webhook: Webhook) -> bool:
    return webhook.error is not None
