"""Sends one event, or one call through a proxy, through every part, and erases it again; and checks
Kafka."""

import asyncio
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from inference_store.index import accounting
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, encode
from inference_store.inference.nearest import counted
from inference_store.objects import Blobs
from inference_store.operations.doctor.findings import (
    DoctorSettings,
    Finding,
    Subject,
    failed,
    ok,
    warning,
)
from inference_store.platform import kafka
from inference_store.platform.kafka import TopicSettings, client_arguments

MODEL: Final = "inference-store-doctor"
_TASK_TYPE: Final[dict[str, Any]] = {"task_type": "image_classification"}
_REQUEST: Final = {"inputs": [{"name": "a", "shape": [1], "datatype": "BYTES", "data": ["there?"]}]}
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_NAME_IT: Final = "Does it run there? Name it by --api, --proxy or INFERENCE_STORE_URL: http://…"


class StepFailed(Exception):
    """A step did not succeed: what was seen, and what to do."""

    def __init__(self, seen: str, remedy: str) -> None:
        super().__init__(seen)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Server:
    """The api or a proxy at one address."""

    address: str
    tls: ssl.SSLContext | None
    headers: Mapping[str, str] = field(repr=False)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Return the status and the content, of a refusal too. Raises StepFailed."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json", **self.headers}
        try:
            request = Request(self.address + path, data, headers, method=method)
            with urlopen(request, timeout=60, context=self.tls) as answer:
                return int(answer.status), bytes(answer.read())
        except HTTPError as error:
            return error.code, error.read()
        except (OSError, HTTPException, ValueError) as error:
            raise StepFailed(f"{self.address} does not answer: {error}", _NAME_IT) from error

    def read(self, method: str, path: str, body: object = None) -> bytes | None:
        """Return the content; None: 404. Raises StepFailed for other refusals."""
        status, content = self.ask(method, path, body)
        if status >= 400 and status != 404:
            raise StepFailed(
                f"{method} {path} answered {status}: {content.decode(errors='replace')[:500]}",
                f"Is {self.address} your api (--api), and may INFERENCE_STORE_API_TOKEN do this?",
            )
        return None if status == 404 else content


def find_api(settings: DoctorSettings, given: str | None, tls: ssl.SSLContext | None) -> Server:
    """Return the api at the address that is given, or that the settings name."""
    host = _EVERY_ADDRESS.get(settings.api_host, settings.api_host)
    scheme = "http" if settings.api_tls_certificate_file is None else "https"
    bound = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.api_port}"
    # without access control an api answers to no other name
    headers = {"Host": "localhost"}
    if settings.api_token is not None:
        headers = {"Authorization": f"Bearer {settings.api_token.get_secret_value()}"}
    return Server((given or settings.url or bound).rstrip("/"), tls, headers)


def run_steps(steps: Iterable[str]) -> list[Finding]:
    """Return a finding for each step that succeeds, and for the one that fails."""
    findings: list[Finding] = []
    try:
        findings.extend(map(ok, steps))
    except StepFailed as error:
        findings.append(failed(str(error), error.remedy))
    except (ObjectStoreUnavailable, KafkaError, OSError) as error:
        remedy = "See the checks of Kafka and the bucket; delete what is left there in doctor/."
        findings.append(failed(f"{type(error).__name__}: {error}"[:500], remedy))
    return findings


def send_event(settings: DoctorSettings, api: Server, *, seconds: float) -> Iterator[str]:
    """Publish an event of three objects, and yield each step that succeeds."""
    inference_id = str(uuid4())
    _register(api)
    yield f"the api at {api.address} answers and accepts the key"
    objects, now = _make_objects(inference_id), datetime.now(UTC)
    more: dict[str, Any] = {f"{name}_storage_key": key for name, (key, _) in objects.items()}
    event = encode(model_id=MODEL, inference_id=inference_id, received_at=now, **more, **_TASK_TYPE)
    with Blobs(settings) as blobs:
        try:
            for key, content in objects.values():
                blobs.put(blobs.parse(key), content, content_type="application/octet-stream")
            yield f"three objects are in the bucket {settings.s3_bucket}"
            yield _check_packing(blobs, *objects["data"])
            asyncio.run(_publish(settings, event, seconds))
        except (StepFailed, ObjectStoreUnavailable, KafkaError, OSError):
            # no event names them: nobody else would ever delete them
            blobs.delete_objects([blobs.parse(key) for key, _ in objects.values()])
            raise
    yield f"the event of {inference_id} is on the topic {settings.kafka_topic}"
    yield from _follow(api, MODEL, inference_id, seconds=seconds, data=objects["data"][1])


