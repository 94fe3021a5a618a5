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


@dataclass(frozen=True, slots=True)
class QueryRecording:
    """A query that is recorded, or not."""

    found: Recording | None

    async def shown(
        self, connection: AsyncConnection, access: Access, query: Query
    ) -> Mapping[str, Any]:
        """Return what is added to the answer: nothing if it was not requested."""
        if self.found is None:
            return {}
        total = len(await find_pieces_of(connection, query.scan_range, newest_first=True))
        how = f"; {self.found.form}" if self.found.form else ""
        self.found.form = f"{query.form}{how}"
        everything = access.sees.is_everything
        return {"explain": self.found.shown(partitions_total=total, estimates=everything)}


@contextmanager
def record_query(on: bool) -> Iterator[QueryRecording]:
    """Surround the statements of a query."""
    with recording(on) as found:
        yield QueryRecording(found)
