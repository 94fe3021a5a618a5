"""Thumbnails of inputs: many in one answer, or one; shown while the input is there."""

import asyncio
import time
from asyncio.subprocess import Process
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Query
from pydantic import ConfigDict, Field, Strict
from starlette.responses import Response, StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking
from inference_store.api.answer import Answer, Problem, Shown, build_body, encode_json
from inference_store.api.dependencies import looking_up
from inference_store.api.http import (
    BYTES,
    INFERENCE,
    INFERENCES,
    JSON,
    NDJSON,
    InferenceId,
    ModelId,
)
from inference_store.api.routing import BINARY, Router, make_ref
from inference_store.api.thumbnail_wire import ANSWER, MADE, REFUSALS, REQUEST, Thumbnail
from inference_store.index.registrations import Registration
from inference_store.inference.errors import (
    BlobMissing,
    BlobTooLarge,
    Busy,
    Gone,
    NotFound,
    NoThumbnail,
    StoreError,
)
from inference_store.inference.events.event import parse_stored
from inference_store.inference.field_docs import WHOLE, Body
from inference_store.objects import Blobs
from inference_store.platform.worker_process import kill_worker, make_command, start_worker
from inference_store.query.lookup import read_visible
from inference_store.query.read import Inference, get_storage_key, is_erased

# Makes thumbnails from inputs in the bucket, in processes of their own; keeps them in memory.

MOST_INPUT_BYTES: Final = 20 * 1024 * 1024
BATCH_SECONDS: Final = 30.0
"""All pictures of a request together take no longer."""
_NEITHER: Final = ("audio/", "video/")
_TEXT: Final = ("text/", "application/json")
_MOST_TEXT_BYTES: Final = 2000
_TOO_LARGE: Final = f"The input is over {MOST_INPUT_BYTES // 1024 // 1024} MiB."
PICTURE_SECONDS: Final = 10.0
"""A picture takes no longer."""
_MOST_THUMBNAIL_BYTES: Final = 2 * 1024 * 1024
_COMMAND: Final = make_command("inference_store.api.thumbnail_worker")
MOST_BYTES: Final = 64 * 1024 * 1024
KEEP_SECONDS: Final = 600.0
_OVERHEAD_BYTES: Final = 1024
"""About the bytes that an entry takes beside its JPEG."""
Key = tuple[int, UUID, str, int]
"""The model, the uid, the key of the input, and the longest edge."""