def _check_packing(blobs: Blobs, name: str, content: bytes) -> str:
    """Check what captures need that are packed: reads of ranges. Return what was seen."""
    key = blobs.parse(name)
    if asyncio.run(_read_span(blobs, key, (1, 9))) != content[1:9]:
        remedy = "Let proxies write objects of their own: INFERENCE_STORE_PROXY_PACKING=off."
        raise StepFailed("the object store gives other bytes than the range asked for", remedy)
    refuses = not blobs.put_new(key, content, content_type="application/octet-stream")
    seen = "refuses to write what exists already" if refuses else "has no conditional writes"
    return f"the object store gives ranges, and {seen}"


async def _read_span(blobs: Blobs, key: StorageKey, span: tuple[int, int]) -> bytes:
    stream = await blobs.stream(key, span)
    return b"".join([piece async for piece in stream.pieces])


def send_call(url: str, request: Any, model: str, api: Server, *, seconds: float) -> Iterator[str]:
    """Send a call through a proxy, and yield each step that succeeds.

    `url`: without a path that of a model that no server has. `request` None: any answer will do.
    """
    inference_id = f"doctor-{uuid4()}"
    if model == MODEL:
        _register(api)
    path = "" if urlsplit(url).path.strip("/") else f"/v2/models/{MODEL}/infer"
    proxy = Server(url.rstrip("/"), api.tls, {"Chariot-Inference-Base-ID": inference_id})
    status, content = proxy.ask("POST", path, request or _REQUEST)
    # these three are the proxy's own, about a model server that is unavailable
    if status in {502, 503, 504} or (request and status >= 400):
        words = content.decode(errors="replace")[:500]
        remedy = "Is the model server ready, and are --proxy and --proxy-request right?"
        raise StepFailed(f"POST {proxy.address}{path} answered {status}: {words}", remedy)
    yield f"the call {inference_id} went through the proxy: its answer has status {status}"
    yield from _follow(api, model, inference_id, seconds=seconds, status=status)


def _follow(
    api: Server,
    model: str,
    inference_id: str,
    *,
    seconds: float,
    data: bytes | None = None,
    status: int | None = None,
) -> Iterator[str]:
    """Yield the steps from the ingester to the erasure. `data`, `status`: what was sent."""
    inferences = f"/v1/models/{quote(model, safe='')}/inferences"
    path, began = f"{inferences}/{quote(inference_id, safe='')}", time.monotonic()
    try:
        while (inference := api.read("GET", path)) is None:
            if time.monotonic() - began > seconds:
                remedy = "Look at the ingester's /health/ready and at GET /v1/dead-letters."
                seen = f"{inference_id} was not indexed within {seconds:g} s"
                raise StepFailed(seen, f"{remedy} Is {api.address} the api of this store (--api)?")
            time.sleep(0.2)
        yield f"an ingester has indexed it, after {time.monotonic() - began:.1f} s"
        if data is not None:
            text = f"doctor_run = '{inference_id}' AND prediction(label = 'doctor' AND score < 0.3)"
            answer = api.read("POST", f"{inferences}/query", {"filter": text}) or b'{"items": []}'
            ids = [item["inference_id"] for item in orjson.loads(answer)["items"]]
            if ids != [inference_id] or api.read("GET", f"{path}/data") != data:
                raise StepFailed(f"a query finds {ids}, or its input is another", "It is a defect.")
            yield "a query by metadata and prediction finds it, and its input is what was written"
        elif (stored := orjson.loads(inference).get("http_status")) != status:
            raise StepFailed(f"it is stored with the status {stored}", "It is a defect.")
        api.read("DELETE", path)
        if api.read("GET", path) is not None:
            raise StepFailed("it is shown although it was erased", "It is a defect.")
    except StepFailed as error:
        remedy = f"{error.remedy} Once it is indexed, erase it: DELETE {path}"
        raise StepFailed(str(error), remedy) from error
    yield "it is hidden again, and its erasure is on its way"


