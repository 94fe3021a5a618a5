"""Erasures of orphans: a report requests them, and each orphan is judged again before its
deletion."""

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final
from uuid import UUID, uuid4

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.erasure import batches
from inference_store.erasure.batches import Body, describe_request
from inference_store.erasure.holds import Hold, list_in_force
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import Note
from inference_store.erasure.progress import Erasure, find_erasure
from inference_store.index import registrations
from inference_store.index.sidecars import among_keys
from inference_store.index.tables import erasure, reconciliation, reconciliation_finding
from inference_store.inference.errors import Conflict
from inference_store.inference.events import parse_stored
from inference_store.inference.field_docs import Stored
from inference_store.inference.layout import (
    EDITED,
    SIDECARS,
    capture_of,
    segment_of,
    segment_of_key,
)

from . import owned, stored_reports

# A report is an estimate: an older one may be out of date.
FRESH: Final = timedelta(days=1)
_BATCH = 1000
_HERE = reconciliation_finding.c


class OrphanEstimate(Stored):
    """What would be erased; nothing was changed."""

    objects: int
    bytes: int
    held: int
    """Orphans that a legal hold may keep."""
    kept: int
    """Those of the reconciliation that are no orphans any more."""
    partial: bool
    """Time was over before all was looked at: there may be more."""


async def find_erasure_of_report(connection: AsyncConnection, report: UUID) -> Erasure | None:
    """Return the newest erasure of a report's orphans that was not cancelled."""
    of_report = erasure.c.asked["report"].as_string() == str(report)
    query = select(erasure.c.id).where(erasure.c.cause == "orphans", of_report)
    query = query.where(erasure.c.state.not_in(("cancelling", "cancelled")))
    id = await connection.scalar(query.order_by(erasure.c.requested_at.desc()).limit(1))
    return None if id is None else await find_erasure(connection, id)


async def request_erasure(ledger: Ledger, report: UUID, who: Who) -> Erasure:
    """Request the erasure of a report's orphans; the retention service carries it out.

    Raises NotFound; Conflict if the report is not over, is too old or judged nothing, or if its
    orphans are being erased already.
    """
    number = uuid4()

    async def build_body(connection: AsyncConnection) -> Body:
        return await _check_request(connection, report, number)

    noted = {"erasure": str(number), "reconciliation": str(report)}
    note = Note(Action.ERASURE_REQUESTED, None, noted)
    requested: Erasure = await ledger.write("erasure_requested", build_body, actor=who, note=note)
    return requested


async def _check_request(connection: AsyncConnection, report: UUID, id: UUID) -> Body:
    running = await find_erasure_of_report(connection, report)
    if running is not None:
        raise Conflict(f"The erasure {running.id} is of the orphans of this reconciliation.")
    reconciled = await stored_reports.get(connection, report)
    ended, before = reconciled.finished_at, reconciled.orphans_before
    is_done = reconciled.state == "done"
    if not is_done or ended is None or before is None:
        because = reconciled.because if is_done else f"it is {reconciled.state}"
        raise Conflict(f"The reconciliation {report} has judged no object: {because}.")
    if datetime.now(UTC) - ended > FRESH:
        raise Conflict(f"The reconciliation {report} is older than a day: compare again.")
    return describe_request(id, [], {"report": str(report), "before": before.isoformat()})


async def judge(
    connection: AsyncConnection, report: UUID, keys: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return which of these are orphans, and further ones that a hold may protect.

    `report`: the report that the names of dead letters and parked events were stored for.
    """
    awaited = await owned.find_named(connection, report, sorted(keys))
    orphans = sorted(await owned.find_unknown(connection, set(keys) - awaited, objects=False))
    held = set(await _find_held(connection, orphans))
    return [key for key in orphans if key not in held], sorted(held)


async def _find_held(connection: AsyncConnection, keys: Sequence[str]) -> list[str]:
    """Return the keys that a hold may protect.

    If a key names the model of a hold, the hold may be meant for it, as it has no row to check. A
    key that names no model may belong to any model.
    """
    holds = await list_in_force(connection) if keys else []
    if not holds:
        return []
    names = await registrations.names(connection, {hold.model for hold in holds})
    return [key for key in keys if any(_is_protecting(hold, names, key) for hold in holds)]


def _is_protecting(hold: Hold, names: dict[int, str], key: str) -> bool:
    if hold.model is None or (model_id := names.get(hold.model)) is None:
        return True
    path = parse_stored(key).key
    top, _, rest = path.partition("/")
    if top in {SIDECARS, EDITED} and "/" in rest:
        return rest.partition("/")[0] == segment_of(model_id)
    capture_key = capture_of(path) or segment_of_key(path)
    return capture_key is None or capture_key[0] == model_id


async def find_following(connection: AsyncConnection, report: UUID, *, after: str) -> list[str]:
    """Return the next orphans of a report that nobody has decided about yet."""
    findings = await stored_reports.list_findings(
        connection, report, kind="orphan", state="found", after=("orphan", after), limit=_BATCH
    )
    return [finding.storage_key for finding in findings]


async def settle(
    connection: AsyncConnection, of_orphans: Erasure, keys: Collection[str], state: str
) -> None:
    """Remove the names of objects, and record in the report what happened to them."""
    await batches.remove_objects(connection, keys)
    orphans = (_HERE.reconciliation == parse_report(of_orphans), _HERE.kind == "orphan")
    here = (*orphans, among_keys(_HERE.storage_key, keys))
    await connection.execute(reconciliation_finding.update().where(*here).values(state=state))


def parse_report(of_orphans: Erasure) -> UUID:
    """Return the id of the report."""
    return UUID((of_orphans.asked or {})["report"])


async def ensure_report(connection: AsyncConnection, report: UUID) -> None:
    """Ensure that the report exists, which a restored backup may not have."""
    values = {"id": report, "cause": "request", "repair": "none", "state": "failed"}
    inserted = insert(reconciliation).values(**values, finished_at=func.now())
    lost = inserted.values(error="it was lost with a restored backup; its erasure goes on")
    await connection.execute(lost.on_conflict_do_nothing())


async def estimate_orphans(
    connection: AsyncConnection, report: UUID, *, seconds: float = inf
) -> OrphanEstimate:
    """Estimate what would be erased; nothing is changed.

    The erasure checks again what dead letters and parked events name. Raises NotFound.
    """
    await stored_reports.get(connection, report)
    until = time.monotonic() + seconds
    after, objects, size, held, kept, is_partial = "", 0, 0, 0, 0, False
    while keys := await find_following(connection, report, after=after):
        if time.monotonic() > until:
            is_partial = True
            break
        after = keys[-1]
        doomed, protected = await judge(connection, report, keys)
        bytes = select(func.sum(_HERE.bytes)).where(
            _HERE.reconciliation == report,
            _HERE.kind == "orphan",
            among_keys(_HERE.storage_key, doomed),
        )
        size += int(await connection.scalar(bytes) or 0)
        objects += len(doomed)
        held += len(protected)
        kept += len(keys) - len(doomed) - len(protected)
    return OrphanEstimate(objects=objects, bytes=size, held=held, kept=kept, partial=is_partial)
