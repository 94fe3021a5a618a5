"""Raw values by what they are: labels by name, long texts whole, numbers exact."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import any_, select
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.long_text import WHOLE_BYTES
from inference_store.store.queries.operand import many
from inference_store.store.tables import label, metadata_string

from .exact import exact
from .operand import Operand


class Naming:
    """Looks up once what it is asked for again and again."""

    def __init__(self, connection: AsyncConnection, models: Sequence[int]) -> None:
        self._connection = connection
        self._models = models
        self._labels: dict[int, str] = {}
        self._whole: dict[tuple[int, str], str] = {}

    async def learn(self, operand: Operand, values: Collection[Any]) -> None:
        """Look up what `named` will be asked for."""
        there = {value for value in values if value is not None}
        if operand.is_label:
            await self._learn_labels(there - set(self._labels))
        elif operand.place == "metadata" and operand.kind == "string":
            cut = {each for each in there if len(each.encode()) > WHOLE_BYTES}
            if cut:
                await self._learn_whole(operand, cut)

    def named(self, operand: Operand, value: Any) -> Any:
        """A value as it is shown."""
        if value is None:
            return None
        if operand.is_label:
            return self._labels[value]
        if isinstance(value, str):
            return self._whole.get((operand.key, value), value)
        return exact(value)

    async def _learn_labels(self, numbers: set[int]) -> None:
        if numbers:
            wanted = many(sorted(numbers), INTEGER())
            query = select(label.c.label, label.c.name).where(label.c.label == any_(wanted))
            rows = await self._connection.execute(query)
            self._labels.update({row.label: row.name for row in rows})

    async def _learn_whole(self, operand: Operand, cut: set[str]) -> None:
        table = metadata_string.c
        query = select(table.value, table.whole).where(
            table.model == any_(many(self._models, INTEGER())),
            table.key == operand.key,
            table.value == any_(many(sorted(cut), TEXT())),
            table.whole.is_not(None),
        )
        for row in await self._connection.execute(query.distinct()):
            self._whole[operand.key, row.value] = row.whole
