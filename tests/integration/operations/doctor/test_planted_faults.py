"""The doctor finds each planted fault, and names the step at which what it sends fails."""

import argparse
import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, web
from confluent_kafka import Producer
from minio.commonconfig import COMPLIANCE
from minio.objectlockconfig import DAYS, ObjectLockConfig
from minio.versioningconfig import SUSPENDED, VersioningConfig
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.cli import upkeep
from inference_store.erasure import policies
from inference_store.erasure.ledger_entries import Content, Entry
from inference_store.erasure.log import new_key
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index import partitions, registrations
from inference_store.index.partitions import TimePartition, lock_catalogue
from inference_store.operations.doctor import CHECKS, DoctorSettings, Subject, checks
from tests.integration.proxy.rest_server import upstream
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, MakeTopic, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.secured import SecuredPostgres
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
SECRETS = ("inference-store-tests", "not-the-password", "api-token-of-this-test")


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Restore logging: the command silences libraries, whose logs other tests read."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@dataclass
class Examination:
    """The result of `inference-store doctor --json`."""

    code: int
    report: dict[str, Any]

    def find_check(self, name: str) -> dict[str, Any]:
        (match,) = [check for check in self.report["checks"] if check["name"] == name]
        return dict(match)

    def list_faulty(self) -> set[str]:
        """Return the checks that are not ok, except those that only report a single replica."""
        return {
            check["name"]
            for check in self.report["checks"]
            for finding in check["findings"]
            if finding["state"] != "ok" and "one replica" not in finding["seen"]
        }


@dataclass
class Patient:
    """A sound set of servers, in which a fault is planted and removed again."""

    environment: dict[str, str]
    kafka: Kafka
    s3: S3
    postgres: Postgres
    tmp_path: Path
    capsys: pytest.CaptureFixture[str]

    def execute(self, *statements: str) -> None:
        Postgres(self.environment["INFERENCE_STORE_POSTGRES_DSN"]).execute(*statements)

    @property
    def bucket(self) -> str:
        return self.environment["INFERENCE_STORE_S3_BUCKET"]

    def create_topic(self, **settings: str) -> str:
        return self.kafka.create_topic(unique(), partitions=2, settings=_SOUND_TOPIC | settings)

    def examine(self, **changes: str) -> Examination:
        """Run the command with changed settings (names without the prefix)."""
        new = {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.tmp_path)
            for name, value in (self.environment | new).items():
                if name.startswith("INFERENCE_STORE_"):
                    patch.setenv(name, value)
            code = upkeep.run_doctor(argparse.Namespace(json=True, deadline=300.0, send=False))
        output = self.capsys.readouterr().out
        assert not [secret for secret in SECRETS if secret in output]
        return Examination(code, json.loads(output))


