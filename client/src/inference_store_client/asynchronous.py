"""The store, asked in an event loop; `sync` has the same as ordinary functions."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from uuid import UUID

import httpx

from inference_store_client import exporting, previewing, reading
from inference_store_client.arrow_batches import read_array
from inference_store_client.blob import Blob
from inference_store_client.columns import read_columns
from inference_store_client.commands import (
    Close,
    Command,
    Deliver,
    Open,
    Outcome,
    Read,
    Renew,
    Steps,
    Wait,
)
from inference_store_client.decoding import decode
from inference_store_client.exporting import (
    NewFolder,
    make_export_request,
    read_export,
    read_part,
    stream_part,
)
from inference_store_client.filters import Filter
from inference_store_client.http_clients import open_http
from inference_store_client.json_text import Json
from inference_store_client.messages import TIMEOUT, build_message, make_failure, read_head, renew
from inference_store_client.previewing import DatasetMethods
from inference_store_client.question import Question, QuestionOptions
from inference_store_client.requests import Request, make_any_request, make_path, make_request
from inference_store_client.retries import DEFAULT_RETRIES, Retries
from inference_store_client.settings import ClientSettings, find_settings
from inference_store_client.streaming import (
    Restart,
    make_pandas,
    make_polars,
    require_frames,
    stream,
)
from inference_store_client.values.answers import Caller, Page
from inference_store_client.values.exports import (
    ErasedMember,
    Erasure,
    ExportBlobs,
    ExportFields,
    ExportFormat,
    ExportPart,
    Retention,
)
from inference_store_client.values.inference import InferenceFields
from inference_store_client.values.models import (
    KeyPage,
    MetadataKey,
    Registration,
    RegistrationPage,
)

# Performs the core's commands in an event loop.

T = TypeVar("T")


class AsyncTransport:
    """Sends requests with httpx. A client that is given is used as it is, and not closed."""

    def __init__(self, settings: ClientSettings, http: httpx.AsyncClient | None = None) -> None:
        self.settings = settings
        self._http = http or open_http(lambda: httpx.AsyncClient(timeout=TIMEOUT))
        self._is_owned = http is None

    async def run(self, steps: Steps[T]) -> T:
        """Perform the commands, and return what they lead to."""
        outcome: Outcome = None
        async with aclosing(_Conversation(self._http, self.settings)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration as end:
                    result: T = end.value
                    return result
                outcome = await conversation.perform(command)

    async def iterate(self, steps: Steps[None]) -> AsyncGenerator[Any]:
        """Perform the commands, and yield what they deliver."""
        outcome: Outcome = None
        async with aclosing(_Conversation(self._http, self.settings)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration:
                    return
                outcome = None
                if isinstance(command, Deliver):
                    for item in command.items:
                        yield item
                else:
                    outcome = await conversation.perform(command)

    async def close(self) -> None:
        """Close the connections."""
        if self._is_owned:
            await self._http.aclose()


class _Conversation:
    """The responses of one run of the core, one after the other."""

    def __init__(self, http: httpx.AsyncClient, settings: ClientSettings) -> None:
        self._http, self._settings = http, settings
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def perform(self, command: Command) -> Outcome:
        match command:
            case Open(request):
                return await self._open(request)
            case Read():
                return await self._read()
            case Renew():
                return await asyncio.to_thread(renew, self._settings)
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Close():
                await self.aclose()
        return None

    async def _open(self, request: Request) -> Outcome:
        message = build_message(self._http, self._settings, request)
        is_home = self._settings.origin.has(str(message.url))
        auth = httpx.USE_CLIENT_DEFAULT if is_home else None
        try:
            self._response = await self._http.send(
                message, stream=True, follow_redirects=False, auth=auth
            )
        except httpx.RequestError as error:
            return make_failure(error, self._settings)
        self._pieces = self._response.aiter_bytes()
        return read_head(self._response)

    async def _read(self) -> Outcome:
        assert self._pieces is not None
        try:
            return await anext(self._pieces, b"")
        except httpx.RequestError as error:
            return make_failure(error, self._settings)

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response = None


# An export that the store writes to its bucket.


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncExport(ExportFields):
    """An export as it was when it was read; each method asks the store again."""

    _transport: AsyncTransport = field(repr=False, compare=False)

    async def refresh(self) -> "AsyncExport":
        """Return the export as it is now."""
        request = make_request("GET", make_path("exports", str(self.id)))
        steps = exporting.read_export(request, self._build, self._transport.settings)
        return await self._transport.run(steps)

    async def wait(self) -> "AsyncExport":
        """Return the export once every part is written. Raises ExportFailed if none will be."""
        settings = self._transport.settings
        steps = exporting.wait_until_written(self.id, self._build, settings)
        return await self._transport.run(steps)

    async def list_parts(self) -> list[ExportPart]:
        """Return its parts, with links. The store notes that you were given them."""
        return await self._transport.run(exporting.list_parts(self.id, self._transport.settings))

    async def read_part(self, part: ExportPart) -> bytes:
        """Return the bytes of a part, checked by their SHA-256."""
        return await self._transport.run(read_part(self.id, part, self._transport.settings))

    async def download(self, folder: str | Path) -> list[Path]:
        """Write every part into a folder, once all are written; return the files.

        The folder must be new. It appears when it is whole, and only you may read it. A download
        that is cut off is continued; no part is in memory as a whole.
        """
        names = []
        with NewFolder(Path(folder)) as new:
            export, parts = await self._wait_for_parts()
            for part in parts:
                if part.state != "removed":
                    names.append(exporting.name_part(export, part))
                    with exporting.open_part(new, names[-1]) as write:
                        async with aclosing(self._stream_part(part)) as pieces:
                            async for piece in pieces:
                                await _write(write, piece)
            new.publish()
        return [new.target / name for name in names]

    async def list_erased(self) -> list[ErasedMember]:
        """Return what erasures took of it, the earliest first: erase it in your copies too."""
        steps = exporting.list_erased(self.id, self._transport.settings)
        return [member async for member in self._transport.iterate(steps)]

    async def cancel(self) -> "AsyncExport":
        """Stop it, and let the store delete its parts."""
        request = make_request("POST", make_path("exports", str(self.id), "cancel"))
        steps = exporting.read_export(request, self._build, self._transport.settings)
        return await self._transport.run(steps)

    async def restart(self) -> "AsyncExport":
        """Ask its question again: return another export, with parts of its own."""
        request = make_request("POST", make_path("exports", str(self.id), "restart"))
        steps = exporting.read_export(request, self._build, self._transport.settings)
        return await self._transport.run(steps)

    async def _wait_for_parts(self) -> "tuple[AsyncExport, list[ExportPart]]":
        settings = self._transport.settings
        return await self._transport.run(exporting.wait_for_parts(self.id, self._build, settings))

    def _stream_part(self, part: ExportPart) -> AsyncGenerator[bytes | Restart]:
        return self._transport.iterate(stream_part(self.id, part, self._transport.settings))

    def _build(self, members: Json) -> "AsyncExport":
        return decode(AsyncExport, members, _transport=self._transport)


async def _write(write: Callable[[bytes | Restart], None], piece: bytes | Restart) -> None:
    """Write in a thread; a cancellation waits for its end, so that the folder can go."""
    writing = asyncio.create_task(asyncio.to_thread(write, piece))
    try:
        await asyncio.shield(writing)
    finally:
        await asyncio.wait([writing])


# One inference, and what can be done with it.


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncInference(InferenceFields):
    """One datum and what the model answered, and what can be done with them."""

    _transport: AsyncTransport = field(repr=False, compare=False)

    async def data(self) -> Blob:
        """Read the datum, as it was stored. Raises Gone if it was deleted."""
        return await self._transport.run(reading.read_blob(self, "data", self._transport.settings))

    async def image(self, *, edge: int | None = None) -> Blob:
        """Read the picture; `edge`: as a JPEG whose longer edge has at most so many pixels."""
        if edge is None:
            return await self.data()
        return await self._transport.run(
            reading.read_thumbnail(self, edge, self._transport.settings)
        )

    async def response(self) -> Blob:
        """Read the model's response, as it was stored."""
        return await self._transport.run(
            reading.read_blob(self, "response", self._transport.settings)
        )

    async def retention(self) -> Retention:
        """Read why it is kept, and until when."""
        request = make_request("GET", reading.inference_path(self, "retention"))
        return await self._transport.run(
            reading.fetch(Retention, request, self._transport.settings)
        )

    async def erase(self) -> Erasure:
        """Erase it, with its blobs. Queries stop showing it at once."""
        request = make_request("DELETE", reading.inference_path(self))
        return await self._transport.run(reading.fetch(Erasure, request, self._transport.settings))


