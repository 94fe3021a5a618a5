"""Converts raw values to those shown: labels by name, long texts whole, numbers exact."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, any_, func, select, true
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.long_text import WHOLE_BYTES
from inference_store.index.tables import label, metadata_string
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.matching import Query
from inference_store.query.operand import bind_many
from inference_store.query.scan_range import ScanRange, find_pieces_of, span_around, split_unbroken

from .exact import exact
from .operand import Operand


class Naming:
    """Converts raw values; labels and long texts are looked up once."""

    def __init__(
        self, connection: AsyncConnection, queries: Sequence[Query], deadline: Deadline
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._deadline = deadline
        self._labels: dict[int, str] = {}
        self._whole: dict[tuple[int, str], str] = {}

    async def learn(self, operand: Operand, values: Collection[Any]) -> None:
        """Look up what `name_value` needs for these values. Raises OutOfTime."""
        there = {value for value in values if value is not None}
        if operand.is_label:
            await self._learn_labels(there - set(self._labels))
        elif operand.source == "metadata" and operand.kind == "string":
            cut = {text for text in there if len(text.encode()) > WHOLE_BYTES}
            if cut:
                await self._learn_whole(operand, cut)

    def name_value(self, operand: Operand, value: Any) -> Any:
        """Return the value to show for a raw one. Labels and long texts must have been learned."""
        if value is None:
            return None
        if operand.is_label:
            return self._labels.get(value)  # None: it was erased since its number was read
        if isinstance(value, str):
            return self._whole.get((operand.key, value), value)
        return exact(value)

    async def _learn_labels(self, numbers: set[int]) -> None:
        if numbers:
            bound_numbers = bind_many(sorted(numbers), INTEGER())
            query = select(label.c.label, label.c.name).where(label.c.label == any_(bound_numbers))
            rows = await self._connection.execute(query)
            self._labels.update({row.label: row.name for row in rows})

    async def _learn_whole(self, operand: Operand, cut: set[str]) -> None:
        """Look up the texts that are not known yet, and stop when all are found."""
        missing = {value for value in cut if (operand.key, value) not in self._whole}
        for query in self._queries:
            if query.nothing or query.scan_range.empty or not missing:
                continue
            parts = await find_pieces_of(self._connection, query.scan_range, newest_first=True)
            for group in split_unbroken(parts):
                if missing:
                    statement = _whole(span_around(group), operand, missing)
                    rows = await fetch(
                        self._connection, statement, self._deadline, what="read long texts whole"
                    )
                    self._whole.update({(operand.key, row.value): row.whole for row in rows})
                    missing -= {row.value for row in rows}


def _whole(scan_range: ScanRange, operand: Operand, cut: set[str]) -> Select[Any]:
    """Select one row for each value, however many inferences have it."""
    table = metadata_string.alias()
    value = func.unnest(bind_many(sorted(cut), TEXT())).column_valued("cut")
    row = select(table.c.whole).where(
        scan_range.of(table),
        table.c.key == operand.key,
        table.c.value == value,
        table.c.whole.is_not(None),
    )
    whole = row.limit(1).lateral()
    return select(value.label("value"), whole.c.whole).join(whole, true())