class Decoder:
    """A process that makes thumbnails one after the other; `aclose` ends it.

    Each request has a process of its own: a picture that takes one over sees no picture of others.
    """

    def __init__(
        self, *, seconds: float | None = None, command: tuple[str, ...] = _COMMAND
    ) -> None:
        self._seconds = PICTURE_SECONDS if seconds is None else seconds
        self._command = command
        self._process: Process | None = None

    async def make(self, picture: bytes, edge: int) -> Thumbnail:
        """Make a thumbnail. Raises NoThumbnail, saying why."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._ask(await self._start(), picture, edge)
        except TimeoutError:
            await self.aclose()
            raise NoThumbnail("The picture takes too long to decode.") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.aclose()
            raise NoThumbnail("The picture could not be decoded.") from None

    async def _ask(self, process: Process, picture: bytes, edge: int) -> Thumbnail:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        process.stdin.write(REQUEST.pack(len(picture), edge))
        process.stdin.write(picture)
        await process.stdin.drain()
        head = await process.stdout.readexactly(ANSWER.size)
        outcome, picture_width, picture_height, width, height, size = ANSWER.unpack(head)
        if outcome != MADE or size > _MOST_THUMBNAIL_BYTES:
            raise NoThumbnail(REFUSALS[outcome] if outcome < len(REFUSALS) else REFUSALS[-1])
        jpeg = await process.stdout.readexactly(size)
        return Thumbnail(jpeg, (width, height), (picture_width, picture_height))

    async def _start(self) -> Process:
        if self._process is None:
            self._process = await start_worker(*self._command)
        return self._process

    async def aclose(self) -> None:
        """End the process; the next picture starts another."""
        process, self._process = self._process, None
        if process is not None:
            await kill_worker(process)


class ThumbnailCache:
    """The thumbnails that were made last; each is dropped after ten minutes at most.

    It does not know what was erased: whoever uses it has read the index first.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most_bytes, clock
        self._entries: dict[Key, tuple[float, Thumbnail]] = {}
        self.bytes = 0

    def get(self, key: Key) -> Thumbnail | None:
        """Return a thumbnail, if it is kept."""
        self.sweep()
        return self._entries[key][1] if key in self._entries else None

    def put(self, key: Key, thumbnail: Thumbnail) -> None:
        """Store a thumbnail; the oldest are dropped for it."""
        self.sweep()
        self._drop(key)
        self._entries[key] = (self._clock(), thumbnail)
        self.bytes += len(thumbnail.jpeg) + _OVERHEAD_BYTES
        while self.bytes > self._most:
            self._drop(next(iter(self._entries)))

    def forget(self, model: int, uids: Collection[UUID]) -> None:
        """Drop what is cached of inferences that are deleted, or whose inputs are."""
        for key in [key for key in self._entries if key[0] == model and key[1] in uids]:
            self._drop(key)

    def sweep(self) -> None:
        """Drop what was made too long ago."""
        oldest = self._clock() - KEEP_SECONDS
        while self._entries and next(iter(self._entries.values()))[0] <= oldest:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= len(entry[1].jpeg) + _OVERHEAD_BYTES


ThumbnailResult = Thumbnail | str | StoreError
"""Of a text it is how the text begins."""


class ThumbnailMaker:
    """Makes thumbnails of stored inferences, and keeps them in its `cache`."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs, self.cache = blobs, ThumbnailCache()

    def find_cached(
        self, inferences: Sequence[Inference], edge: int
    ) -> dict[UUID, ThumbnailResult]:
        """Return the cached thumbnails, and the refusals that the index already implies."""
        results: dict[UUID, ThumbnailResult] = {}
        for inference in inferences:
            result = _find_refusal(inference) or self.cache.get(_make_key(inference, edge))
            if result is not None:
                results[inference.uid] = result
        return results

    async def make(self, inferences: Sequence[Inference], edge: int) -> dict[UUID, ThumbnailResult]:
        """Make thumbnails, one after the other. Those that are not made in time are Busy."""
        results: dict[UUID, ThumbnailResult] = {}
        until = time.monotonic() + BATCH_SECONDS
        pictures = self._fetch(inferences)
        async with aclosing(Decoder()) as decoder, aclosing(pictures):
            async for inference, picture in pictures:
                if time.monotonic() > until:
                    break
                results[inference.uid] = await self._make_one(decoder, inference, picture, edge)
        late = Busy("The pictures before it took too long. Request it again.")
        return {inference.uid: results.get(inference.uid, late) for inference in inferences}

    async def _make_one(
        self, decoder: Decoder, inference: Inference, picture: bytes | StoreError, edge: int
    ) -> ThumbnailResult:
        if isinstance(picture, StoreError):
            return picture
        if _find_media_type(inference).startswith(_TEXT):
            return picture[:_MOST_TEXT_BYTES].decode(errors="ignore")
        try:
            thumbnail = await decoder.make(picture, edge)
        except NoThumbnail as refused:
            return refused
        self.cache.put(_make_key(inference, edge), thumbnail)
        return thumbnail

    async def _fetch(
        self, inferences: Sequence[Inference]
    ) -> AsyncGenerator[tuple[Inference, bytes | StoreError], None]:
        """Yield the inputs in order; one is fetched while the one before it is decoded."""
        ahead: list[asyncio.Task[bytes | StoreError]] = []
        try:
            for number, inference in enumerate(inferences):
                if not ahead:
                    ahead.append(asyncio.create_task(self._fetch_one(inference)))
                following = inferences[number + 1 : number + 2]
                ahead += [asyncio.create_task(self._fetch_one(next_one)) for next_one in following]
                yield inference, await ahead.pop(0)
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _fetch_one(self, inference: Inference) -> bytes | StoreError:
        key = get_storage_key(inference, "data")
        assert key is not None, "the index has said that there is one"
        try:
            storage_key = parse_stored(key)
            if _find_media_type(inference).startswith(_TEXT):
                stream, begin = await self._blobs.stream(storage_key), b""
                async for piece in stream.pieces:
                    if len(begin := begin + piece) >= _MOST_TEXT_BYTES:
                        break
                return begin
            return await asyncio.to_thread(self._blobs.get, storage_key, limit=MOST_INPUT_BYTES)
        except BlobMissing:
            return NotFound(f"The object {key} is not in the bucket.")
        except BlobTooLarge:
            return NoThumbnail(_TOO_LARGE)


def _find_refusal(inference: Inference) -> StoreError | None:
    if is_erased(inference, "data"):
        return Gone("The data of this inference has been deleted.")
    if get_storage_key(inference, "data") is None:
        return NotFound("The inference has no data.")
    media_type = _find_media_type(inference)
    if (inference.row["data_size"] or 0) > MOST_INPUT_BYTES and not media_type.startswith(_TEXT):
        return NoThumbnail(_TOO_LARGE)
    if media_type.startswith(_NEITHER):
        return NoThumbnail(f"The input has the media type {media_type[:100]!r}.")
    return None


def _find_media_type(inference: Inference) -> str:
    return str(inference.row["data_content_type"] or "").lower()


def _make_key(inference: Inference, edge: int) -> Key:
    return inference.row["model"], inference.uid, str(get_storage_key(inference, "data")), edge


MOST_THUMBNAILS: Final = 100
EDGE: Final = 240


class ThumbnailQuery(Body):
    """Which thumbnails."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"uids": ["019ac3f2-7c00-8123-9abc-0123456789ab"], "edge": 240}]
        }
    )

    uids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_THUMBNAILS)]
    """Of inferences of the model."""
    edge: Annotated[int, Strict(), Field(ge=16, le=1024), WHOLE] = EDGE
    """The most pixels of the longer edge."""