# The inferences that match a question.

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
        from .datasets.asynchronous import write_dataset  # noqa: PLC0415  (takes time to import)

        return await write_dataset(self._transport, self._question, self._build, request)

    async def html(self) -> str:
        """Return the first matches as HTML: pictures with boxes, as inline SVG."""
        steps = previewing.read_html(self._question, self._build, self._settings)
        return await self._transport.run(steps)

    def __aiter__(self) -> AsyncIterator[AsyncInference]:
        return self.stream()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._question.describe()})"


# One model of the store.


class AsyncModel:
    """One model of the store. Making one asks nothing."""

    def __init__(self, transport: AsyncTransport, model_id: str) -> None:
        self._transport, self.model_id = transport, model_id

    def inferences(
        self, filter: Filter | None = None, **options: Unpack[QuestionOptions]
    ) -> AsyncInferences:
        """Return the inferences that match a filter; nothing is asked yet."""
        path = make_path("models", self.model_id, "inferences")
        return AsyncInferences(self._transport, Question(path=path, filter=filter, **options))

    async def inference(self, inference_id: str) -> AsyncInference:
        """Read an inference by its id, an alias, or `uid:<uuid>`: the newest one that has it."""
        request = make_request(
            "GET", make_path("models", self.model_id, "inferences", inference_id)
        )
        steps = reading.fetch_plain(request, self._transport.settings)
        return decode(AsyncInference, await self._transport.run(steps), _transport=self._transport)

    async def registration(self) -> Registration:
        """Read the model's entry."""
        request = make_request("GET", make_path("models", self.model_id))
        return await self._transport.run(
            reading.fetch(Registration, request, self._transport.settings)
        )

    def metadata_keys(self) -> AsyncIterator[MetadataKey]:
        """Yield the model's metadata keys, with the types under which they came."""
        path = make_path("models", self.model_id, "metadata-keys")
        steps = reading.read_list(path, KeyPage, self._transport.settings, {})
        return self._transport.iterate(steps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r})"