def _register(api: Server) -> None:
    if api.read("GET", f"/v1/models/{MODEL}") is None:
        api.read("PUT", f"/v1/models/{MODEL}", {"name": "Doctor", **_TASK_TYPE})


def _make_objects(inference_id: str) -> dict[str, tuple[str, bytes]]:
    metadata = [{"key": "doctor_run", "type": "string", "value": inference_id}]
    prediction = orjson.dumps([{"label": "doctor", "score": 0.25}]).decode()
    output = {"name": "predictions", "shape": [1], "datatype": "BYTES", "data": [prediction]}
    contents = {
        "data": f"Is anybody there? {inference_id}".encode(),
        "metadata": orjson.dumps(metadata),
        "inference": orjson.dumps({"outputs": [output]}),
    }
    return {name: (f"doctor/{inference_id}/{name}", text) for name, text in contents.items()}


async def _publish(settings: DoctorSettings, event: bytes, seconds: float) -> None:
    servers = client_arguments(settings)
    producer = AIOKafkaProducer(**servers, acks="all", request_timeout_ms=round(1000 * seconds))
    await producer.start()
    try:
        await producer.send_and_wait(settings.kafka_topic, event)
    finally:
        await producer.stop()


# Checks Kafka, the topic, and whether ingesters keep up with it.

# Shorter than this, an outage over a weekend loses events.
_SHORT_SECONDS = 3 * 24 * 3600
_STUCK_AFTER = timedelta(minutes=5)
_LARGE_LAG = 100_000
# Every Kafka since 0.11 reports them.
_NOT_REPORTED = (
    "its settings are not reported, as this broker has no DescribeConfigs: it is one for tests, and"
    " keeps nothing when it ends"
)


async def check_kafka(subject: Subject) -> list[Finding]:
    """Check that Kafka answers, and is of a supported version."""
    try:
        major, version = await kafka.version(subject.settings)
    except kafka.KAFKA_ERRORS as error:
        return [
            failed(
                f"Kafka does not answer: {error or type(error).__name__}"[:300],
                "Is INFERENCE_STORE_KAFKA_BOOTSTRAP_SERVERS its address as seen from here, and are"
                " INFERENCE_STORE_KAFKA_SECURITY_PROTOCOL, the login and the certificates right?",
            )
        ]
    if major < 3:
        return [failed(f"Kafka {version}", "Upgrade it to 3 or newer.")]
    return [ok(f"Kafka {version}")]


async def check_topic(subject: Subject) -> list[Finding]:
    """Check that the topic keeps its records long enough, and not too long; and that the topic of
    ground truth is there, if one is to be read."""
    name = subject.settings.kafka_topic
    try:
        topic = await kafka.topic(subject.settings)
        truth = subject.settings.kafka_truth_topic
        is_missing = bool(truth) and truth not in await kafka.list_topics(subject.settings)
    except kafka.KAFKA_ERRORS as error:
        remedy = f"May we Describe and DescribeConfigs the topic {name!r}? Are its brokers well?"
        return [failed(f"the topic {name!r} cannot be described: {error}"[:300], remedy)]
    if topic is None:
        remedy = (
            f"kafka-topics.sh --create --topic {name} --partitions 6 --replication-factor 3"
            " --config min.insync.replicas=2; or fix INFERENCE_STORE_KAFKA_TOPIC."
        )
        return [failed(f"there is no topic {name!r}", remedy)]
    if is_missing:
        remedy = "Create it, let us Describe it, or leave INFERENCE_STORE_KAFKA_TRUTH_TOPIC empty."
        return [failed(f"there is no topic {truth!r}: no ground truth is read", remedy)]
    seen = f"{counted(topic.partitions, 'partition')}, {counted(topic.replicas, 'replica')}"
    if topic.settings is None:
        return [*_check_leaders(topic)] or [ok(f"{seen}; {_NOT_REPORTED}")]
    checks = (
        _check_leaders(topic),
        _check_replicas(topic),
        _check_retention(topic, subject.settings),
    )
    return [finding for findings in checks for finding in findings] or [ok(seen)]


