"""Ground truth from a topic: each message is a set once, or a dead letter, and none is lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting, registrations, unsettled
from inference_store.index.tables import awaiting_truth, inference, truth, truth_set
from inference_store.index.unsettled import Selection
from inference_store.objects import Blobs
from inference_store.truth.awaiting import join_next
from inference_store.truth.sets import TruthWriter
from tests.integration.erasure_requests import request_erasure
from tests.integration.ingester.conftest import (
    StartIngester,
    erase,
    read_health,
    wait_for_counts,
)
from tests.kill_chain import KillChain, chain_kills
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.service_process import Service
from tests.transactions import fetch, transact

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
_MODEL = capture(0).model_id
_HASH = "ab" * 32


def row(name: str, label: str = "cat", **fields: Any) -> bytes:
    return json.dumps({"model_id": _MODEL, "inference_id": name, "label": label} | fields).encode()


@pytest.fixture
async def truths(service_environment: MakeEnvironment, topic: Any) -> AsyncIterator[Producer]:
    """The producer of ground truth."""
    async with Producer(service_environment(), topic(2)) as producer:
        yield producer


async def list_letters(engine: AsyncEngine) -> dict[str, tuple[str | None, str | None, str]]:
    """Return the open dead letters by reason: model, inference, detail."""
    letters = await transact(engine, unsettled.find, Selection(state="open"), limit=100)
    rejections = [letter.rejection for letter in letters]
    return {each.reason: (each.model_id, each.inference_id, each.detail) for each in rejections}


async def test_each_message_is_a_set_once_or_a_dead_letter(
    start_ingester: StartIngester, truths: Producer, engine: AsyncEngine, blobs: Blobs
) -> None:
    _, events = await start_ingester(KAFKA_TRUTH_TOPIC=truths.topic)
    same = {"task_type": "Object Detection", "data_hash": _HASH}
    twice = [capture(n, inference_id="twice") for n in (5, 6)]
    await events.produce(*(capture(n) for n in range(3)), *twice, capture(7, extras=same))
    await wait_for_counts(engine, stored=6)
    good = [
        row("inference-0", complete=False),
        row("inference-1", source="file"),
        row("later"),
        json.dumps({"model_id": _MODEL, "data_hash": _HASH, "items": []}, indent=1).encode(),
    ]
    await truths.publish_all(good)
    await wait_for_counts(engine, stored=10)
    assert len(await fetch(engine, select(truth_set.c.uid))) == 3
    assert len(await fetch(engine, select(awaiting_truth.c.uid))) == 2
    assert await fetch(engine, select(truth_set.c.by).distinct()) == [f"topic:{truths.topic}"]
    # twice changes nothing
    await truths.publish_all(good)
    await wait_for_counts(engine, stored=10, duplicate=4)
    assert await fetch(engine, select(truth_set.c.revision).distinct()) == [1]
    # what cannot be used is a dead letter, with the reason that a file is answered
    bad = (
        row("twice"),
        row("inference-0", xmin=3, ymin=3, xmax=1, ymax=1),
        row("inference-0", model_id="no-such-model"),
        row("inference-0", label=""),
        row("inference-0")[:-1],
        b"",
        # more than an index of Postgres takes: it costs this message alone
        json.dumps({"model_id": _MODEL, "metadata.k": token_hex(20_000), "label": "x"}).encode(),
    )
    await truths.publish_all(bad[:3])
    await wait_for_counts(engine, stored=10, duplicate=4, dead=3)
    letters = await list_letters(engine)
    assert letters["truth_ambiguous"][:2] == (_MODEL, "twice")
    assert letters["truth_ambiguous"][2].startswith("2 inferences have it: name one by uid")
    assert letters["truth_refused"][:2] == (_MODEL, "inference-0")
    assert letters["truth_refused"][2].startswith("box: it is xmin, ymin, xmax, ymax")
    unknown = "model_id: there is no model 'no-such-model'"
    assert letters["unknown_model"] == ("no-such-model", "inference-0", unknown)
    await truths.publish_all(bad[3:])
    await wait_for_counts(engine, stored=10, duplicate=4, dead=7)
    assert (await list_letters(engine))["not_json"][2].startswith("it is not JSON")
    # a dead letter is tried again when asked, and changes nothing that was said after it
    await events.produce(capture(30, model_id="no-such-model", inference_id="inference-0"))
    await wait_for_counts(engine, stored=11, duplicate=4, dead=7)
    await truths.publish(row("inference-0", "newer", model_id="no-such-model"))
    await wait_for_counts(engine, stored=12, duplicate=4, dead=7)
    await transact(engine, unsettled.retry, Selection(reason="unknown_model"))
    await wait_for_counts(engine, stored=12, duplicate=5, dead=6)
    # labels that came first are joined
    await events.produce(capture(20, inference_id="later"))
    await wait_for_counts(engine, stored=13, duplicate=5, dead=6)
    await join_next(TruthWriter(engine, blobs), None)
    assert len(await fetch(engine, select(truth_set.c.uid))) == 5
    accounts = await transact(engine, accounting.list_accounts)
    assert {account.topic for account in accounts} == {events.topic, truths.topic}
    assert all(account.closes for account in accounts)


async def test_what_was_erased_gets_nothing_back(
    start_ingester: StartIngester, truths: Producer, engine: AsyncEngine, blobs: Blobs
) -> None:
    """And a dead letter that names its uid goes with it."""
    _, events = await start_ingester(KAFKA_TRUTH_TOPIC=truths.topic)
    await events.produce(capture(0), capture(1))
    await wait_for_counts(engine, stored=2)
    uids = await fetch(engine, select(inference.c.uid).order_by(inference.c.received_at))
    of_uid = {"model_id": _MODEL, "uid": str(uids[0])}
    bad = [json.dumps(of_uid).encode(), row("inference-1", label="")]
    await truths.publish_all(bad)
    await wait_for_counts(engine, stored=2, dead=2)
    model = await transact(engine, registrations.ensure, _MODEL)
    erasure = await transact(engine, request_erasure, model=model, uids=uids[:1])
    await erase(engine, blobs, erasure)
    letters = await transact(engine, unsettled.find, Selection(kind="dead letter"), limit=9)
    states = [(letter.record.payload, letter.state) for letter in letters]
    assert sorted(states) == [(b"", "discarded"), (bad[1], "open")]
    await truths.publish(json.dumps({**of_uid, "label": "cat"}).encode())
    await wait_for_counts(engine, stored=2, dead=2, erased_again=1)
    assert not await fetch(engine, select(truth_set.c.uid))


async def test_events_are_read_while_the_topic_is_missing(
    start_ingester: StartIngester,
    service_environment: MakeEnvironment,
    kafka_server: KafkaServer,
    engine: AsyncEngine,
) -> None:
    name = unique("missing")
    service, events = await start_ingester(KAFKA_TRUTH_TOPIC=name)
    await events.produce(capture(0))
    await wait_for_counts(engine, stored=1)
    assert "no ground truth is read: its topic is missing" in service.text
    kafka_server.create_topic(name)
    async with Producer(service_environment(), name) as truths:
        await truths.publish(row("inference-0"))
    await wait_for_counts(engine, stored=2)


async def test_reading_waits_for_the_object_store(
    database: str,
    engine: AsyncEngine,
    kafka_server: KafkaServer,
    own_minio: MinioServer,
    topic: Any,
    tmp_path: Path,
) -> None:
    names = {"KAFKA_TOPIC": topic(), "KAFKA_TRUTH_TOPIC": topic(), "S3_TIMEOUT_SECONDS": "1"}
    bucket = own_minio.create_bucket(unique())
    environment = environment_of(database, kafka_server, own_minio, bucket, **names)
    with Service("ingester", environment, tmp_path) as service:
        await asyncio.to_thread(service.wait_ready)
        async with Producer(environment, names["KAFKA_TOPIC"]) as events:
            await events.produce(capture(0))
        await wait_for_counts(engine, stored=1)
        await asyncio.to_thread(own_minio.stop)
        async with Producer(environment, names["KAFKA_TRUTH_TOPIC"]) as truths:
            await truths.publish_all((row("inference-0"), row("inference-0")[1:]))
        await until(lambda: read_health(service, "object store"), lambda part: part != "ready")
        await wait_for_counts(engine, stored=1)
        await asyncio.to_thread(own_minio.start)
        await wait_for_counts(engine, stored=2, dead=1)
    assert await fetch(engine, select(truth_set.c.revision)) == [1]


@pytest.mark.kills
@chain_kills(["ingester.poll.after", "ingester.write.before", "ingester.commit.after"])
async def test_a_kill_loses_no_set_and_writes_none_twice(
    kills: KillChain,
    service_environment: MakeEnvironment,
    truths: Producer,
    topic: Any,
    tmp_path: Path,
    engine: AsyncEngine,
) -> None:
    environment = service_environment(KAFKA_TOPIC=topic(), KAFKA_TRUTH_TOPIC=truths.topic)
    environment["INFERENCE_STORE_INGESTER_INSTANCE"] = unique("ingester")
    names = [f"inference-{number}" for number in range(30)]
    async with Producer(environment, environment["INFERENCE_STORE_KAFKA_TOPIC"]) as events:
        with Service("ingester", environment, tmp_path) as service:
            await events.produce(*(capture(number) for number in range(20)))
            await wait_for_counts(engine, stored=20)
            service.kill()
            for number, failpoint in enumerate(kills):
                some = names[number :: len(kills.failpoints)]
                await truths.publish_all(row(name) for name in some)
                service.restart(FAILPOINT=failpoint)
                await kills.wait_until_killed(service)
            service.restart(FAILPOINT=None)

            async def count_read() -> int:
                accounts = await transact(engine, accounting.list_accounts)
                return sum(a.next for a in accounts if a.topic == truths.topic)

            await until(count_read, lambda count: count == len(names))
    revisions = await fetch(engine, select(truth_set.c.revision))
    assert revisions == [1] * 20
    assert len(await fetch(engine, select(truth.c.uid))) == 20
    assert len(await fetch(engine, select(awaiting_truth.c.uid))) == 10