class AsyncStore:
    """An Inference Store.

    `url` and `key` default to INFERENCE_STORE_URL and INFERENCE_STORE_KEY, and then to
    `~/.config/inference-store/config.toml`. Without a key, the tokens of `istore login` are sent.
    `http_client` is used as it is, and not closed.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retries: Retries = DEFAULT_RETRIES,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._transport = AsyncTransport(find_settings(url, key, retries=retries), http_client)

    def model(self, model_id: str) -> AsyncModel:
        """Return a model; nothing is asked yet."""
        return AsyncModel(self._transport, model_id)

    def models(self, *, project_id: str | None = None) -> AsyncIterator[Registration]:
        """Yield the models that the caller may read; of a project, or all."""
        params = {} if project_id is None else {"project_id": project_id}
        steps = reading.read_list(
            make_path("models"), RegistrationPage, self._transport.settings, params
        )
        return self._transport.iterate(steps)

    def inferences(
        self,
        filter: Filter | None = None,
        *,
        model_ids: Sequence[str] | None = None,
        project_id: str | None = None,
        **options: Unpack[QuestionOptions],
    ) -> AsyncInferences:
        """Return the inferences of several models, of a project, or of all that may be read."""
        question = Question(path=make_path("inferences"), filter=filter, **options)
        return AsyncInferences(self._transport, question.of_models(model_ids, project_id))

    async def me(self) -> Caller:
        """Read who the caller is, and what they may do."""
        request = make_request("GET", make_path("me"))
        return await self._transport.run(reading.fetch(Caller, request, self._transport.settings))

    async def export(self, id: UUID | str) -> AsyncExport:
        """Read an export that was requested before."""
        request = make_request("GET", make_path("exports", str(id)))
        build = partial(decode, AsyncExport, _transport=self._transport)
        return await self._transport.run(read_export(request, build, self._transport.settings))

    @overload
    async def request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Json = None
    ) -> Json: ...
    @overload
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Json = None,
        into: type[T],
    ) -> T: ...
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Json = None,
        into: type[T] | None = None,
    ) -> T | Json:
        """Ask any route: `request("GET", "/v1/holds")`. Numbers are exact, decimals are `Decimal`.

        `into`: a dataclass of `values` for the answer. Only what reads is sent again if it fails.
        """
        request = make_any_request(method, path, params=params, body=body)
        if into is None:
            return await self._transport.run(reading.request_any(request, self._transport.settings))
        return await self._transport.run(reading.fetch(into, request, self._transport.settings))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.settings.origin.url!r})"


# Writes a dataset: pictures are downloaded beside each other, and written in order.
