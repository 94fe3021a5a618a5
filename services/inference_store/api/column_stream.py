"""Streams of inferences in a format of columns (Arrow, CSV).

They cannot say that they failed: the answer ends unfinished, and the server closes the connection.
"""

from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.columns import Columns
from inference_store.export.fixed_columns import DISTANCE, FIXED_COLUMNS, link_columns
from inference_store.export.formats import Format
from inference_store.export.kinds import Column, Kind, Values
from inference_store.export.metadata_columns import MetadataColumns, choose_columns
from inference_store.export.prediction_columns import predictions_column
from inference_store.index import key_registry
from inference_store.query.stored_blobs import BLOBS

from .field_selection import FieldSelection
from .inference_pages import AnsweredPage
from .unfinished_answer import UnfinishedError

_CURSOR = Column("cursor", Kind.TEXT)
_log = structlog.get_logger()


class ColumnStream:
    """Encodes the pages of one stream as columns."""

    def __init__(
        self, format: Format, first: AnsweredPage, metadata: MetadataColumns | None
    ) -> None:
        self._columns = _choose_columns(first, metadata)
        self._shows_cursors = first.shows_cursors
        self._cursors = [_CURSOR] if format.has_cursors or first.shows_cursors else []
        self._encoder = format.make_encoder([*self._columns.list_all(), *self._cursors])
        self._head = self._encoder.encode_head(
            {"warnings": list(first.warnings), **first.answer_members}
        )

    def encode_page(self, page: AnsweredPage) -> bytes:
        """Return a page, and what comes before it if it is the first."""
        head, self._head = self._head, b""
        if not page.rows:
            return head
        return head + self._encoder.encode_page(self._read(page), len(page.rows))

    def encode_end(self, count: int, after: str | None) -> bytes:  # noqa: ARG002
        """Return what comes after the last page."""
        return self._encoder.encode_end()

    def encode_failure(self, count: int, after: str | None, problem: dict[str, Any]) -> bytes:
        """Raise UnfinishedError: the client sees that the answer is cut off."""
        _log.warning("stream cut off", action="stream_cut_off", count=count, problem=problem)
        raise UnfinishedError(after)

    def _read(self, page: AnsweredPage) -> list[Values]:
        values = self._columns.read(page.rows)
        if self._cursors:
            values.append(self._read_cursors(page))
        return values

    def _read_cursors(self, page: AnsweredPage) -> Values:
        """Return the cursor of each row, or of the last one: each costs time and bytes."""
        last = len(page.rows) - 1
        if self._shows_cursors:
            return [page.make_cursor(number) for number in range(len(page.rows))]
        return [*[None] * last, page.make_cursor(last)]


async def make_column_stream(
    connection: AsyncConnection, format: Format, first: AnsweredPage
) -> ColumnStream:
    """Return a stream that begins with this page; the key registry gives its columns."""
    metadata = None
    if "metadata" in first.selection.include:
        keys = await key_registry.keys(connection, first.models)
        metadata = choose_columns(keys, first.selection.find_parts("metadata") or None)
    return ColumnStream(format, first, metadata)


def _choose_columns(first: AnsweredPage, metadata: MetadataColumns | None) -> Columns:
    """Return the chosen columns, in the order of the answers of JSON."""
    chosen = first.selection
    return Columns(
        fixed=[
            column
            for column in FIXED_COLUMNS
            if (column.name != DISTANCE or first.has_distances)
            and (chosen.fields is None or column.name in chosen.fields)
        ],
        links=_choose_links(chosen),
        metadata=metadata,
        predictions=(
            predictions_column(chosen.find_parts("predictions"))
            if "predictions" in chosen.include
            else None
        ),
    )


def _choose_links(chosen: FieldSelection) -> list[Column]:
    if "urls" not in chosen.include:
        return []
    return link_columns(chosen.find_parts("urls") or BLOBS)
