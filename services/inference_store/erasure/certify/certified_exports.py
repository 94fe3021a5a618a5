"""The exports that a certificate names: copies that the erasure reached, and who has others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from inference_store.erasure.log.hash_chain import format_instant


@dataclass(frozen=True, slots=True)
class CertifiedExport:
    """What an erasure took of an export. `downloads`: by whom, and the first and the last time."""

    id: UUID
    inferences: int
    parts_deleted: int
    downloads: Sequence[tuple[str, datetime, datetime]]
    is_restored: bool = False
    """Who downloaded it before Postgres was restored is unknown."""


def describe_exports(
    exports: Iterable[CertifiedExport], earlier: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the member `exports`, minus what the `earlier` certificates of the erasure name."""
    documents = list(earlier)
    described = []
    for export in exports:
        before = _sum_earlier(str(export.id), documents)
        inferences = max(0, export.inferences - before["inferences"])
        if inferences:
            parts = max(0, export.parts_deleted - before["parts_deleted"])
            described.append(_describe_export(export, inferences, parts))
    return described


def list_copies(described: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the places of `remains`: each download of an export, and those that nobody knows."""
    copies = []
    for export in described:
        copies += [
            f"export {export['export']}, downloaded by {download['by']} at {download['first_at']}"
            for download in export["downloads"]
        ]
        if "restored" in export:
            text = "who downloaded it before Postgres was restored is unknown"
            copies.append(f"export {export['export']}: {text}")
    return [{"where": where, "clear_at": None} for where in copies]


def _sum_earlier(export: str, earlier: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    named = [
        before
        for document in earlier
        for before in document.get("exports", ())
        if before["export"] == export
    ]
    return {name: sum(before[name] for before in named) for name in ("inferences", "parts_deleted")}


def _describe_export(export: CertifiedExport, inferences: int, parts: int) -> dict[str, Any]:
    downloads = [
        {"by": by, "first_at": format_instant(first_at), "last_at": format_instant(last_at)}
        for by, first_at, last_at in export.downloads
    ]
    return {
        "export": str(export.id),
        "inferences": inferences,
        "parts_deleted": parts,
        "downloads": downloads,
        **({"restored": True} if export.is_restored else {}),
    }
