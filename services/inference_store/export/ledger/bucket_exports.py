"""The exports as they lie in the bucket, for a Postgres that was restored from an older backup.

All of it blocks, and raises ObjectStoreUnavailable.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from inference_store.export.blob_choices import BlobChoice
from inference_store.export.jobs.object_keys import (
    MEMBERS,
    PARTS,
    make_head_key,
    make_manifest_key,
    make_prefix,
)
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import EXPORTS
from inference_store.objects import Blobs

_PAGE: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_NUMBER: Final = re.compile(r"(\d+)(-.*)?", re.ASCII)


class UnreadableExport(Exception):
    """The head of an export is missing, or no head, or does not fit what is stored."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the bucket says of an export."""

    model_id: str
    format: str
    include: list[str]
    requested_by: str
    requested_at: datetime
    expires_at: datetime
    blobs: BlobChoice


class BucketExports:
    """Reads and deletes objects of exports."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default

    def find_after(self, export: UUID | None) -> UUID | None:
        """Return the first export after another, in the order of their texts; None: there is
        none."""
        # the first character after the slash: after every object of that export
        after = EXPORTS if export is None else f"{EXPORTS}{export}0"
        while (name := self._blobs.first_after(self._bucket, EXPORTS, after)) is not None:
            text = name.removeprefix(EXPORTS).partition("/")[0]
            try:
                return UUID(text)
            except ValueError:  # nothing that the store wrote
                after = f"{EXPORTS}{text}0"
        return None

    def read_head(self, export: UUID) -> Head:
        """Read a head. Raises UnreadableExport."""
        try:
            head = json.loads(self._get(make_head_key(export), _MOST_BYTES))
            requested_at, expires_at = (
                datetime.fromisoformat(head[name]) for name in ("requested_at", "expires_at")
            )
            return Head(
                model_id=head["model_id"],
                format=head["format"],
                include=head["include"],
                requested_by=head["requested_by"],
                requested_at=requested_at,
                expires_at=expires_at,
                blobs=head.get("blobs", "none"),
            )
        except (BlobMissing, ValueError, KeyError, TypeError) as error:
            raise UnreadableExport(str(error)) from error

    def read_manifest(self, export: UUID) -> dict[str, dict[str, Any]] | None:
        """Return the parts of a manifest by their keys; None: the export was not done."""
        try:
            manifest = json.loads(self._get(make_manifest_key(export), _MOST_BYTES))
            return {part["key"]: part for part in manifest["parts"]}
        except (BlobMissing, ValueError, KeyError, TypeError):
            return None

    def list_members(self, export: UUID) -> Iterator[tuple[int, StorageKey]]:
        """Yield the number and the key of each list."""
        return self._list_numbered(make_prefix(export) + MEMBERS)

    def list_parts(self, export: UUID) -> Iterator[tuple[int, StorageKey]]:
        """Yield the number and the key of each object of a part; a part may have several."""
        return self._list_numbered(make_prefix(export) + PARTS)

    def read_list(self, key: StorageKey) -> bytes:
        """Return a list of members."""
        return self._get(key.key, _MOST_BYTES)

    def delete(self, keys: list[StorageKey]) -> list[str]:
        """Delete objects in every version; return why some stay."""
        return [f"{fault.key}: {fault.message}" for fault in self._blobs.delete_objects(keys)]

    def _get(self, name: str, limit: int) -> bytes:
        return self._blobs.get(StorageKey(self._bucket, name), limit=limit)

    def _list_numbered(self, prefix: str) -> Iterator[tuple[int, StorageKey]]:
        after, more = "", True
        while more:
            page = self._blobs.page(self._bucket, prefix, after=after, limit=_PAGE)
            for listed in page:
                match = _NUMBER.fullmatch(listed.place.key.removeprefix(prefix))
                if match is not None:
                    yield int(match[1]), listed.place
            more = len(page) == _PAGE
            after = page[-1].place.key if page else after
