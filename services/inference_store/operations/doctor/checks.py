"""The list of all checks, in the order in which they are reported."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from inference_store.erasure import certificates, policies
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import known_key_ids
from inference_store.erasure.progress import list_uncertified
from inference_store.index import api_keys
from inference_store.index.accounting import Outcome
from inference_store.index.database import cause_of
from inference_store.index.partitions import AHEAD, TimePartitions, list_partitions
from inference_store.index.schema import schema_of
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.inference.nearest import counted
from inference_store.objects import Blobs
from inference_store.objects.bucket import (
    NO_NAME,
    NOT_S3,
    BucketError,
    BucketState,
    inspect_bucket,
    server_time,
)
from inference_store.operations import figures
from inference_store.operations.doctor import findings, send
from inference_store.platform.settings import WrongSetting

from .findings import Check, Finding, Subject, failed, ok, warning

_OLDEST, _NEWEST = 15, 18
_SERVER = text(
    "SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),"
    " current_setting('default_transaction_read_only') = 'on',"
    " current_setting('max_connections')::int"
)
_SERVICES = 3


async def check_postgres(subject: Subject) -> list[Finding]:
    """Check that it answers, lets us in, is of a supported version, and accepts writes."""
    try:
        async with subject.engine.connect() as connection:
            version, standby, read_only, most = (await connection.execute(_SERVER)).one()
    except (DBAPIError, OSError) as error:
        return [_describe_failure(cause_of(error))]
    seen = f"Postgres {version}"
    if version < _OLDEST:
        findings = [failed(seen, f"Upgrade it to {_OLDEST} or newer.")]
    elif version > _NEWEST:
        findings = [warning(seen, f"Not tested yet: versions {_OLDEST} to {_NEWEST} are.")]
    else:
        findings = [ok(seen)]
    if standby or read_only:
        seen = "it is a standby" if standby else "its transactions are read-only"
        findings.append(
            failed(seen, "INFERENCE_STORE_POSTGRES_DSN must name the server that takes writes.")
        )
    connections = subject.settings.postgres_pool_size * _SERVICES
    if connections >= most:
        seen = f"one process of each service may open {connections} connections, and Postgres takes"
        remedy = "Raise max_connections, or lower INFERENCE_STORE_POSTGRES_POOL_SIZE."
        findings.append(warning(f"{seen} {most}", remedy))
    return findings


def _describe_failure(cause: BaseException) -> Finding:
    """Describe why it is unavailable.

    A wrong password has its own remedy; the error names the user, never the password.
    """
    message = f"{cause}"[:300]
    if "password" in message or "authentication" in message or "no pg_hba.conf entry" in message:
        return failed(
            f"Postgres rejects the login: {message}",
            "Check the user and password in INFERENCE_STORE_POSTGRES_DSN or"
            " INFERENCE_STORE_POSTGRES_PASSWORD, and pg_hba.conf.",
        )
    if "does not exist" in message:
        remedy = "Create the database and the role that INFERENCE_STORE_POSTGRES_DSN names."
        return failed(message, remedy)
    return failed(
        f"Postgres does not answer: {message}",
        "Is it running, and is INFERENCE_STORE_POSTGRES_DSN its address as seen from here?",
    )


async def check_migrations(subject: Subject) -> list[Finding]:
    """Check that the tables have the newest revision of this version."""
    async with subject.engine.connect() as connection:
        schema = await schema_of(connection)
    if schema.ahead:
        remedy = "Finish the upgrade: run this version's successor everywhere."
        return [warning(str(schema), remedy)]
    if schema.behind:
        return [failed(str(schema), "Run `inference-store migrate` of this version.")]
    return [ok(f"revision {schema.revision}")]


_NAMES = "INFERENCE_STORE_S3_ACCESS_KEY and INFERENCE_STORE_S3_SECRET_KEY"
_KEYS = f"Check {_NAMES}, or the role that is taken instead."
_ENDPOINT = "INFERENCE_STORE_S3_ENDPOINT"
# By S3's code: what is wrong, and what to do.
_ERRORS = {
    "NoSuchBucket": (
        "there is no such bucket",
        "Create it, or fix INFERENCE_STORE_S3_BUCKET and INFERENCE_STORE_S3_ALLOWED_BUCKETS.",
    ),
    NO_NAME: (
        "this is not a valid bucket name",
        "Write the name alone, such as my-bucket, in INFERENCE_STORE_S3_BUCKET and"
        " INFERENCE_STORE_S3_ALLOWED_BUCKETS.",
    ),
    "InvalidAccessKeyId": ("the access key is not known", _KEYS),
    "SignatureDoesNotMatch": ("the secret key is wrong", _KEYS),
    "ExpiredToken": ("the login has expired", _KEYS),
    "AccessDenied": ("the keys have no right to list it", f"{_KEYS} Grant s3:ListBucket."),
    "RequestTimeTooSkewed": (
        "the clocks are too far apart",
        "Set this machine's clock: see the check 'object store clock'.",
    ),
    "AuthorizationHeaderMalformed": ("the region is wrong", "Check INFERENCE_STORE_S3_REGION."),
    "PermanentRedirect": (
        "the bucket is elsewhere",
        f"Check INFERENCE_STORE_S3_REGION and {_ENDPOINT}.",
    ),
    NOT_S3: (
        "what answers is not an S3 server, or is a proxy in front of one",
        f"Check {_ENDPOINT}.",
    ),
}
_UNKNOWN = ("the object store refuses", "Look the code up in the object store's manual.")


async def check_buckets(subject: Subject) -> list[Finding]:
    """Check every bucket that may be read or deleted from."""
    names = sorted(subject.settings.buckets)
    by_bucket = await asyncio.gather(*(_check_bucket(subject, name) for name in names))
    return [finding for findings in by_bucket for finding in findings]


async def _check_bucket(subject: Subject, name: str) -> list[Finding]:
    try:
        state = await asyncio.to_thread(inspect_bucket, subject.settings, name)
    except BucketError as error:
        problem, remedy = _ERRORS.get(error.code, _UNKNOWN)
        return [failed(f"{name}: {problem} ({error.code}: {error})"[:300], remedy)]
    except ObjectStoreUnavailable as error:
        remedy = "Is INFERENCE_STORE_S3_ENDPOINT its address as seen from here, and its CA known?"
        return [failed(f"the object store does not answer: {error}"[:300], remedy)]
    return list(_check_versions(name, state)) or [ok(f"{name}: versioning {state.versioning}")]


def _check_versions(name: str, state: BucketState) -> Iterator[Finding]:
    if state.missing_rights:
        yield warning(
            f"{name}: may not look at its versioning or its lock",
            f"Grant {' and '.join(state.missing_rights)}.",
        )
    if state.versioning == "Suspended":
        yield warning(
            f"{name}: versioning is suspended: an overwrite is final, while older versions stay",
            "Enable it again; or leave it off for good, and delete the older versions.",
        )
    if state.locked_days:
        yield warning(
            f"{name}: S3 locks every new object for {state.locked_days} days: until then no policy"
            " and no erasure can delete it, and of captures that are packed none goes before all",
            "Keep policies longer than that, and let proxies write objects of their own"
            " (INFERENCE_STORE_PROXY_PACKING=off); or remove the bucket's default retention.",
        )


_GIVE = (
    "Give it to the retention service (INFERENCE_STORE_CERTIFICATE_KEY), behind the one that is to"
    " sign from now on; if it is lost: `inference-store certificates restart-chain`."
)
_MAKE = (
    "Make one with `inference-store certificates keys new`, and give it to the retention service"
    " (INFERENCE_STORE_CERTIFICATE_KEY); here its public half is enough."
)


async def check_certificates(subject: Subject) -> list[Finding]:
    """Check that the key can be read, that it is the chain's, and that nothing waits for it."""
    try:
        keys = known_key_ids(subject.settings)
    except WrongSetting as error:
        return [failed(str(error), "Until then no retention service starts.")]
    async with subject.engine.connect() as connection:
        public_keys = await certificates.find_public_keys(connection)
        waiting = len(await list_uncertified(connection))
        signed = await certificates.count_certificates(connection)
    newest, problems = public_keys[-1].id if public_keys else None, list[Finding]()
    if keys and newest is not None and newest not in keys:
        seen = f"the chain's newest key is {newest}, which is not among those given"
        problems.append(failed(seen, _GIVE))
    if waiting:
        seen = f"{counted(waiting, 'erasure waits', 'erasures wait')} for a certificate"
        remedy = "The retention service's log says why (`chain_apart`, `certificate_waits`)."
        problems.append(warning(seen, remedy))
    if not (problems or keys or signed):
        return [warning("no key: erasures end without a certificate", _MAKE)]
    return problems or [ok(counted(signed, "certificate"))]


