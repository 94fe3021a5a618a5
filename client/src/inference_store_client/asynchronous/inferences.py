"""The inferences that match a question."""

from collections.abc import AsyncIterator, Coroutine, Sequence
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

from .export import AsyncExport
from .inference import AsyncInference
from .transport import AsyncTransport

if TYPE_CHECKING:
    from inference_store_client.datasets import DatasetSummary
    from inference_store_client.datasets.writing import DatasetRequest


class AsyncInferences(DatasetMethods[Coroutine[Any, Any, "DatasetSummary"]]):
    """The inferences that match. Building one sends nothing; each method sends a new request."""

    def __init__(self, transport: AsyncTransport, question: Question) -> None:
        self._transport, self._question = transport, question
        self._settings = transport.settings
        self._build = partial(decode, AsyncInference, _transport=transport)

    async def count(self) -> int:
        """Count the matches, exactly."""
        return await self._transport.run(reading.count(self._question, self._settings))

    async def first(self) -> AsyncInference | None:
        """Return the first match in the order asked for; None: nothing matches."""
        steps = reading.find_first(self._question, self._build, self._settings)
        first: AsyncInference | None = await self._transport.run(steps)
        return first

    def pages(self, limit: int | None = None) -> AsyncIterator[Page[AsyncInference]]:
        """Yield every page, of up to `limit` inferences each."""
        steps = reading.read_pages(self._question, self._build, self._settings, limit=limit)
        return self._transport.iterate(steps)

    def stream(self) -> AsyncIterator[AsyncInference]:
        """Yield every match, and resume if the connection breaks. It needs the right `export`.

        Raises StreamIncomplete if it cannot: a short result never looks like a whole one.
        """
        return self._transport.iterate(stream(self._question, self._build, self._settings))

    async def sample(self, size: int, *, seed: int = 0) -> list[AsyncInference]:
        """Return a random sample of the matches; the same seed takes the same sample."""
        steps = reading.read_sample(self._question, self._build, self._settings, size, seed)
        return [item async for item in self._transport.iterate(steps)]

    async def to_arrow(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `nanoarrow.Array`: `pyarrow.table(…)` takes it.

        `fields`: these columns alone. It needs the right `export` and the extra `arrow`.
        """
        return read_array(await self._read_columns(fields, "arrow"))

    async def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `pandas.DataFrame`; as `to_arrow`, and the extra `pandas`."""
        return make_pandas(await self._read_columns(fields, "pandas"))

    async def to_polars(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `polars.DataFrame`; as `to_arrow`, and the extra `polars`."""
        return make_polars(await self._read_columns(fields, "polars"))

    async def _read_columns(self, fields: Sequence[str] | None, extra: str) -> bytes:
        require_frames(extra)
        return await self._transport.run(read_columns(self._question, self._settings, fields))

    async def export(
        self,
        format: ExportFormat = "parquet",
        *,
        blobs: ExportBlobs | None = None,
        expires_in: str | timedelta | None = None,
        confirm: bool = False,
    ) -> AsyncExport:
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
        build = partial(decode, AsyncExport, _transport=self._transport)
        return await self._transport.run(read_export(request, build, self._settings))

    async def _write_dataset(self, request: "DatasetRequest") -> "DatasetSummary":
        from .datasets import write_dataset  # noqa: PLC0415  (takes time to import)

        return await write_dataset(self._transport, self._question, self._build, request)

    async def html(self) -> str:
        """Return the first matches as HTML: pictures with boxes, as inline SVG."""
        steps = previewing.read_html(self._question, self._build, self._settings)
        return await self._transport.run(steps)

    def __aiter__(self) -> AsyncIterator[AsyncInference]:
        return self.stream()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._question.describe()})"
