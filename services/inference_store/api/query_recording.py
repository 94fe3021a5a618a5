"""`explain: true`: the answer describes what the query did."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.query.explain import Recording, recording
from inference_store.query.matching import Query
from inference_store.query.scan_range import find_pieces_of

from .access import Access
from .schemas.explain import Explanation


@dataclass(frozen=True, slots=True)
class QueryRecording:
    """A query that is recorded, or not."""

    active: Recording | None

    async def format(
        self, connection: AsyncConnection, access: Access, query: Query
    ) -> Mapping[str, Any]:
        """Return what is added to the answer: nothing if it was not requested."""
        if self.active is None:
            return {}
        total = len(await find_pieces_of(connection, query.scan_range, newest_first=True))
        how = f"; {self.active.form}" if self.active.form else ""
        self.active.form = f"{query.form}{how}"
        everything = access.sees.is_everything
        explanation = self.active.explain(partitions_total=total, estimates=everything)
        return {"explain": Explanation.show(explanation)}


@contextmanager
def record_query(on: bool) -> Iterator[QueryRecording]:
    """Surround the statements of a query."""
    with recording(on) as active:
        yield QueryRecording(active)