# A Date header has whole seconds, and an answer takes its time.
_NOTICED_SECONDS = 5.0
# S3 refuses requests that are 15 minutes off; a smaller error already shifts policies of hours.
_WRONG_SECONDS = 300.0


def compare_clocks(server: str, theirs: datetime, before: datetime, after: datetime) -> Finding:
    """Compare a server's clock with ours, which showed `before` and `after` around the request."""
    off = (theirs - (before + (after - before) / 2)).total_seconds()
    side = "ahead of" if off > 0 else "behind"
    seen = f"the clock of {server} is {abs(off):.1f} s {side} ours"
    remedy = f"Let NTP (chrony, systemd-timesyncd) set the clocks of {server} and of this machine."
    if abs(off) > _WRONG_SECONDS:
        return failed(seen, remedy)
    return warning(seen, remedy) if abs(off) > _NOTICED_SECONDS else ok(seen)


async def check_postgres_clock(subject: Subject) -> list[Finding]:
    """Check Postgres's clock, which says when an event was parked, and when a run is due."""
    async with subject.engine.connect() as connection:
        await connection.scalar(select(1))
        before = datetime.now(UTC)
        theirs = await connection.scalar(select(func.clock_timestamp()))
        after = datetime.now(UTC)
    return [compare_clocks("Postgres", theirs or after, before, after)]


