"""Who exported is told what erasures took: once for each, at least once whatever happens."""

import asyncio
import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import web
from sqlalchemy import text

from inference_store.export.webhooks.attempts import DELAYS
from inference_store.export.webhooks.webhook import Webhook, insert_webhook, list_webhooks
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import RetentionSettings, presenting, read_origin
from inference_store.retention.webhook_worker import AT_ONCE_OF_ORIGIN, WebhookWorker
from tests.kill_chain import KillChain, chain_kills
from tests.polling import until
from tests.receiver import SECRET, Message, Receiver, accept, answer_with, start_receiver
from tests.servers.certificates import Authority
from tests.servers.ports import free_port

from .conftest import Retain
from .exported import Exported, export_all, run_service, run_until_killed
from .stored import NOW, Stored, Storing, ago

WEBHOOK_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("retention.webhook")]
URL = "/hook/erased?token=s3cret"
BEGAN = int(time.time())


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
        await self.storing.execute(text("UPDATE export_webhook SET retry_at = NULL"))
        await self.worker.run_turn()
        await asyncio.gather(*(task for _, task in self.worker._sending.values()))
        return await self.read()


async def read_webhook(storing: Storing, export: UUID) -> Webhook:
    return (await storing.transact(list_webhooks, [export]))[export]


async def export_to(storing: Storing, members: list[Stored], url: str) -> Exported:
    """Write an export with a webhook."""
    exported = await export_all(storing.engine, storing.blobs, members)
    await storing.transact(insert_webhook, exported.id, url, read_origin(url))
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