class ShownThumbnail(Shown):
    """A line: the thumbnail of one inference, or why there is none."""

    uid: UUID
    content_type: str | None = Field(examples=["image/jpeg"])
    """`text/plain` for an input that is text, of which `data` has the first 2,000 bytes."""
    width: int | None
    """Of the thumbnail in pixels."""
    height: int | None
    picture_width: int | None
    """Of the picture in pixels."""
    picture_height: int | None
    data: str | None
    """The thumbnail in base64."""
    problem: Problem | None
    """Why there is none, in the form of an error."""


class ThumbnailPage(Shown):
    """Thumbnails as one object."""

    items: list[ShownThumbnail]


router = Router("inferences")
_JPEG = "image/jpeg"
_LINES = {
    "content": {
        NDJSON: {"schema": {"$ref": make_ref(ShownThumbnail)}},
        JSON: {"schema": {"$ref": make_ref(ThumbnailPage)}},
    },
    "description": "A line for each uid, in their order; as JSON all of them in `items`.",
}
_PICTURE = {"content": {_JPEG: BINARY, BYTES: BINARY}, "description": "The thumbnail."}
_GONE = NotFound("The model has no such inference.")


@router.add(
    f"POST {INFERENCES}/thumbnails",
    Right.READ_INPUTS,
    "Read thumbnails of several inputs",
    also={200: _LINES},
    answer=StreamingResponse,
)
async def query_thumbnails(model_id: ModelId, body: ThumbnailQuery, access: Asking) -> Response:
    """JPEG thumbnails of up to 100 inputs, one object a line, with one entry in the audit. For a
    text it is the beginning of the text, and for anything else a `problem`. Thumbnails are made on
    request, cached in memory, and never stored."""
    uids = list(dict.fromkeys(body.uids))
    registration, results = await _make_thumbnails(access, model_id, uids, body.edge)
    if shown_uids := [str(uid) for uid in uids if not isinstance(results[uid], StoreError)]:
        access.note_read(
            Action.THUMBNAILS_READ, registration, inferences=shown_uids, edge=body.edge
        )
    lines = [_format_line(uid, results[uid]) for uid in uids]
    if access.request.state.media_type == JSON:
        return Answer({"items": lines})
    return Response(b"".join(encode_json(line) + b"\n" for line in lines), media_type=NDJSON)


