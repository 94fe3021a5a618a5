"""Ground truth from a topic: each message is one whole set, a row as in NDJSON with its `model_id`.

A message may come again, and late: one that is older than the set that is stored, or that waits,
changes nothing. So the ingester may write the set first, and account for the offset afterwards.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations
from inference_store.index.accounting import Outcome
from inference_store.index.database import REFUSALS, cause_of, is_rows_fault
from inference_store.index.registrations import Registration
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.errors import Conflict, NotFound
from inference_store.inference.layout import is_id
from inference_store.objects import Blobs

from .intake import Intake, Taken
from .rows import MOST_ROW, Address, Row, WrongRow, parse_row, read_row
from .sets import TruthWriter


class Messages:
    """Takes messages. `by`: who says what they say; `keep`: how long they wait for inferences."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, *, by: str, keep: timedelta) -> None:
        self._engine, self._blobs, self._by, self._keep = engine, blobs, by, keep

    async def take(self, records: Sequence[Record]) -> list[Outcome | Rejection]:
        """Write the sets of records, and return what became of each. Repeatable. Raises
        ObjectStoreUnavailable."""
        known: dict[str, Registration] = {}

        async def find(ids: Collection[str | None]) -> Mapping[str | None, Sequence[Registration]]:
            async with self._engine.connect() as connection:
                named = {model_id for model_id in ids if model_id is not None}
                known.update(await registrations.find_by_ids(connection, named))
            return {model_id: (registration,) for model_id, registration in known.items()}

        results: dict[int, Outcome | Rejection] = {}
        rows: list[Row | WrongRow] = []
        fields: dict[int, Mapping[str, Any]] = {}
        # the last of several counts
        for number, record in sorted(enumerate(records), key=lambda pair: pair[1].time):
            read = record.fault or _parse(record)
            if isinstance(read, Rejection):
                results[number] = read
                continue
            fields[number], row = read, read_row(number, read)
            at = min(record.time, datetime.now(UTC))
            rows.append(row._replace(at=at, is_whole=True) if isinstance(row, Row) else row)
        writer = TruthWriter(self._engine, self._blobs)
        try:
            taken = await Intake(writer, find, self._by, self._keep, _note_nothing).take(rows)
        except (Conflict, NotFound) as wrong:  # an unreadable hold; a model or label that just went
            taken = [Taken(row, "refused", str(wrong)) for row in rows]
        except REFUSALS as error:
            if not is_rows_fault(error):
                raise
            if len(records) > 1:  # a refused value costs one message, not all
                return [result for record in records for result in await self.take([record])]
            taken = [
                Taken(row, "refused", f"Postgres refuses it: {cause_of(error)}") for row in rows
            ]
        for each in taken:
            results[each.row.line] = _settle(each, fields[each.row.line], known)
        return [results[number] for number in range(len(records))]


async def _note_nothing(*_: object) -> None:
    """The audit is of requests; a set has who said it, and when."""


def _parse(record: Record) -> Mapping[str, Any] | Rejection:
    if len(record.payload) > MOST_ROW:
        return Rejection("message_too_large", f"it has more than {MOST_ROW:,} bytes")
    read = parse_row(record.payload)
    if isinstance(read, str):
        return Rejection("not_json", read)
    return {name: value for name, value in read.items() if value is not None}


def _settle(taken: Taken, fields: Mapping[str, Any], known: Collection[str]) -> Outcome | Rejection:
    if taken.outcome == "erased":
        return Outcome.ERASED_AGAIN
    if taken.outcome in ("matched", "awaiting"):
        return Outcome.STORED if taken.is_new else Outcome.DUPLICATE
    reason = "truth_ambiguous" if taken.outcome == "ambiguous" else "truth_refused"
    model_id, row = fields.get("model_id"), taken.row
    if isinstance(row, Row) and row.model_id not in {None, *known}:
        reason = "unknown_model"
    if not isinstance(model_id, str) or not is_id(model_id):
        model_id = None
    of = row.address if isinstance(row, Row) else row.of and row.of[1]
    return Rejection(reason, taken.why, model_id, _name(of) if of else None)


def _name(address: Address) -> str | None:
    """Return how an erasure by ids names an inference; None: the address is no id."""
    if address.how == "uid":
        return f"uid:{address.value}"
    return address.value if address.how == "inference_id" else None
