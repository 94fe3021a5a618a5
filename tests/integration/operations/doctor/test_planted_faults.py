"""Each planted fault is found by the right check, on real servers."""

import argparse
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from minio.commonconfig import COMPLIANCE
from minio.objectlockconfig import DAYS, ObjectLockConfig
from minio.versioningconfig import SUSPENDED, VersioningConfig
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.cli import doctor
from inference_store.erasure import policies
from inference_store.erasure.ledger.entry import Content, Entry
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index import partitions, registrations
from inference_store.index.partitions import TimePartition, lock_catalogue
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.doctor import CHECKS, DoctorSettings, Subject, store
from inference_store.platform.settings import BlobSettings
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.secured import SecuredPostgres

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
    """A sound set of servers for one test, in which a fault is planted."""

    environment: dict[str, str]
    kafka: Kafka
    s3: S3
    bucket: str
    dsn: str
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    postgres: Postgres
    stopped: list[Callable[[], None]] = field(default_factory=list)

    def set(self, **changes: str) -> None:
        self.environment |= {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}

    def execute(self, *statements: str) -> None:
        Postgres(self.dsn).execute(*statements)

    def examine(self, deadline: float = 60.0) -> Examination:
        for name, value in self.environment.items():
            if name.startswith("INFERENCE_STORE_"):
                self.monkeypatch.setenv(name, value)
        code = doctor.run(argparse.Namespace(json=True, deadline=deadline))
        output = self.capsys.readouterr().out
        assert not [secret for secret in SECRETS if secret in output]
        return Examination(code, json.loads(output))


@pytest.fixture
def patient(
    service_environment: MakeEnvironment,
    kafka_server: Kafka,
    minio_server: S3,
    postgres_server: Postgres,
    database: str,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Patient]:
    monkeypatch.chdir(tmp_path)
    settings = {"retention.ms": str(7 * 24 * 3600 * 1000)}
    topic = kafka_server.create_topic(unique(), partitions=2, settings=settings)
    environment = service_environment(KAFKA_TOPIC=topic, API_TOKEN=SECRETS[2])
    sound_patient = Patient(
        environment, kafka_server, minio_server, bucket, database, monkeypatch, capsys,
        postgres_server,
    )  # fmt: skip
    yield sound_patient
    for stop in sound_patient.stopped:
        stop()


def away(patient: Patient) -> None:
    patient.set(POSTGRES_DSN=f"postgresql://nobody:{SECRETS[1]}@127.0.0.1:{free_port()}/nothing")


def not_migrated(patient: Patient) -> None:
    name = unique()
    patient.set(POSTGRES_DSN=patient.postgres.create_database(name))
    patient.stopped.append(lambda: patient.postgres.drop_database(name))


def migrations_behind(patient: Patient) -> None:
    patient.execute("UPDATE alembic_version SET version_num = '0000'")


