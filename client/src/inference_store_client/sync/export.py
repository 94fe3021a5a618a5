"""An export that the store writes to its bucket."""

from collections.abc import Iterator
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

from .transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(ExportFields):
    """An export as it was when it was read; each method asks the store again."""

    _transport: Transport = field(repr=False, compare=False)

    def refresh(self) -> "Export":
        """Return the export as it is now."""
        request = make_request("GET", make_path("exports", str(self.id)))
        steps = exporting.read_export(request, self._build, self._transport.settings)
        return self._transport.run(steps)

    def wait(self) -> "Export":
        """Return the export once every part is written. Raises ExportFailed if none will be."""
        settings = self._transport.settings
        steps = exporting.wait_until_written(self.id, self._build, settings)
        return self._transport.run(steps)

    def list_parts(self) -> list[ExportPart]:
        """Return its parts, with links. The store notes that you were given them."""
        return self._transport.run(exporting.list_parts(self.id, self._transport.settings))

    def read_part(self, part: ExportPart) -> bytes:
        """Return the bytes of a part, checked by their SHA-256."""
        return self._transport.run(read_part(self.id, part, self._transport.settings))

    def download(self, folder: str | Path) -> list[Path]:
        """Write every part into a folder, once all are written; return the files.

        The folder must be new. It appears when it is whole, and only you may read it. A download
        that is cut off is continued; no part is in memory as a whole.
        """
        return download_parts(self, folder)[1]

    def list_erased(self) -> list[ErasedMember]:
        """Return what erasures took of it, the earliest first: erase it in your copies too."""
        return [*self._transport.iterate(exporting.list_erased(self.id, self._transport.settings))]

    def cancel(self) -> "Export":
        """Stop it, and let the store delete its parts."""
        request = make_request("POST", make_path("exports", str(self.id), "cancel"))
        steps = exporting.read_export(request, self._build, self._transport.settings)
        return self._transport.run(steps)

    def restart(self) -> "Export":
        """Ask its question again: return another export, with parts of its own."""
        request = make_request("POST", make_path("exports", str(self.id), "restart"))
        steps = exporting.read_export(request, self._build, self._transport.settings)
        return self._transport.run(steps)

    def _wait_for_parts(self) -> "tuple[Export, list[ExportPart]]":
        settings = self._transport.settings
        return self._transport.run(exporting.wait_for_parts(self.id, self._build, settings))

    def _stream_part(self, part: ExportPart) -> Iterator[bytes | Restart]:
        return self._transport.iterate(stream_part(self.id, part, self._transport.settings))

    def _build(self, members: Json) -> "Export":
        return decode(Export, members, _transport=self._transport)


def download_parts(export: Export, folder: str | Path) -> tuple[list[ExportPart], list[Path]]:
    """Download an export as `Export.download` does; return its parts and the files."""
    names = []
    with NewFolder(Path(folder)) as new:
        export, parts = export._wait_for_parts()
        for part in parts:
            if part.state != "removed":
                names.append(exporting.name_part(export, part))
                with exporting.open_part(new, names[-1]) as write:
                    for piece in export._stream_part(part):
                        write(piece)
        new.publish()
    return parts, [new.target / name for name in names]
