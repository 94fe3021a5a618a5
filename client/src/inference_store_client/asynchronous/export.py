"""An export that the store writes to its bucket."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from inference_store_client import exporting
from inference_store_client.chunks import Restart
from inference_store_client.decoding import decode
from inference_store_client.json_text import Json
from inference_store_client.new_folder import NewFolder
from inference_store_client.part_download import read_part, stream_part
from inference_store_client.requests import make_path, make_request
from inference_store_client.values.exports import (
    ErasedMember,
    ExportFields,
    ExportPart,
)

from .transport import AsyncTransport


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