def _check_leaders(topic: TopicSettings) -> Iterator[Finding]:
    if topic.leaderless:
        leaderless = counted(topic.leaderless, "partition has", "partitions have")
        yield failed(f"{leaderless} no leader", "Bring the brokers back.")


def _check_replicas(topic: TopicSettings) -> Iterator[Finding]:
    least = int((topic.settings or {}).get("min.insync.replicas") or 1)
    both = f"min.insync.replicas={least} with {counted(topic.replicas, 'replica')}"
    if least > topic.replicas:
        yield failed(f"{both}: nothing can be published", "Lower it, or add replicas.")
    elif topic.replicas == 1:
        yield warning("one replica: with its broker events are lost", "Use 3 replicas.")
    elif least == 1:
        seen = f"{both}: an acknowledged event may be on one broker alone"
        yield warning(seen, "Set min.insync.replicas=2, and let producers use acks=all.")
    elif least == topic.replicas:
        yield warning(f"{both}: the loss of one broker stops producers", "Use one replica more.")
    if topic.lagging:
        lagging = counted(topic.lagging, "partition lacks", "partitions lack")
        yield warning(f"{lagging} a replica in sync", "Look at the brokers.")


def _check_retention(topic: TopicSettings, settings: DoctorSettings) -> Iterator[Finding]:
    topic_settings = topic.settings or {}
    if "compact" in topic_settings.get("cleanup.policy", "delete"):
        seen = "the topic is compacted: of two events with one key the older is dropped"
        yield failed(seen, "Set cleanup.policy=delete.")
    retention_ms = int(topic_settings.get("retention.ms") or -1)
    if 0 <= retention_ms < _SHORT_SECONDS * 1000:
        yield warning(
            f"events are kept for {retention_ms / 3600_000:.1f} hours: a longer outage loses them",
            "Raise the topic's retention.ms to a week.",
        )
    if retention_ms < 0 or retention_ms / 1000 > settings.tombstone_seconds:
        long = "for ever" if retention_ms < 0 else f"for {retention_ms / 1000:.0f} s"
        yield warning(
            f"the topic keeps events {long}, and an erased inference is remembered for"
            f" {settings.tombstone_seconds:g} s: reading the topic again could bring it back",
            "Raise INFERENCE_STORE_TOMBSTONE_SECONDS above the topic's retention.ms.",
        )


async def check_lag(subject: Subject) -> list[Finding]:
    """Check that the records of the topic are in the offset accounting, or will be soon."""
    try:
        ends = await kafka.ends(subject.settings)
    except kafka.KAFKA_ERRORS as error:
        return [failed(f"the topic's ends are not known: {error}"[:300], "May we read it?")]
    async with subject.engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    here = subject.settings
    newest = {
        account.partition_id.partition: account  # ordered by epoch: the last one stays
        for account in accounts
        if (account.partition_id.cluster, account.partition_id.topic)
        == (here.kafka_cluster, here.kafka_topic)
    }
    return [_judge_lag(ends, newest)]


def _judge_lag(
    ends: Mapping[int, tuple[int, int]], newest: Mapping[int, accounting.Account]
) -> Finding:
    behind = {
        partition: max(0, last - (newest[partition].next if partition in newest else first))
        for partition, (first, last) in ends.items()
    }
    count = sum(behind.values())
    waiting = counted(count, "event waits", "events wait")
    old = datetime.now(UTC) - _STUCK_AFTER
    stuck = [
        partition
        for partition, count in behind.items()
        if count and (partition not in newest or newest[partition].updated_at < old)
    ]
    if stuck:
        stuck_partitions = counted(len(stuck), "partition has", "partitions have")
        return warning(
            f"{waiting}, and {stuck_partitions} not moved for 5 minutes",
            "Is `inference-store ingester` running? Its /health/ready says what it waits for.",
        )
    if count > _LARGE_LAG:
        return warning(waiting, "Start more ingesters, up to one a partition.")
    return ok(waiting)
