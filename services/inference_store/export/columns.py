"""The columns of one export, and the values of its rows: what streams and parts share."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from inference_store.index.key_registry import KeySeen

from .blob_choices import NO_BLOBS, ChosenBlobs
from .fixed_columns import (
    DISTANCE,
    FIXED_COLUMNS,
    Row,
    content_columns,
    link_columns,
    read_contents,
    read_fixed,
    read_links,
)
from .kinds import Column, Values
from .metadata_columns import MetadataColumns, choose_columns
from .prediction_columns import predictions_column, read_predictions

_NO_ENTRIES = b"[]"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns, in their order; `metadata`, `predictions` None: not included."""

    fixed: Sequence[Column]
    links: Sequence[Column] = ()
    metadata: MetadataColumns | None = None
    predictions: Column | None = None
    contents: Sequence[Column] = ()

    @classmethod
    def of(
        cls,
        include: Collection[str],
        keys: Sequence[KeySeen],
        blobs: ChosenBlobs = NO_BLOBS,
    ) -> "Columns":
        """Return the columns of whole inferences: `metadata` and `predictions` if they are in
        `include`; `keys`: the key registry's of all models of the export."""
        return cls(
            fixed=[column for column in FIXED_COLUMNS if column.name != DISTANCE],
            links=link_columns(blobs.linked),
            contents=content_columns(blobs.copied),
            metadata=choose_columns(keys, None) if "metadata" in include else None,
            predictions=predictions_column(()) if "predictions" in include else None,
        )

    def list_all(self) -> list[Column]:
        """Return all columns."""
        metadata = () if self.metadata is None else self.metadata.columns
        predictions = () if self.predictions is None else (self.predictions,)
        return [*self.fixed, *self.links, *metadata, *predictions, *self.contents]

    def read(self, rows: Sequence[Row]) -> list[Values]:
        """Return the values of each column."""
        values: list[Values] = [read_fixed(column, rows) for column in self.fixed]
        values += [read_links(column, rows) for column in self.links]
        if self.metadata is not None:
            values += self.metadata.read([row.inference.metadata or _NO_ENTRIES for row in rows])
        if self.predictions is not None:
            values.append(read_predictions(self.predictions, rows))
        values += [read_contents(column, rows) for column in self.contents]
        return values
