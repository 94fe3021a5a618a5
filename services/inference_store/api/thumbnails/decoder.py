"""Asks a process for thumbnails, and ends it if it does not answer in time."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from inference_store.inference.errors import NoThumbnail

from .wire import ANSWER, MADE, REFUSALS, REQUEST

PICTURE_SECONDS: Final = 10.0
"""A picture takes no longer."""
_MOST_THUMBNAIL_BYTES: Final = 2 * 1024 * 1024
_COMMAND: Final = (sys.executable, "-P", "-m", "inference_store.api.thumbnails.worker")
# Nothing else of the environment: it holds secrets.
_NEEDED: Final = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A thumbnail as JPEG, with its size and that of its picture."""

    jpeg: bytes
    size: tuple[int, int]
    picture: tuple[int, int]


class Decoder:
    """A process that makes thumbnails one after the other; as a context manager it ends.

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
            await self._end()
            raise NoThumbnail("The picture takes too long to decode.") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._end()
            raise NoThumbnail("The picture could not be decoded.") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

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
            environment = {name: os.environ[name] for name in _NEEDED if name in os.environ}
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
            )
        return self._process

    async def _end(self) -> None:
        """Kill the process: it has nothing to lose."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