async def check_object_store_clock(subject: Subject) -> list[Finding]:
    """Check the clock of S3, which refuses requests that are signed at a very different time."""
    before = datetime.now(UTC)
    try:
        theirs = await asyncio.to_thread(server_time, subject.settings)
    except ObjectStoreUnavailable as error:
        return [failed(f"the object store does not answer: {error}", "See the check 'bucket'.")]
    if theirs is None:
        return [ok("the object store does not tell the time")]
    return [compare_clocks("the object store", theirs, before, datetime.now(UTC))]


async def check_ledger(subject: Subject) -> list[Finding]:
    """Check for divergence: services do nothing while there is any."""
    settings = subject.settings
    with Blobs(settings, threads=1) as blobs:
        ledger = Ledger(subject.engine, blobs, prefix=settings.ledger_prefix)
        try:
            last = (await ledger.compare(settle=False)).number
        except LedgerDiverged as diverged:
            remedy = "docs/how-to/backup.md, The ledger: what is found, what to do."
            return [failed(diverged.detail, remedy)]
        except ObjectStoreUnavailable as error:
            remedy = "Grant s3:GetObject on its prefix, and s3:ListBucket."
            return [failed(f"the ledger cannot be read: {error}"[:300], remedy)]
    return [ok(f"entry {last} of {ledger.entries.location} is the last of both")]


async def check_partitions(subject: Subject) -> list[Finding]:
    """Check that there is a partition for events of now, and the next one before it begins."""
    async with subject.engine.connect() as connection:
        partitions, now = await list_partitions(connection), datetime.now(UTC)
    ahead = TimePartitions(partitions).find_end(now) - now
    if not any(partition.hi > now - AHEAD for partition in partitions):
        return [ok(f"{counted(len(partitions), 'partition')}, none of them of now")]
    if ahead < AHEAD / 2:
        minutes = ahead.total_seconds() / 60
        return [
            warning(
                f"partitions are made for the next {minutes:.0f} minutes only",
                "An ingester makes the next span an hour ahead: is one running, and may it create"
                " tables? Its log says why not.",
            )
        ]
    hours = ahead.total_seconds() / 3600
    return [ok(f"{counted(len(partitions), 'partition')}, made {hours:.1f} hours ahead")]


async def check_accounting(subject: Subject) -> list[Finding]:
    """Check that the offset accounting closes, and that nothing waits for an operator."""
    async with subject.engine.connect() as connection:
        current = await figures.read_accounting(connection)
        open_producers = await figures.count_open_producers(connection)
    total = sum(current.counts.values())
    return list(_judge_accounting(current, open_producers)) or [
        ok(f"{counted(total, 'offset')}, each in exactly one state")
    ]


async def check_retention(subject: Subject) -> list[Finding]:
    """Check that runs succeed, and that pending deletions are carried out."""
    interval = subject.settings.retention_interval_seconds
    async with subject.engine.connect() as connection:
        retention_figures = await figures.read_retention(connection)
        has_policies = bool(await policies.find_effective_policies(connection))
    problems = list(_judge_erasures(retention_figures))
    last = retention_figures.last_run
    if has_policies and (last is None or figures.compute_age(last) > max(3 * interval, 3600)):
        when = "never" if last is None else f"last at {last:%Y-%m-%d %H:%M} UTC"
        remedy = "Is `inference-store retention` running? Its /health/ready says what it lacks."
        problems.append(warning(f"a run has ended well {when}", remedy))
    return problems or [ok(f"{retention_figures.marked} marked, nothing left over")]


async def check_token(subject: Subject) -> list[Finding]:
    """Check that the token with every right is gone, once keys do its work."""
    if subject.settings.api_token is None:
        return [ok("INFERENCE_STORE_API_TOKEN is unset")]
    async with subject.engine.connect() as connection:
        has_keys = await api_keys.are_in_use(connection)
    if not has_keys:
        return [ok("INFERENCE_STORE_API_TOKEN makes the first keys: there are none yet")]
    return [
        warning(
            "INFERENCE_STORE_API_TOKEN is set, and there are keys",
            "Unset it: it never expires, cannot be revoked, and may do everything. Keys can do its"
            " work (inference-store keys create --role owner --everything).",
        )
    ]


