"""The inferences that match a question."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from inference_store_client import previewing, reading
from inference_store_client.arrow_batches import read_array
from inference_store_client.columns import read_columns
from inference_store_client.dataset_methods import DatasetMethods
from inference_store_client.decoding import decode
from inference_store_client.exporting import make_export_request, read_export
from inference_store_client.frames import make_pandas, make_polars, require_frames
from inference_store_client.question import Question
from inference_store_client.streaming import stream
from inference_store_client.values.answers import Page
from inference_store_client.values.exports import ExportBlobs, ExportFormat

from .export import Export
from .inference import Inference
from .transport import Transport

if TYPE_CHECKING:
    from inference_store_client.datasets import DatasetSummary
    from inference_store_client.datasets.writing import DatasetRequest


class Inferences(DatasetMethods["DatasetSummary"]):
    """The inferences that match. Building one sends nothing; each method sends a new request."""

    def __init__(self, transport: Transport, question: Question) -> None:
        self._transport, self._question = transport, question
        self._settings = transport.settings
        self._build = partial(decode, Inference, _transport=transport)

    def count(self) -> int:
        """Count the matches, exactly."""
        return self._transport.run(reading.count(self._question, self._settings))

    def first(self) -> Inference | None:
        """Return the first match in the order asked for; None: nothing matches."""
        steps = reading.find_first(self._question, self._build, self._settings)
        first: Inference | None = self._transport.run(steps)
        return first

    def pages(self, limit: int | None = None) -> Iterator[Page[Inference]]:
        """Yield every page, of up to `limit` inferences each."""
        steps = reading.read_pages(self._question, self._build, self._settings, limit=limit)
        return self._transport.iterate(steps)

    def stream(self) -> Iterator[Inference]:
        """Yield every match, and resume if the connection breaks. It needs the right `export`.

        Raises StreamIncomplete if it cannot: a short result never looks like a whole one.
        """
        return self._transport.iterate(stream(self._question, self._build, self._settings))

    def sample(self, size: int, *, seed: int = 0) -> list[Inference]:
        """Return a random sample of the matches; the same seed takes the same sample."""
        steps = reading.read_sample(self._question, self._build, self._settings, size, seed)
        return [*self._transport.iterate(steps)]

    def to_arrow(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `nanoarrow.Array`: `pyarrow.table(…)` takes it.

        `fields`: these columns alone. It needs the right `export` and the extra `arrow`.
        """
        return read_array(self._read_columns(fields, "arrow"))

    def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `pandas.DataFrame`; as `to_arrow`, and the extra `pandas`."""
        return make_pandas(self._read_columns(fields, "pandas"))

    def to_polars(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `polars.DataFrame`; as `to_arrow`, and the extra `polars`."""
        return make_polars(self._read_columns(fields, "polars"))

    def _read_columns(self, fields: Sequence[str] | None, extra: str) -> bytes:
        require_frames(extra)
        return self._transport.run(read_columns(self._question, self._settings, fields))

    def export(
        self,
        format: ExportFormat = "parquet",
        *,
        blobs: ExportBlobs | None = None,
        expires_in: str | timedelta | None = None,
        confirm: bool = False,
    ) -> Export:
        """Let the store write every match to its bucket, in parts. It needs the right `export`.

        `blobs`: beside each inference nothing, links to its blobs, or their bytes (`copy`); links
        and copies need the right `read_inputs`. Left out: `copy` for webdataset, else nothing.
        `expires_in`: when the parts are deleted: a `timedelta`, or an ISO 8601 duration (`P7D`).
        `confirm`: also if very many match.
        """
        request = make_export_request(
            self._question,
            format,
            blobs=blobs,
            expires_in=expires_in,
            confirm=confirm,
        )
        build = partial(decode, Export, _transport=self._transport)
        return self._transport.run(read_export(request, build, self._settings))

    def _write_dataset(self, request: "DatasetRequest") -> "DatasetSummary":
        from .datasets import write_dataset  # noqa: PLC0415  (takes time to import)

        return write_dataset(self._transport, self._question, self._build, request)

    def html(self) -> str:
        """Return the first matches as HTML: pictures with boxes, as inline SVG."""
        steps = previewing.read_html(self._question, self._build, self._settings)
        return self._transport.run(steps)

    def _repr_html_(self) -> str:
        return self.html()

    def __iter__(self) -> Iterator[Inference]:
        return self.stream()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._question.describe()})"