def kafka_away(patient: Patient) -> None:
    patient.set(KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{free_port()}")


def topic_missing(patient: Patient) -> None:
    patient.set(KAFKA_TOPIC=unique("missing"))


def topic_outlives_tombstones(patient: Patient) -> None:
    patient.set(TOMBSTONE_SECONDS=str(6 * 24 * 3600))


def topic_compacted(patient: Patient) -> None:
    settings = {"cleanup.policy": "compact", "retention.ms": str(7 * 24 * 3600 * 1000)}
    patient.set(KAFKA_TOPIC=patient.kafka.create_topic(unique(), settings=settings))


def too_few_replicas(patient: Patient) -> None:
    settings = {"min.insync.replicas": "2"}
    patient.set(KAFKA_TOPIC=patient.kafka.create_topic(unique(), settings=settings))


def nobody_ingests(patient: Patient) -> None:

    producer = Producer({"bootstrap.servers": patient.kafka.bootstrap_servers})
    producer.produce(patient.environment["INFERENCE_STORE_KAFKA_TOPIC"], b"{}")
    producer.flush(30)


def bucket_missing(patient: Patient) -> None:
    patient.set(S3_BUCKET=unique("missing"))


def wrong_s3_secret(patient: Patient) -> None:
    patient.set(S3_SECRET_KEY=SECRETS[1])


def wrong_s3_key(patient: Patient) -> None:
    patient.set(S3_ACCESS_KEY="nobody-at-all")


def versioning_suspended(patient: Patient) -> None:
    patient.s3.client().set_bucket_versioning(patient.bucket, VersioningConfig(SUSPENDED))


def objects_locked(patient: Patient) -> None:
    name = patient.s3.create_bucket(unique(), object_lock=True)
    config = ObjectLockConfig(COMPLIANCE, 30, DAYS)
    patient.s3.client().set_object_lock_config(name, config)
    patient.set(S3_BUCKET=name)


def older_backup(patient: Patient) -> None:
    key = "ledger/0000000001"
    settings = BlobSettings(
        s3_endpoint=patient.s3.endpoint,
        s3_access_key=SecretStr(patient.s3.access_key),
        s3_secret_key=SecretStr(patient.s3.secret_key),
        s3_bucket=patient.bucket,
    )
    content = Content.make({}, None, None)
    entry = Entry(1, "begun_anew", datetime.now(UTC), "a", "", content.hash, content)
    with Blobs(settings) as blobs:
        blobs.put(StorageKey(patient.bucket, key), entry.encode(), content_type="a/b")


def clock_wrong(patient: Patient) -> None:
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
    patient.stopped += [server.server_close, server.shutdown][::-1]
    patient.set(S3_ENDPOINT=f"http://127.0.0.1:{server.server_port}")


def settings_fight(patient: Patient) -> None:
    patient.set(AUTH="off", API_HOST="0.0.0.0", TOMBSTONE_SECONDS=str(8 * 24 * 3600))
    patient.set(INGESTER_PARKED_GIVE_UP_SECONDS=str(9 * 24 * 3600))


def setting_unknown(patient: Patient) -> None:
    patient.monkeypatch.setenv("INFERENCE_STORE_INGESTER_BATCH_EVENT", "1")


def setting_wrong(patient: Patient) -> None:
    patient.set(INGESTER_BATCH_EVENTS="many")


def role_unknown(patient: Patient) -> None:
    patient.set(OIDC_ROLES='{"ops": [{"role": "king"}]}')


@dataclass(frozen=True)
class Fault:
    """A fault to plant, the check that must find it, its state, and the text of the finding."""

    plant: Callable[[Patient], None]
    check: str
    state: str
    says: str


FAULTS = [
    Fault(away, "postgres", "failed", "does not answer"),
    Fault(not_migrated, "migrations", "failed", "no tables"),
    Fault(migrations_behind, "migrations", "failed", "schema is 0000"),
    Fault(kafka_away, "kafka", "failed", "does not answer"),
    Fault(topic_missing, "topic", "failed", "there is no topic"),
    Fault(topic_outlives_tombstones, "topic", "warning", "remembered for 518400 s"),
    Fault(topic_compacted, "topic", "failed", "compacted"),
    Fault(too_few_replicas, "topic", "failed", "nothing can be published"),
    Fault(nobody_ingests, "lag", "warning", "1 event waits, and 1 partition has not moved"),
    Fault(bucket_missing, "bucket", "failed", "NoSuchBucket"),
    Fault(wrong_s3_secret, "bucket", "failed", "SignatureDoesNotMatch"),
    Fault(wrong_s3_key, "bucket", "failed", "InvalidAccessKeyId"),
    Fault(versioning_suspended, "bucket", "warning", "suspended"),
    Fault(objects_locked, "bucket", "warning", "for 30 days"),
    Fault(older_backup, "ledger", "failed", "ledger replay`, which gives it"),
    Fault(clock_wrong, "object store clock", "failed", "s behind ours"),
    Fault(settings_fight, "settings", "warning", "it could bring the inference back"),
    Fault(setting_unknown, "names of settings", "failed", "INFERENCE_STORE_INGESTER_BATCH_EVENTS"),
    Fault(setting_wrong, "settings", "failed", "INFERENCE_STORE_INGESTER_BATCH_EVENTS"),
    Fault(role_unknown, "settings", "failed", "INFERENCE_STORE_OIDC_ROLES: ops.0.role: "),
]


def test_finds_nothing_on_sound_servers(patient: Patient) -> None:
    examination = patient.examine()
    assert examination.list_faulty() == set(), examination.report
    assert examination.code == 1  # the topic of the tests has one replica
    assert len(examination.report["checks"]) == len(CHECKS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.plant.__name__)
def test_finds_a_planted_fault(patient: Patient, fault: Fault) -> None:
    fault.plant(patient)
    examination = patient.examine()
    check = examination.find_check(fault.check)
    assert check["state"] == fault.state, examination.report
    findings = [finding for finding in check["findings"] if fault.says in finding["seen"]]
    assert findings, check
    assert findings[0]["remedy"]
    assert examination.code == {"warning": 1, "failed": 2}[examination.report["state"]]
    assert examination.report["state"] in {fault.state, "failed"}


def test_finds_other_faults_beside_a_dead_server(patient: Patient) -> None:
    kafka_away(patient)
    bucket_missing(patient)
    migrations_behind(patient)
    assert {"kafka", "bucket", "migrations"} <= patient.examine().list_faulty()


def test_names_a_wrong_password(patient: Patient, secured_postgres: SecuredPostgres) -> None:

    right = urlsplit(secured_postgres.dsn_of_user("postgres"))
    netloc = f"{right.username}:{SECRETS[1]}@{right.hostname}:{right.port}"
    patient.set(POSTGRES_DSN=right._replace(netloc=netloc).geturl())
    (finding,) = patient.examine().find_check("postgres")["findings"]
    assert "does not let us in" in finding["seen"]
    assert "INFERENCE_STORE_POSTGRES_PASSWORD" in finding["remedy"]


async def _create_span(engine: AsyncEngine, hours: int, minutes: int) -> None:
    now = datetime.now(UTC)
    span = TimePartition.between(now - timedelta(hours=hours), now + timedelta(minutes=minutes))
    async with engine.begin() as connection:
        await lock_catalogue(connection)
        await partitions.create(connection, span)


@pytest.mark.parametrize(("minutes", "state"), [(10, "warning"), (-10, "warning"), (50, "ok")])
async def test_finds_partitions_that_end_soon(
    engine: AsyncEngine, minutes: int, state: str
) -> None:

    await _create_span(engine, 12, minutes)
    (finding,) = await store.check_partitions(Subject(DoctorSettings(), engine))
    assert finding.state == state, finding
    await partitions.make_ahead(engine, target=1000)
    if minutes > 0:
        (finding,) = await store.check_partitions(Subject(DoctorSettings(), engine))
        assert finding.state == "ok", finding


async def test_finds_a_link_that_outlives_its_input(engine: AsyncEngine) -> None:

    subject = Subject(DoctorSettings(presigned_url_seconds=900), engine)
    assert [finding.state for finding in await store.check_links(subject)] == ["ok"]
    rule = {"keep_input": "PT5M", "keep_inference": "P1D"}
    async with engine.begin() as connection:
        model = await registrations.ensure(connection, "model")
        await policies.set_policy(
            connection, model, RetentionPolicy.model_validate({"rules": [rule]})
        )
    (finding,) = await store.check_links(subject)
    assert (finding.state, "keeps inputs for 300 s" in finding.seen) == ("warning", True)
    assert "a run has ended well never" in (await store.check_retention(subject))[0].seen
