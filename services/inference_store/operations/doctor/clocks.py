"""Checks clocks: ages are computed on one machine from times of another."""

import asyncio
from datetime import UTC, datetime

from sqlalchemy import func, select

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects.inspection import server_time

from .finding import Finding, Subject, failed, ok, warning

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