async def check_links(subject: Subject) -> list[Finding]:
    """Check for links that outlive what they point to."""
    seconds = subject.settings.presigned_url_seconds
    async with subject.engine.connect() as connection:
        of_models = (await policies.find_effective_policies(connection)).values()
    now = datetime.now(UTC)
    cutoffs = [rule.cutoffs(now).input for effective in of_models for rule in effective.rules]
    # how long the input that is deleted first is kept; None: all are kept for ever
    shortest = min((now - cutoff for cutoff in cutoffs if cutoff is not None), default=None)
    if shortest is None or shortest.total_seconds() >= seconds:
        return [ok(f"links work for {seconds} s, no input is kept for less")]
    return [
        warning(
            f"a link works for {seconds} s, and a policy keeps inputs for"
            f" {shortest.total_seconds():g} s: the link would outlive the input",
            "Lower INFERENCE_STORE_PRESIGNED_URL_SECONDS.",
        )
    ]


CHECKS: Sequence[Check] = (
    Check("settings", "Settings do not conflict.", findings.check_settings),
    Check("postgres", "Postgres answers, is 15 to 18, and can be written to.", check_postgres),
    Check("postgres clock", "Its clock agrees with ours.", check_postgres_clock, ("postgres",)),
    Check("migrations", "The tables are this version's.", check_migrations, ("postgres",)),
    Check("partitions", "Partitions are made ahead.", check_partitions, ("migrations",)),
    Check("books", "The books close; little waits or is dead.", check_accounting, ("migrations",)),
    Check("retention", "Policies are carried out.", check_retention, ("migrations",)),
    Check("token", "API_TOKEN is unset once there are keys.", check_token, ("migrations",)),
    Check("links", "A presigned link does not outlive its input.", check_links, ("migrations",)),
    Check("kafka", "Kafka answers, and is 3 or newer.", send.check_kafka),
    Check("topic", "The topic is there and keeps what it is given.", send.check_topic, ("kafka",)),
    Check("lag", "Ingesters keep up.", send.check_lag, ("topic", "migrations")),
    Check("certificates", "Erasures end with one.", check_certificates, ("migrations",)),
    Check("bucket", "Each bucket is there; what is deleted is gone.", check_buckets),
    Check("ledger", "Bucket and Postgres are of one time.", check_ledger, ("migrations", "bucket")),
    Check("object store clock", "Its clock agrees with ours.", check_object_store_clock),
)


_LETTERS = "GET /v1/dead-letters tells why; fix the cause, then redrive or discard them."


def _judge_accounting(current: figures.AccountingFigures, open_producers: int) -> Iterator[Finding]:
    if current.open_partitions:
        yield failed(
            f"the books of {counted(current.open_partitions, 'partition')} do not close",
            "This should never happen: report it as a bug, with the answer of GET /v1/accounting.",
        )
    if open_producers:
        yield warning(
            f"captures of {counted(open_producers, 'producer')} are missing",
            "GET /v1/accounting says whose, and how many. While ingesters lag they may be in Kafka,"
            " and a spool is emptied by the next proxy; the rest was lost.",
        )
    if lost := current.counts[Outcome.LOST]:
        yield warning(
            f"Kafka dropped {counted(lost, 'offset')} before they were read",
            "Raise the topic's retention.ms above the longest time that ingesters may be away.",
        )
    if current.dead_letters_open:
        opened = counted(current.dead_letters_open, "dead letter is", "dead letters are")
        yield warning(f"{opened} open", _LETTERS)
    if current.parked_oldest_seconds > 3600:
        hours = current.parked_oldest_seconds / 3600
        yield warning(
            f"{counted(current.parked, 'event waits', 'events wait')} for an object, one for"
            f" {hours:.1f} hours",
            "Does the producer write its objects, and into INFERENCE_STORE_S3_BUCKET?",
        )


def _judge_erasures(retention_figures: figures.RetentionFigures) -> Iterator[Finding]:
    if failures := retention_figures.erasures.get("failed", 0):
        yield failed(
            f"{counted(failures, 'erasure has', 'erasures have')} something left over",
            "GET /v1/erasures says what: a lock on an object, or a right to delete is missing.",
        )
    if retention_figures.oldest_seconds > 24 * 3600:
        hours = retention_figures.oldest_seconds / 3600
        yield warning(
            f"the oldest erasure was asked for {hours:.0f} hours ago",
            "Is `inference-store retention` running, and is the object store fast enough for it?",
        )
