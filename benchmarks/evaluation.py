"""`make bench-evaluation`: a million labels taken in, evaluated in 50 slices, and boxes.

SQL makes the inferences. Beside each evaluation stands the bare join that it cannot do without, and
beside the intake the INSERT of the same rows: what a loaded machine says is in their ratio.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, Final

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer

from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.index.partitions import make_missing
from inference_store.query.deadline import Deadline
from inference_store.query.evaluation.evaluation import Evaluated, Evaluation
from inference_store.query.evaluation.run import evaluate
from inference_store.query.preparation import QueryRequest, prepare

from .events import make_events, publish
from .ingest import count_stored
from .results import Bar, add_results_option, deliver, describe_machine, format_bars
from .servers import BUCKET, POSTGRES, start_api, start_service

_DAYS: Final = 9
_START: Final = datetime.now(UTC).replace(hour=0, minute=0, second=0) - timedelta(days=_DAYS + 1)
_LABELS, _SLICES, _BOXES = 10, 50, 5
_PER_EVENT: Final = 4
"""Labels for each event that waits for the ingester: it is busy as long."""
_JOIN: Final = (
    "SELECT count(*) FROM truth_set t JOIN inference i USING (model, uid)"
    " LEFT JOIN metadata_string m ON m.model = t.model AND m.uid = t.uid"
    " WHERE t.model = {model} GROUP BY m.value"
)

_WRITE_SETS: Final = (
    "INSERT INTO truth_set (model, uid, source, revision, complete, label, item_count, by, at,"
    " content_hash, storage_key) SELECT {model}, uid, 'human', 1, true, truth, {boxes},"
    " 'bench', now(), 'x', 's3://bench/truth' FROM {own}"
)


@dataclass(frozen=True, slots=True)
class _Measured:
    what: str
    bar: float
    seconds: float
    floor: str
    floor_seconds: float


def main() -> None:
    """Measure, and print the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inferences", type=int, default=1_000_000)
    parser.add_argument("--boxes", type=int, default=100_000, help="true and predicted together")
    parser.add_argument("--runs", type=int, default=3)
    add_results_option(parser, "evaluation")
    arguments = parser.parse_args()
    machine = describe_machine()
    with PostgresServer(POSTGRES) as server, ExitStack() as stack:
        dsn = server.create_database("evaluation")
        migrate(dsn)
        measured = asyncio.run(_measure(dsn, arguments))
        measured.append(asyncio.run(_take(stack, dsn, arguments.inferences)))
    bars = [
        Bar(
            f"{one.what}: {one.seconds / one.floor_seconds:.1f} times {one.floor}",
            f"{one.bar:.0f} s",
            f"{one.seconds:.2f} s",
            one.seconds < one.bar,
        )
        for one in measured
    ]
    results = {"machine": machine, "measured": [asdict(one) for one in measured]}
    deliver(arguments.results, results, format_bars(bars))


