"""Orphans that are to be erased: asked for by a report, and judged again, each, before it goes."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final
from urllib.parse import unquote
from uuid import UUID, uuid4

from sqlalchemy import ARRAY, Text, any_, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, objects
from inference_store.erasure.holds import Hold, in_force
from inference_store.erasure.ledger import Ledger, Note
from inference_store.index import registrations
from inference_store.index.tables import erasure, reconciliation, reconciliation_finding
from inference_store.inference.errors import Conflict, NotFound
from inference_store.inference.events import parse_stored
from inference_store.inference.layout import EDITED, SIDECARS, capture_of, segment_of

from . import judging, named, reconciliations

# A report is a foretelling: what is older may have been overtaken.
FRESH: Final = timedelta(days=1)
_BATCH = 1000
_HERE = reconciliation_finding.c


@dataclass(frozen=True, slots=True)
class Judged:
    """Of some objects, those that are orphans still, and those of them that a hold keeps."""

    doomed: list[str]
    held: list[str]


@dataclass(frozen=True, slots=True)
class Foretold:
    """What an erasure of a report's orphans would erase now."""

    objects: int
    bytes: int
    held: int
    """Orphans that a legal hold keeps."""
    kept: int
    """Those of the report that are no orphans any more."""
    partial: bool
    """Time was over before all was looked at."""


async def erasure_of(connection: AsyncConnection, report: UUID) -> Erasure | None:
    """The newest erasure of a report's orphans that was not cancelled."""
    of_report = erasure.c.asked["report"].as_string() == str(report)
    query = select(erasure.c.id).where(erasure.c.cause == "orphans", of_report)
    query = query.where(erasure.c.state.not_in(("cancelling", "cancelled")))
    found = await connection.scalar(query.order_by(erasure.c.requested_at.desc()).limit(1))
    return None if found is None else await erasures.find(connection, found)


async def request(ledger: Ledger, report: UUID, who: Who) -> Erasure:
    """Ask for the erasure of a report's orphans; the retention service carries it out.

    Raises NotFound; Conflict where the report is not over, too old or judged nothing, or where its
    orphans are being erased already.
    """
    number = uuid4()

    async def said(connection: AsyncConnection) -> objects.Body:
        return await _requested(connection, report, number)

    noted = {"erasure": str(number), "reconciliation": str(report)}
    note = Note(Action.ERASURE_REQUESTED, None, noted)
    made: Erasure = await ledger.write("orphans_requested", said, actor=who, note=note)
    return made


async def _requested(connection: AsyncConnection, report: UUID, id: UUID) -> objects.Body:
    going = await erasure_of(connection, report)
    if going is not None:
        raise Conflict(f"The erasure {going.id} is of the orphans of this reconciliation.")
    found = await reconciliations.find(connection, report)
    if found is None:
        raise NotFound(f"There is no reconciliation {report}.")
    if found.state != "done" or found.finished_at is None or found.orphans_before is None:
        because = f": {found.because}" if found.state == "done" else f": it is {found.state}"
        raise Conflict(f"The reconciliation {report} has judged no object{because}.")
    if datetime.now(UTC) - found.finished_at > FRESH:
        raise Conflict(f"The reconciliation {report} is older than a day: compare again.")
    return objects.requested(id, report, found.orphans_before)


async def judge(connection: AsyncConnection, report: UUID, keys: Collection[str]) -> Judged:
    """Which of these nothing names now; of those what holds in force keep. `report`: under which
    the names of dead letters and parked events were gathered."""
    told = await named.among(connection, report, sorted(keys))
    orphans = sorted(await judging.unknown(connection, set(keys) - told, objects=False))
    held = set(await _held(connection, orphans))
    return Judged([key for key in orphans if key not in held], sorted(held))


async def _held(connection: AsyncConnection, keys: Sequence[str]) -> list[str]:
    """An orphan whose place names the model of a hold may be what it is to keep: it has no row to
    ask. One whose place names no model may be any model's."""
    found = await in_force(connection) if keys else []
    if not found:
        return []
    names = await registrations.names(connection, {one.model for one in found})
    return [key for key in keys if any(_keeps(one, names, key) for one in found)]


def _keeps(one: Hold, names: dict[int, str], key: str) -> bool:
    if one.model is None or (model_id := names.get(one.model)) is None:
        return True
    path = parse_stored(key).key
    top, _, rest = path.partition("/")
    if top in {SIDECARS, EDITED} and "/" in rest:
        return rest.partition("/")[0] == segment_of(model_id)
    found = capture_of(path)
    return found is None or unquote(found[0]) == model_id


async def following(connection: AsyncConnection, report: UUID, *, after: str) -> list[str]:
    """The next orphans of a report that nobody has decided about yet."""
    found = await reconciliations.findings(
        connection, report, kind="orphan", state="found", after=("orphan", after), limit=_BATCH
    )
    return [each.storage_key for each in found]


async def tell(
    connection: AsyncConnection, report: UUID, keys: Collection[str], state: str
) -> None:
    """Say in the report what became of its orphans."""
    listed = any_(literal(sorted(keys), ARRAY(Text(collation="C"))))
    here = (_HERE.reconciliation == report, _HERE.kind == "orphan", _HERE.storage_key == listed)
    await connection.execute(reconciliation_finding.update().where(*here).values(state=state))


async def exists(connection: AsyncConnection, report: UUID) -> None:
    """A report that a restored backup does not have: what is gathered for it needs one."""
    values = {"id": report, "cause": "request", "repair": "none", "state": "failed"}
    made = insert(reconciliation).values(**values, finished_at=func.now())
    lost = made.values(error="it was lost with a restored backup; its erasure goes on")
    await connection.execute(lost.on_conflict_do_nothing())


async def foretell(connection: AsyncConnection, report: UUID, *, seconds: float = inf) -> Foretold:
    """What would go; nothing is changed. The erasure looks again at what dead letters and parked
    events name. Raises NotFound."""
    if await reconciliations.find(connection, report) is None:
        raise NotFound(f"There is no reconciliation {report}.")
    until = time.monotonic() + seconds
    after, found, size, held, looked = "", 0, 0, 0, 0
    is_partial = False
    while keys := await following(connection, report, after=after):
        if time.monotonic() > until:
            is_partial = True
            break
        after = keys[-1]
        judged = await judge(connection, report, keys)
        listed = any_(literal(judged.doomed, ARRAY(Text(collation="C"))))
        bytes = select(func.sum(_HERE.bytes)).where(
            _HERE.reconciliation == report, _HERE.kind == "orphan", _HERE.storage_key == listed
        )
        size += int(await connection.scalar(bytes) or 0)
        found += len(judged.doomed)
        held += len(judged.held)
        looked += len(keys)
    return Foretold(found, size, held, looked - found - held, is_partial)
