"""Clocks that disagree: ages are counted on one machine, times were given on another."""

import asyncio
from datetime import UTC, datetime

from sqlalchemy import func, select

from inference_store.inference.errors import BlobsAway
from inference_store.objects.inspection import server_time

from .finding import Finding, Subject, failed, ok, warning

# A Date header has whole seconds, and an answer takes its time.
_NOTICED_SECONDS = 5.0
# S3 refuses requests that are 15 minutes off; policies of hours are wrong long before.
_WRONG_SECONDS = 300.0


def judge(server: str, theirs: datetime, before: datetime, after: datetime) -> Finding:
    """Their clock against ours, which showed `before` and `after` around the question."""
    off = (theirs - (before + (after - before) / 2)).total_seconds()
    side = "ahead of" if off > 0 else "behind"
    seen = f"the clock of {server} is {abs(off):.1f} s {side} ours"
    remedy = f"Let NTP (chrony, systemd-timesyncd) set the clocks of {server} and of this machine."
    if abs(off) > _WRONG_SECONDS:
        return failed(seen, remedy)
    return warning(seen, remedy) if abs(off) > _NOTICED_SECONDS else ok(seen)


async def of_postgres(subject: Subject) -> list[Finding]:
    """Postgres says when an event was parked, and when a run is due."""
    async with subject.engine.connect() as connection:
        await connection.scalar(select(1))
        before = datetime.now(UTC)
        theirs = await connection.scalar(select(func.clock_timestamp()))
        after = datetime.now(UTC)
    return [judge("Postgres", theirs or after, before, after)]


async def of_object_store(subject: Subject) -> list[Finding]:
    """S3 refuses what is signed at another time than its own."""
    before = datetime.now(UTC)
    try:
        theirs = await asyncio.to_thread(server_time, subject.settings)
    except BlobsAway as away:
        return [failed(f"the object store does not answer: {away}", "See the check 'bucket'.")]
    if theirs is None:
        return [ok("the object store does not tell the time")]
    return [judge("the object store", theirs, before, datetime.now(UTC))]