async def _measure(dsn: str, arguments: argparse.Namespace) -> list[_Measured]:
    engine = create_engine(dsn)
    days = [_START + timedelta(days=day) for day in range(_DAYS + 1)]
    await make_missing(engine, days, target=arguments.inferences)
    labels = await _fill(engine, "labels", arguments.inferences, 1)
    boxes = await _fill(engine, "boxes", arguments.boxes // 2 // _BOXES, _BOXES)
    sliced, small = Evaluation.model_validate({"group_by": "camera"}), arguments.boxes
    asked = [
        (f"{arguments.inferences:,} labels", 2.0, labels, Evaluation(task="labels")),
        (f"the same in {_SLICES} slices", 2.0, labels, sliced),
        (f"{small:,} boxes in {_SLICES} slices", 10.0, boxes, sliced),
    ]
    measured = []
    for what, bar, model, evaluation in asked:
        seconds = await _time(arguments.runs, partial(_ask, engine, model, evaluation))
        join = await _time(arguments.runs, partial(_run, engine, _JOIN.format(model=model)))
        measured.append(_Measured(what, bar, seconds, "the bare join", join))
    await engine.dispose()
    return measured


async def _take(stack: ExitStack, dsn: str, number: int) -> _Measured:
    """Load a label of each inference of a model, while an ingester works through events."""
    engine = create_engine(dsn)
    model = await _fill(engine, "taken", number, 1, has_truth=False)
    label = '{{"inference_id":"id-{0}","label":"label-{1}"}}\n'.format
    body = "".join(label(n, n % _LABELS) for n in range(1, number + 1)).encode()
    kafka, minio = stack.enter_context(KafkaServer()), stack.enter_context(MinioServer())
    topic, bucket = kafka.create_topic("events", partitions=4), minio.create_bucket(BUCKET)
    events = (event.message(inline=True) for event in make_events(0, number // _PER_EVENT))
    await publish(kafka.bootstrap_servers, topic, events)
    api = start_api(stack, dsn, minio, bucket)
    start_service(
        stack,
        "ingester",
        service_environment(dsn, kafka, minio, bucket, KAFKA_TOPIC=topic, KAFKA_GROUP=topic),
    )
    print(f"loading {number:,} labels …", flush=True)
    before, began = await count_stored(dsn), time.perf_counter()
    headers = {"Content-Type": "application/x-ndjson"}
    async with httpx.AsyncClient(timeout=3600) as client:
        path = f"{api.address}/v1/models/taken/ground-truth"
        answer = await client.post(path, content=body, headers=headers)
    seconds, stored = time.perf_counter() - began, await count_stored(dsn) - before
    assert answer.json()["changed"] == number, answer.text
    await _run(engine, f"DELETE FROM truth_set WHERE model = {model}")
    began = time.perf_counter()
    await _run(engine, _WRITE_SETS.format(model=model, own=f"model_{model}", boxes=1))
    floor = time.perf_counter() - began
    await engine.dispose()
    what = f"{number:,} labels taken in, beside {stored / seconds:,.0f} events/s"
    return _Measured(what, 300, seconds, "a bare INSERT", floor)


async def _time(runs: int, do: Callable[[], Awaitable[Any]]) -> float:
    await do()
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        await do()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


async def _run(engine: AsyncEngine, *statements: str) -> None:
    async with engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in statements:
            await autocommit.execute(text(statement))


async def _ask(engine: AsyncEngine, model: int, evaluation: Evaluation) -> Evaluated:
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest())).query
        [registration] = [
            one for one in await registrations.page(connection, limit=10) if one.model == model
        ]
        until = Deadline.after(600)
        return await evaluate(connection, registration, query, evaluation, deadline=until)


async def _fill(
    engine: AsyncEngine, name: str, number: int, boxes: int, *, has_truth: bool = True
) -> int:
    """Make a model with so many inferences; return its integer."""
    async with engine.begin() as connection:
        task = "object_detection" if boxes > 1 else "image_classification"
        details = registrations.Details(task_type=task)
        registration, _ = await registrations.put(connection, name, details)
    print(f"making {number:,} inferences …", flush=True)
    await _run(engine, *_write(registration.model, number, boxes, has_truth), "VACUUM ANALYZE")
    return registration.model


def _write(model: int, number: int, boxes: int, has_truth: bool) -> Iterator[str]:
    step, own = _DAYS * 86_400 / number, f"model_{model}"
    uid = (
        "(lpad(to_hex(((1000 * extract(epoch FROM at))::bigint << 16) | 32768), 16, '0')"
        " || 'b' || substr(md5(n::text), 1, 15))::uuid"
    )
    yield (
        f"CREATE UNLOGGED TABLE {own} AS SELECT *, {uid} AS uid FROM ("
        f" SELECT n, timestamptz '{_START}' + n * interval '{step} seconds' AS at,"
        f" 1 + n * 7919 % {_LABELS} AS truth, random() AS score, random() < 0.1 AS wrong"
        f" FROM generate_series(1, {number}::bigint) n) AS row"
    )
    yield (
        f"INSERT INTO label (name) SELECT 'label-' || n FROM generate_series(1, {_LABELS}) n"
        " ON CONFLICT DO NOTHING"
    )
    yield "INSERT INTO metadata_key (name) VALUES ('camera') ON CONFLICT DO NOTHING"
    yield (
        "INSERT INTO metadata_key_seen (model, key, type, flag, count, first_seen, last_seen)"
        f" SELECT {model}, key, 'string', '', {number}, now(), now() FROM metadata_key"
    )
    yield f"INSERT INTO model_key (model, key) SELECT {model}, key FROM metadata_key"
    yield (
        "INSERT INTO inference (model, uid, inference_id, received_at, ok, top_label, top_score,"
        f" prediction_count) SELECT {model}, uid, 'id-' || n, at, true, CASE WHEN wrong"
        f" THEN 1 + n % {_LABELS} ELSE truth END, score, {boxes} FROM {own}"
    )
    yield (
        "INSERT INTO metadata_string (model, key, value, uid) SELECT"
        f" {model}, key, 'camera-' || (n * 31 % {_SLICES}), uid FROM {own}, metadata_key"
    )
    if has_truth:
        yield _WRITE_SETS.format(model=model, boxes=boxes, own=own)
    if boxes == 1:
        return
    place = "20 * b, 20 * b + 15, 20 * b + 15, 225"
    yield (
        "INSERT INTO truth (model, uid, source, ordinal, label, box_xmin, box_ymin, box_xmax,"
        f" box_ymax, area) SELECT {model}, uid, 'human', b, truth, 20 * b, {place} FROM {own},"
        f" generate_series(0, {boxes - 1}) b"
    )
    yield (
        "INSERT INTO prediction (model, uid, ordinal, rank, output, label, score, box_xmin,"
        f" box_ymin, box_xmax, box_ymax, area) SELECT {model}, uid, b, b + 1, 0, truth, random(),"
        f" 20 * b + 8 * random(), {place} FROM {own}, generate_series(0, {boxes - 1}) b"
    )


if __name__ == "__main__":
    main()