@pytest.fixture
async def members(storing: Storing) -> list[Stored]:
    """Six inferences, all of which an export has."""
    return await storing.inferences(await storing.model(), 6, ago(hours=1))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that acknowledges, until a test has it answer otherwise."""
    async with start_receiver() as receiver:
        yield receiver


@pytest.fixture
async def run(
    storing: Storing, settings: RetentionSettings, members: list[Stored], receiver: Receiver
) -> AsyncIterator[Delivering]:
    """An export of these whose receiver is told."""
    async with deliver(storing, settings, members, receiver.origin + URL) as run:
        yield run


def check_signature(message: Message) -> None:
    """Check a message as its receiver would, with the specification alone."""
    sent_at = int(message.headers["webhook-timestamp"])
    assert BEGAN <= sent_at <= time.time()
    signed = f"{message.id}.{sent_at}.".encode() + message.body
    digest = hmac.new(b64decode(SECRET.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    assert message.headers["webhook-signature"] == f"v1,{b64encode(digest).decode()}"


async def test_a_receiver_is_told_once_of_each_erasure(
    storing: Storing, members: list[Stored], run: Delivering, receiver: Receiver
) -> None:
    await run.run_until(is_idle)
    assert receiver.messages == []
    first = await storing.request(*members[:3])
    await storing.eraser.finish(first)
    assert (await run.read()).state == "waiting"
    await run.run_until(is_idle)
    second = await storing.request(members[3])
    await storing.eraser.finish(second)
    told = await run.run_until(is_idle)
    messages = await wait_for_messages(receiver, 2)
    for message in messages:
        check_signature(message)
        assert message.path == URL
        assert not any(str(member.uid).encode() in message.body for member in members)
    assert [(m.data["erasure"], m.data["inferences"]) for m in messages] == [
        (str(first.id), 3),
        (str(second.id), 1),
    ]
    assert {m.data["export"] for m in messages} == {str(run.exported.id)}
    assert {m.data["model_id"] for m in messages} == {"model"}
    assert messages[0].id != messages[1].id
    assert told.delivered_until == (await run.exported.erased())[-1].erased_at
    assert (told.attempts, told.error, told.retry_at) == (0, None, None)
    assert "s3cret" not in repr(told)


@pytest.mark.kills
@chain_kills(WEBHOOK_FAILPOINTS)
async def test_a_kill_repeats_the_message_with_its_id(
    storing: Storing,
    members: list[Stored],
    tmp_path: Path,
    environment: dict[str, str],
    receiver: Receiver,
    kills: KillChain,
) -> None:
    exported = await export_to(storing, members, receiver.origin + URL)
    own = environment | {
        "INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS": receiver.origin,
        "INFERENCE_STORE_EXPORT_WEBHOOK_SECRET": SECRET,
    }
    sent, recorded, written = 0, 0, ""
    for number, kill in enumerate(kills):
        await storing.request(members[number])
        written += (await run_until_killed(kills, kill, own, tmp_path)).text
        sent += not kill.endswith("before")
        recorded += "record" in kill
        assert len(receiver.messages) == sent
    erasures = len(kills.killed)
    async with run_service(own, tmp_path) as service:
        messages = await wait_for_messages(receiver, sent + erasures - recorded)
        told = await until(lambda: read_webhook(storing, exported.id), is_idle)
    assert {message.data["inferences"] for message in messages} == {1}
    assert len({message.data["erasure"] for message in messages}) == erasures
    assert len({(message.id, message.data["erasure"]) for message in messages}) == erasures
    assert len({message.body for message in messages}) == erasures
    assert "s3cret" not in service.text + written
    assert told.delivered_at is not None


async def test_a_receiver_that_was_down_is_told_later(
    storing: Storing, members: list[Stored], run: Delivering, receiver: Receiver
) -> None:
    receiver.answer = answer_with(503, **{"Retry-After": "7200"})
    await storing.erase(members[0])
    failed = await run.run_until(has_failed)
    assert (failed.state, failed.attempts, failed.error) == ("waiting", 1, "it answered 503")
    assert failed.retry_at is not None
    assert failed.retry_at > NOW + timedelta(hours=1)
    await run.worker.run_turn()  # it is not due
    assert len(await wait_for_messages(receiver, 1)) == 1
    receiver.answer = accept
    told = await run.attempt()
    first, second = await wait_for_messages(receiver, 2)
    assert (first.id, first.body) == (second.id, second.body)
    assert (told.attempts, told.error, told.retry_at) == (0, None, None)


async def test_nobody_there_is_said(
    storing: Storing, settings: RetentionSettings, members: list[Stored]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with deliver(storing, settings, members, nobody + URL) as run:
        await storing.erase(members[0])
        failed = await run.run_until(has_failed)
        assert failed.error is not None
        assert failed.error.startswith("it cannot be connected to")


async def test_it_gives_up_after_days_and_begins_again_with_the_next_erasure(
    storing: Storing, members: list[Stored], run: Delivering, receiver: Receiver
) -> None:
    receiver.answer = answer_with(500)
    await storing.erase(members[0])
    for _ in range(len(DELAYS) + 1):
        given_up = await run.attempt()
    assert (given_up.state, given_up.retry_at) == ("given_up", None)
    assert given_up.error == "it answered 500"
    receiver.answer = accept
    await storing.erase(members[1])
    await run.run_until(is_idle)
    *_, first, second = await wait_for_messages(receiver, len(DELAYS) + 3)
    assert first.id == receiver.messages[0].id
    assert second.id != first.id


async def test_a_receiver_that_is_gone_ends_it(
    storing: Storing, members: list[Stored], run: Delivering, receiver: Receiver
) -> None:
    receiver.answer = answer_with(410)
    await storing.erase(members[0])
    ended = await run.run_until(has_failed)
    assert ended.state == "ended"
    await storing.erase(members[1])
    await run.worker.run_turn()
    assert len(await wait_for_messages(receiver, 1)) == 1
    assert (await run.read()).state == "ended"
    url = await storing.scalar(text("SELECT url FROM export_webhook"))
    assert url is None


async def test_a_redirect_is_not_followed(
    storing: Storing, settings: RetentionSettings, members: list[Stored], receiver: Receiver
) -> None:
    async with (
        start_receiver() as inner,
        deliver(
            storing, settings, members, receiver.origin + URL, receiver.origin, inner.origin
        ) as run,
    ):
        for status in (301, 302, 303, 307, 308):
            receiver.answer = answer_with(status, Location=f"{inner.origin}/admin")
            await storing.erase(members.pop())
            failed = await run.attempt()
            assert failed.error == f"it answered {status}: redirects are not followed"
        assert inner.messages == []


async def test_an_origin_that_is_listed_no_more_is_not_sent_to(
    storing: Storing, settings: RetentionSettings, members: list[Stored], receiver: Receiver
) -> None:
    async with deliver(
        storing, settings, members, receiver.origin + URL, "https://hooks.example"
    ) as run:
        await storing.erase(members[0])
        failed = await run.run_until(has_failed)
        assert "is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS" in str(failed.error)
        assert receiver.messages == []


async def test_a_certificate_that_is_not_trusted_is_no_receiver(
    storing: Storing, settings: RetentionSettings, members: list[Stored], tmp_path: Path
) -> None:
    pair = Authority(tmp_path).issue("receiver")
    async with (
        start_receiver(tls=presenting(pair.certificate, pair.key)) as receiver,
        deliver(storing, settings, members, receiver.origin + URL) as run,
    ):
        await storing.erase(members[0])
        failed = await run.run_until(has_failed)
        assert failed.error == "its TLS certificate is not trusted"
        assert receiver.messages == []


async def test_a_receiver_that_never_answers_delays_nobody(
    storing: Storing, settings: RetentionSettings, members: list[Stored]
) -> None:
    """Neither a turn, nor an erasure, nor the receiver of another origin: all of them end while it
    may still answer, which is longer than this test may take."""
    held = asyncio.Event()

    async def never(_: web.Request) -> web.StreamResponse:
        await held.wait()
        raise AssertionError("it is cancelled before")

    async with (
        start_receiver() as slow,
        start_receiver() as quick,
        deliver(storing, settings, members, quick.origin + URL, quick.origin, slow.origin) as run,
    ):
        slow.answer = never
        # more than are sent to at once
        exports = [
            await export_to(storing, members, f"{slow.origin}/{number}")
            for number in range(2 * AT_ONCE_OF_ORIGIN)
        ]
        await storing.erase(members[0])
        await run.worker.run_turn()
        await wait_for_messages(slow, AT_ONCE_OF_ORIGIN)
        await run.run_until(is_idle)
        await storing.erase(members[1])
        await run.run_until(is_idle)
        await wait_for_messages(quick, 2)
        assert len(slow.messages) == AT_ONCE_OF_ORIGIN
        waiting = [await read_webhook(storing, exported.id) for exported in exports]
        assert {(webhook.state, webhook.error) for webhook in waiting} == {("waiting", None)}


async def test_of_an_erasure_that_goes_on_nothing_is_told(
    storing: Storing, members: list[Stored], run: Delivering, receiver: Receiver
) -> None:
    unfinished = await storing.request(members[0])
    await storing.eraser.step(unfinished, None)
    assert len(await run.exported.erased()) == 1
    finished = await storing.request(members[1])
    await storing.eraser.finish(finished)
    await run.run_until(is_idle)
    [message] = await wait_for_messages(receiver, 1)
    assert message.data["erasure"] == str(finished.id)
    await storing.eraser.finish(unfinished)
    await run.run_until(is_idle)
    [_, later] = await wait_for_messages(receiver, 2)
    assert later.data["erasure"] == str(unfinished.id)


async def test_a_run_of_a_policy_is_sent_too(
    storing: Storing, members: list[Stored], retain: Retain, run: Delivering, receiver: Receiver
) -> None:
    await storing.keep(members[0].model, inference="PT1M")
    await retain()
    # the leader of this run may send nowhere: it may have recorded that
    await run.attempt()
    await run.run_until(is_idle)
    [message] = await wait_for_messages(receiver, 1)
    assert message.data["inferences"] == len(members)