@pytest.fixture
def patient(
    service_environment: MakeEnvironment,
    kafka_server: Kafka,
    minio_server: S3,
    postgres_server: Postgres,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Patient:
    environment = service_environment(API_TOKEN=SECRETS[2], CERTIFICATE_KEY=new_key().public.pem)
    sound = Patient(environment, kafka_server, minio_server, postgres_server, tmp_path, capsys)
    sound.environment["INFERENCE_STORE_KAFKA_TOPIC"] = sound.create_topic()
    return sound


# A fault is what is wrong with the servers while it lasts; its value are the changed settings.
Plant = Callable[[Patient], AbstractContextManager[dict[str, str]]]


@contextmanager
def not_migrated(patient: Patient) -> Iterator[dict[str, str]]:
    name = unique()
    yield {"POSTGRES_DSN": patient.postgres.create_database(name)}
    patient.postgres.drop_database(name)


@contextmanager
def migrations_behind(patient: Patient) -> Iterator[dict[str, str]]:
    patient.execute(
        "CREATE TABLE version_before AS SELECT version_num FROM alembic_version",
        "UPDATE alembic_version SET version_num = '0000'",
    )
    yield {}
    patient.execute(
        "UPDATE alembic_version SET version_num = (SELECT version_num FROM version_before)",
        "DROP TABLE version_before",
    )


@contextmanager
def nobody_ingests(patient: Patient) -> Iterator[dict[str, str]]:
    topic = patient.create_topic()
    producer = Producer({"bootstrap.servers": patient.kafka.bootstrap_servers})
    producer.produce(topic, b"{}")
    producer.flush(300)
    yield {"KAFKA_TOPIC": topic}


@contextmanager
def versioning_suspended(patient: Patient) -> Iterator[dict[str, str]]:
    name = patient.s3.create_bucket(unique())
    patient.s3.client().set_bucket_versioning(name, VersioningConfig(SUSPENDED))
    yield {"S3_BUCKET": name}


@contextmanager
def objects_locked(patient: Patient) -> Iterator[dict[str, str]]:
    name = patient.s3.create_bucket(unique(), object_lock=True)
    config = ObjectLockConfig(COMPLIANCE, 30, DAYS)
    patient.s3.client().set_object_lock_config(name, config)
    yield {"S3_BUCKET": name}


@contextmanager
def key_beside_token(patient: Patient) -> Iterator[dict[str, str]]:
    patient.execute(
        "INSERT INTO api_key (id, name, hash, grants, created_by) VALUES ('a', 'a', '', '[]', 'a')"
    )
    yield {}
    patient.execute("UPDATE api_key SET revoked_at = now()")


@contextmanager
def older_backup(patient: Patient) -> Iterator[dict[str, str]]:
    content = Content.make({}, None, None)
    entry = Entry(1, "begun_anew", datetime.now(UTC), "a", "", content.hash, content).encode()
    client, key = patient.s3.client(), "ledger/0000000001"
    client.put_object(patient.bucket, key, BytesIO(entry), len(entry))
    yield {}
    client.remove_object(patient.bucket, key)


@contextmanager
def captures_missing(patient: Patient) -> Iterator[dict[str, str]]:
    patient.execute(
        "INSERT INTO producer_report (producer, reporter, number, booted_at, reported_at, seen,"
        ' queued, published, events, highest_sequence, final, cluster, topic, partition, "offset")'
        " VALUES ('p', 'p', 1, now(), now(), 9, 0, 9, 9, 9, true, 'c', 't', 0, 0)"
    )
    yield {}
    patient.execute("DELETE FROM producer_report")


@contextmanager
def clock_wrong(_: Patient) -> Iterator[dict[str, str]]:
    """Start an S3 server that only has a clock which is an hour late."""

    class Late(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(403)
            self.end_headers()

        do_GET = do_HEAD

        def date_time_string(self, timestamp: float | None = None) -> str:
            late = datetime.now(UTC) - timedelta(hours=1)
            return super().date_time_string(late.timestamp() if timestamp is None else timestamp)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Late)
    Thread(target=server.serve_forever, daemon=True).start()
    yield {"S3_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()


def changed(**changes: str | Callable[[Patient], str]) -> Plant:
    """Return a fault that is only in the settings."""

    @contextmanager
    def plant(patient: Patient) -> Iterator[dict[str, str]]:
        yield {
            name: value if isinstance(value, str) else value(patient)
            for name, value in changes.items()
        }

    return plant


def make_topic(name: str, value: str) -> Callable[[Patient], str]:
    return lambda patient: patient.create_topic(**{name: value})


_DAY = 24 * 3600
_SOUND_TOPIC = {"retention.ms": str(7 * _DAY * 1000)}
_BATCH = "INFERENCE_STORE_INGESTER_BATCH_EVENTS"
_DSN = f"postgresql://nobody:{SECRETS[1]}@127.0.0.1:{free_port()}/nothing"
away, kafka_away = changed(POSTGRES_DSN=_DSN), changed(KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
bucket_missing = changed(S3_BUCKET=unique("missing"))
compacted = changed(KAFKA_TOPIC=make_topic("cleanup.policy", "compact"))
few_replicas = changed(KAFKA_TOPIC=make_topic("min.insync.replicas", "2"))
topic_missing = changed(KAFKA_TOPIC=unique("missing"))
truth_missing = changed(KAFKA_TRUTH_TOPIC=unique("missing"))
outlives_tombstones = changed(TOMBSTONE_SECONDS=str(6 * _DAY))
give_up_late = {"INGESTER_PARKED_GIVE_UP_SECONDS": str(9 * _DAY)}
settings_fight = changed(
    AUTH="off", API_HOST="0.0.0.0", TOMBSTONE_SECONDS=str(8 * _DAY), **give_up_late
)
role_unknown = changed(OIDC_ROLES='{"ops": [{"role": "king"}]}')
# The fault, the check that must find it, its state, and the text of the finding.
FAULTS: dict[str, tuple[Plant, str, str, str]] = {
    "Postgres is away": (away, "postgres", "failed", "does not answer"),
    "not migrated": (not_migrated, "migrations", "failed", "no tables"),
    "migrations behind": (migrations_behind, "migrations", "failed", "schema is 0000"),
    "Kafka is away": (kafka_away, "kafka", "failed", "does not answer"),
    "topic missing": (topic_missing, "topic", "failed", "there is no topic"),
    "no topic of truth": (truth_missing, "topic", "failed", "no ground truth is read"),
    "long topic": (outlives_tombstones, "topic", "warning", "remembered for 518400 s"),
    "topic compacted": (compacted, "topic", "failed", "compacted"),
    "too few replicas": (few_replicas, "topic", "failed", "nothing can be published"),
    "nobody ingests": (nobody_ingests, "lag", "warning", "1 event waits, and 1 partition has not"),
    "no key": (changed(CERTIFICATE_KEY=""), "certificates", "warning", "without a certificate"),
    "no PEM": (changed(CERTIFICATE_KEY="a"), "certificates", "failed", "no private key in PEM"),
    "bucket missing": (bucket_missing, "bucket", "failed", "NoSuchBucket"),
    "secret": (changed(S3_SECRET_KEY=SECRETS[1]), "bucket", "failed", "SignatureDoesNotMatch"),
    "wrong key": (changed(S3_ACCESS_KEY="nobody"), "bucket", "failed", "InvalidAccessKeyId"),
    "versioning suspended": (versioning_suspended, "bucket", "warning", "suspended"),
    "objects locked": (objects_locked, "bucket", "warning", "for 30 days"),
    "key beside a token": (key_beside_token, "token", "warning", "and there are keys"),
    "lost captures": (captures_missing, "books", "warning", "captures of 1 producer are"),
    "older backup": (older_backup, "ledger", "failed", "ledger replay`, which gives it"),
    "wrong clock": (clock_wrong, "object store clock", "failed", "s behind ours"),
    "settings fight": (settings_fight, "settings", "warning", "could bring the inference back"),
    "unknown name": (changed(INGESTER_BATCH_EVENT="1"), "names of settings", "failed", _BATCH),
    "wrong value": (changed(INGESTER_BATCH_EVENTS="many"), "settings", "failed", _BATCH),
    "unknown role": (role_unknown, "settings", "failed", "INFERENCE_STORE_OIDC_ROLES: ops.0.role:"),
}


def test_finds_each_planted_fault_and_no_other(patient: Patient, subtests: pytest.Subtests) -> None:
    for name, (plant, check_name, state, says) in FAULTS.items():
        with subtests.test(name), plant(patient) as changes:
            examination = patient.examine(**changes)
            check = examination.find_check(check_name)
            assert check["state"] == state, examination.report
            findings = [finding for finding in check["findings"] if says in finding["seen"]]
            assert findings, check
            assert findings[0]["remedy"]
            assert examination.code == {"warning": 1, "failed": 2}[examination.report["state"]]
            assert examination.report["state"] in {state, "failed"}
    with kafka_away(patient) as kafka, bucket_missing(patient) as s3, migrations_behind(patient):
        faulty = patient.examine(**kafka, **s3).list_faulty()
    assert {"kafka", "bucket", "migrations"} <= faulty
    sound = patient.examine()
    assert sound.list_faulty() == set(), sound.report
    assert sound.code == 1  # the topic of the tests has one replica
    assert len(sound.report["checks"]) == len(CHECKS)


def test_names_a_wrong_password(patient: Patient, secured_postgres: SecuredPostgres) -> None:
    right = urlsplit(secured_postgres.dsn_of_user("postgres"))
    netloc = f"{right.username}:{SECRETS[1]}@{right.hostname}:{right.port}"
    examination = patient.examine(POSTGRES_DSN=right._replace(netloc=netloc).geturl())
    (finding,) = examination.find_check("postgres")["findings"]
    assert "rejects the login" in finding["seen"]
    assert "INFERENCE_STORE_POSTGRES_PASSWORD" in finding["remedy"]


async def _create_span(engine: AsyncEngine, hours: int, minutes: int) -> None:
    now = datetime.now(UTC)
    span = TimePartition.between(now - timedelta(hours=hours), now + timedelta(minutes=minutes))
    async with engine.begin() as connection:
        await lock_catalogue(connection)
        await partitions.create(connection, span)


@pytest.mark.parametrize(("minutes", "state"), [(10, "warning"), (-10, "warning"), (50, "ok")])
async def test_finds_partitions_at_an_end(engine: AsyncEngine, minutes: int, state: str) -> None:
    await _create_span(engine, 12, minutes)
    (finding,) = await checks.check_partitions(Subject(DoctorSettings(), engine))
    assert finding.state == state, finding
    await partitions.make_ahead(engine, target=1000)
    if minutes > 0:
        (finding,) = await checks.check_partitions(Subject(DoctorSettings(), engine))
        assert finding.state == "ok", finding


async def test_finds_a_link_that_outlives_its_input(engine: AsyncEngine) -> None:
    subject = Subject(DoctorSettings(presigned_url_seconds=900), engine)
    assert [finding.state for finding in await checks.check_links(subject)] == ["ok"]
    rule = {"keep_input": "PT5M", "keep_inference": "P1D"}
    async with engine.begin() as connection:
        model = await registrations.ensure(connection, "model")
        await policies.set_policy(
            connection, model, RetentionPolicy.model_validate({"rules": [rule]})
        )
    (finding,) = await checks.check_links(subject)
    assert (finding.state, "keeps inputs for 300 s" in finding.seen) == ("warning", True)
    assert "a run has ended well never" in (await checks.check_retention(subject))[0].seen


REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]})


