"""Makes the documents of certificates, which are signed."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from inference_store.erasure.erased_lists import Erased
from inference_store.erasure.hash_chain import Link, canonical, format_instant
from inference_store.erasure.log import SigningKey
from inference_store.erasure.progress import Erasure
from inference_store.erasure.quarantine import has_searched_all

METHOD: Final = (
    "Every object was deleted in all its versions, then its key was listed again and not found."
    " Then its rows were deleted, in the transaction that wrote the list."
)
LIST: Final = "RFC 6962 (SHA-256) over entries of 33 bytes: a letter and an HMAC-SHA-256"


@dataclass(frozen=True, slots=True)
class Remaining:
    """The keeping times of events, the ledger's content and the audit: no erasure reaches them."""

    events_seconds: float
    ledger_seconds: float
    audit_seconds: float

    def list_locations(self, asked: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return each place with the time when the last of it is gone by itself; null: unknown.

        `asked`: the criteria of the erasure; one of a subject may have left some events unsearched.
        """
        events = _format_after(self.events_seconds)
        until = {
            "Kafka, by the topic's retention": events,
            "spools of proxies that are away": events,
            "the ledger of the bucket: what its entries say": _format_after(self.ledger_seconds),
            "the audit: who did what and when, without erased values": _format_after(
                self.audit_seconds
            ),
            "legal holds: what they keep, and what they and policies in force say": None,
            "exports, and copies that readers made": None,
            "backups of Postgres and of the bucket": None,
            "Postgres' files: pages until they are vacuumed and used again, write-ahead log": None,
            "the object store's own trash: what it removes from its disks later": None,
        }
        if "subject" in (asked or {}) and not has_searched_all(asked or {}):
            until["dead letters and parked events of no registered model"] = None
        return [{"where": where, "clear_at": at} for where, at in until.items()]


def _format_after(seconds: float) -> str | None:
    return format_instant(datetime.now(UTC) + timedelta(seconds=seconds))


def make_certificate(
    erasure: Erasure,
    erased: Erased,
    key: SigningKey,
    root: bytes,
    previous: Link,
    *,
    model_ids: Collection[str],
    held: Mapping[UUID, int],
    earlier: Sequence[Mapping[str, Any]],
    exports: Sequence[Mapping[str, Any]],
    remains: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the next document of an erasure: without what its `earlier` ones count.

    `key`: which hashes its values; `held`: how many inferences each hold kept; `exports`: see
    `describe_exports`; `remains`: see `Remaining`.
    """
    counted = {"versions": erasure.versions, "bytes": erasure.bytes, "rows": erasure.table_rows}
    return {
        **previous.next_members,
        "issued_at": format_instant(datetime.now(UTC)),
        "erasure": {
            "id": str(erasure.id),
            "model_ids": sorted(model_ids),
            "cause": erasure.cause,
            "scope": erasure.scope,
            "requested_at": format_instant(erasure.requested_at),
            "requested_by": erasure.requested_by,
            "asked": hash_values(key, erasure.asked),
            "run": None if erasure.run is None else str(erasure.run),
            "decided_by": erasure.decided_by,
        },
        "erased": {
            "inferences": erased.inferences,
            "objects": erased.objects,
            "oldest": format_instant(erased.oldest),
            "newest": format_instant(erased.newest),
            **_subtract_counts(counted, [document["erased"] for document in earlier]),
        },
        "held": [{"hold": str(hold), "inferences": count} for hold, count in held.items()],
        **_describe_waiver(erasure),
        "leaves": {
            "method": LIST,
            "count": erased.inferences + erased.objects,
            "root": root.hex(),
            "hashed_by": list(erased.hashed_by),
        },
        "verified": {
            "method": METHOD,
            "first_at": format_instant(erased.first_at),
            "last_at": format_instant(erased.last_at),
        },
        "exports": [dict(export) for export in exports],
        "remains": [dict(place) for place in remains],
    }


def _describe_waiver(erasure: Erasure) -> dict[str, Any]:
    """Return what stays although it was requested, because nobody waits for the holds."""
    waived = erasure.given_up
    if waived is None or erasure.state != "certifying":
        return {}
    held = [{"hold": hold, "inferences": n} for hold, n in waived.get("holds", {}).items()]
    return {"given_up": {"by": waived["by"], "held": held}}


def hash_values(key: SigningKey, criteria: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a request of an erasure with keyed hashes for values, and a count for ids."""
    if criteria is None:
        return None
    hashed: dict[str, Any] = {}
    if "filter" in criteria:
        hashed["filter"] = {"keyed_hash": hash_value(key, "filter", criteria["filter"])}
    if "subject" in criteria:
        subject = criteria["subject"]
        hashed["subject"] = {"keyed_hash": hash_value(key, "subject", subject)}
    if "report" in criteria:
        hashed["report"] = criteria["report"]
    if "inference_ids" in criteria:
        hashed["inference_ids"] = len(criteria["inference_ids"])
    return hashed


def hash_value(key: SigningKey, kind: str, value: Any) -> str:
    """Return the keyed hash that stands for a value in a document."""
    return key.keyed_hash(kind, canonical(value).encode()).hex()


def _subtract_counts(
    counted: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return counts of an erasure minus those of its earlier certificates.

    Never below 0: a restored backup counts again, and finds what was certified gone.
    """
    rest = dict(counted)
    for certified in earlier:
        for name, count in rest.items():
            if isinstance(count, Mapping):
                rest[name] = _subtract_counts(count, [certified.get(name, {})])
            else:
                rest[name] = max(0, count - certified.get(name, 0))
    return rest