@router.add(
    f"GET {INFERENCE}/thumbnail",
    Right.READ_INPUTS,
    "Read the thumbnail of an input",
    410,
    also={200: _PICTURE},
    answer=StreamingResponse,
)
async def get_thumbnail(
    model_id: ModelId,
    inference_id: InferenceId,
    access: Asking,
    edge: Annotated[
        int, Query(ge=16, le=1024, description="The longer edge has at most so many pixels.")
    ] = EDGE,
) -> Response:
    """A JPEG thumbnail of the input of the newest inference of that id."""
    async with looking_up(access) as connection:
        registration, uids = await access.find_inferences(connection, model_id, inference_id)
    uid = uids[0]
    _, results = await _make_thumbnails(access, model_id, [uid], edge)
    result = results[uid]
    if isinstance(result, StoreError):
        raise result
    if isinstance(result, str):
        raise NoThumbnail("The input is text: read its `data`.")
    access.note_read(Action.THUMBNAILS_READ, registration, [uid], edge=edge)
    return Response(result.jpeg, media_type=access.request.state.media_type)


async def _make_thumbnails(
    access: Access, model_id: str, uids: Sequence[UUID], edge: int
) -> tuple[Registration, dict[UUID, ThumbnailResult]]:
    """While they are made no connection is held; those deleted meanwhile are not shown."""
    app = access.app
    if not app.settings.thumbnail_processes:
        raise NoThumbnail("Thumbnails are switched off (INFERENCE_STORE_THUMBNAIL_PROCESSES=0).")
    maker: ThumbnailMaker = app.thumbnails
    registration, inferences = await _find_inferences(access, model_id, uids)
    results = maker.find_cached(inferences, edge)
    if uncached := [inference for inference in inferences if inference.uid not in results]:
        async with app.thumbnail_admission.admit(access.admission_name):
            results |= await maker.make(uncached, edge)
        registration, inferences = await _find_inferences(access, model_id, uids)
    # again of each: what was deleted meanwhile is not shown
    absent = {uid for uid in uids if uid not in {inference.uid for inference in inferences}}
    results |= maker.find_cached(inferences, edge)
    refused = {uid for uid, result in results.items() if isinstance(result, StoreError)}
    if gone := absent | refused:
        maker.cache.forget(registration.model, gone)
    return registration, {uid: _GONE if uid in absent else results[uid] for uid in uids}


async def _find_inferences(
    access: Access, model_id: str, uids: Sequence[UUID]
) -> tuple[Registration, list[Inference]]:
    async with looking_up(access) as connection:
        registration, extent = await access.find_model_to_query(connection, model_id)
        return registration, await read_visible(connection, registration.model, uids, extent.spans)


def _format_line(uid: UUID, result: ThumbnailResult) -> dict[str, Any]:
    empty = dict.fromkeys(ShownThumbnail.model_fields)
    if isinstance(result, StoreError):
        return empty | {"uid": uid, "problem": build_body(result)}
    if isinstance(result, str):
        data = b64encode(result.encode()).decode()
        return empty | {"uid": uid, "content_type": "text/plain", "data": data}
    return {
        "uid": uid,
        "content_type": _JPEG,
        "width": result.size[0],
        "height": result.size[1],
        "picture_width": result.picture[0],
        "picture_height": result.picture[1],
        "data": b64encode(result.jpeg).decode(),
        "problem": None,
    }