async def send(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run the doctor; return its exit code, and its lines about what it sent."""
    words = ("doctor", "--send", *arguments)
    done = await asyncio.to_thread(run_command, *words, environment=environment)
    assert TOKEN not in done.stdout + done.stderr
    return done.returncode, done.stdout[done.stdout.find(" send: ") :] + done.stderr


async def answer_request(request: web.Request) -> web.StreamResponse:
    """Answer for the model `doubles`; others are not found."""
    if "/models/doubles/" not in request.path:
        return web.json_response({"error": "no such model"}, status=404)
    output = {"name": "y", "shape": [1], "datatype": "FP32", "data": [1.0]}
    return web.json_response({"model_name": "doubles", "outputs": [output]})


@dataclass
class Installation:
    """An api and a proxy that run, and an ingester that does once it is started."""

    environment: dict[str, str]
    api: str
    proxy: str
    ingester: Callable[[], None]


@pytest.fixture
async def installation(
    service_environment: MakeEnvironment, topic: MakeTopic, tmp_path: Path
) -> AsyncIterator[Installation]:
    port = free_port()
    environment = service_environment(
        KAFKA_TOPIC=topic(),
        KAFKA_REPORTS_TOPIC=topic(),
        API_PORT=str(port),
        AUTH="on",
        API_TOKEN=TOKEN,
        INGESTER_UNKNOWN_MODELS="refuse",
    )
    async with upstream(answer_request) as behind:
        entries = [upstream_entry("one", "v2", url=f"http://127.0.0.1:{behind}")]
        proxy = Proxy(environment, tmp_path, entries)
        services = [proxy, Service("api", environment, tmp_path)]

        def start_ingester() -> None:
            services.append(Service("ingester", environment, tmp_path).wait_ready())

        try:
            for service in services:
                await asyncio.to_thread(service.wait_ready)
            yield Installation(environment, f"http://127.0.0.1:{port}", proxy.url, start_ingester)
        finally:
            for service in services:
                await asyncio.to_thread(service.stop)


async def test_every_step_succeeds(installation: Installation) -> None:
    """Of an event, of a call that the model server refuses, and of one that it answers."""
    await asyncio.to_thread(installation.ingester)
    proxy, model = installation.proxy, f"{installation.proxy}/v2/models/doubles/infer"
    doubles = ("--proxy", model, "--proxy-model", "doubles", "--proxy-request", REQUEST)
    cases: tuple[tuple[tuple[str, ...], str], ...] = (
        ((), "a query by metadata and prediction finds it"),
        (("--api", installation.api, "--proxy", proxy), "its answer has status 404"),
        (doubles, "its answer has status 200"),
    )
    admin = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        ClientSession(installation.api, headers=admin) as session,
        session.put("/v1/models/doubles", json={}) as answer,
    ):
        assert answer.status == 201
    for arguments, sentence in cases:
        code, output = await send(installation.environment, "--deadline=75", *arguments)
        assert code < 2, (arguments, output)  # the servers of the tests deserve warnings
        assert [each for each in (sentence, "it is hidden again") if each not in output] == [], (
            output
        )


async def test_the_step_that_fails_is_named(installation: Installation, minio_server: S3) -> None:
    api, nobody = installation.api, f"http://127.0.0.1:{free_port()}"
    away = {"KAFKA_BOOTSTRAP_SERVERS": nobody.removeprefix("http://")}
    triples = f"{installation.proxy}/v2/models/triples/infer"
    cases: tuple[tuple[dict[str, str], tuple[str, ...], tuple[str, ...]], ...] = (
        (away, (), ("three objects are in the bucket", "See the checks of Kafka")),
        ({"API_TOKEN": "x" * 16}, ("--api", api), ("answered 401",)),
        ({}, ("--api", "store.example"), ("store.example does not answer",)),
        ({}, ("--api", nobody), ("does not answer", "Name it by --api")),
        ({}, ("--proxy", nobody), (f"{nobody} does not answer",)),
        ({}, ("--proxy", triples, "--proxy-request", REQUEST), ("answered 404", "no such model")),
        ({}, ("--ca", "missing.pem"), ("--ca: ",)),
        (
            {},
            ("--api", api, "--deadline", "1"),
            (
                "was not indexed within 4 s",
                f"Is {api} the api of this store",
                "Once it is indexed, erase it: DELETE /v1/models/",
            ),
        ),
    )
    bucket = installation.environment["INFERENCE_STORE_S3_BUCKET"]
    for changes, arguments, sentences in cases:
        changed = {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        code, output = await send(installation.environment | changed, *arguments)
        assert code == 2, (arguments, output)
        assert [each for each in sentences if each not in output] == [], (arguments, output)
        if changes is away:
            objects = minio_server.client().list_objects(bucket, prefix="doctor/", recursive=True)
            assert [item.object_name for item in objects] == []
