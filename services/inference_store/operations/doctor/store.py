"""Checks what the tables show: time partitions, offset accounting, retention."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies
from inference_store.index import api_keys
from inference_store.index.accounting import Outcome
from inference_store.index.partitions import AHEAD, TimePartition, TimePartitions, list_partitions
from inference_store.inference.plural import counted
from inference_store.operations import figures

from .finding import Finding, Subject, failed, ok, warning

_LETTERS = "GET /v1/dead-letters tells why; fix the cause, then redrive or discard them."


async def check_partitions(subject: Subject) -> list[Finding]:
    """Check that there is a partition for events of now, and the next one before it begins."""
    async with subject.engine.connect() as connection:
        partitions, now = await list_partitions(connection), datetime.now(UTC)
    ahead, recent = (
        _measure_ahead(partitions, now),
        [partition for partition in partitions if partition.hi > now - AHEAD],
    )
    if not recent:
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


def _measure_ahead(partitions: Iterable[TimePartition], now: datetime) -> timedelta:
    catalogue, until = TimePartitions(partitions), now
    while (partition := catalogue.find(until)) is not None:
        until = partition.hi
    return until - now


async def check_accounting(subject: Subject) -> list[Finding]:
    """Check that the offset accounting closes, and that nothing waits for an operator."""
    async with subject.engine.connect() as connection:
        current = await figures.read_accounting(connection)
        producers = await figures.read_producers(connection)
    total = sum(current.counts.values())
    return list(_judge_accounting(current, producers)) or [
        ok(f"{counted(total, 'offset')}, each in exactly one state")
    ]


def _judge_accounting(
    current: figures.AccountingFigures, producers: figures.ProducerFigures
) -> Iterator[Finding]:
    if current.open_partitions:
        yield failed(
            f"the books of {counted(current.open_partitions, 'partition')} do not close",
            "This must never happen: report it as a defect, with GET /v1/accounting.",
        )
    if producers.open:
        yield warning(
            f"captures of {counted(producers.open, 'producer')} are missing",
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


async def check_retention(subject: Subject) -> list[Finding]:
    """Check that runs succeed, and that pending deletions are carried out."""
    interval = subject.settings.retention_interval_seconds
    async with subject.engine.connect() as connection:
        retention_figures = await figures.read_retention(connection)
        has_policies = bool(await policies.find_effective_policies(connection))
    problems = list(_judge_erasures(retention_figures))
    late = figures.compute_age(retention_figures.last_run) > max(3 * interval, 3600)
    if has_policies and (retention_figures.last_run is None or late):
        when = (
            "never"
            if retention_figures.last_run is None
            else f"last at {retention_figures.last_run:%Y-%m-%d %H:%M} UTC"
        )
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


async def check_links(subject: Subject) -> list[Finding]:
    """Check for links that outlive what they point to."""
    seconds = subject.settings.presigned_url_seconds
    async with subject.engine.connect() as connection:
        shortest = await _find_shortest(connection)
    if shortest is None or shortest.total_seconds() >= seconds:
        return [ok(f"links work for {seconds} s, no input is kept for less")]
    return [
        warning(
            f"a link works for {seconds} s, and a policy keeps inputs for"
            f" {shortest.total_seconds():g} s: it will lead to nothing",
            "Lower INFERENCE_STORE_PRESIGNED_URL_SECONDS.",
        )
    ]


async def _find_shortest(connection: AsyncConnection) -> timedelta | None:
    """Return how long the input that is deleted first is kept; None: all are kept for ever."""
    now = datetime.now(UTC)

    effective_policies = (await policies.find_effective_policies(connection)).values()
    cutoffs = [
        rule.cutoffs(now).input for effective in effective_policies for rule in effective.rules
    ]
    return min((now - cutoff for cutoff in cutoffs if cutoff is not None), default=None)
