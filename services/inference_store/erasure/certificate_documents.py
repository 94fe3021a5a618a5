"""Makes the documents of certificates, which are signed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from inference_store.erasure.erased_lists import Erased
from inference_store.erasure.hash_chain import Link, canonical, format_instant
from inference_store.erasure.log import SigningKey
from inference_store.erasure.quarantine import has_searched_all

METHOD: Final = (
    "Every object was deleted in all its versions, then its key was listed again and not found."
    " Then its rows were deleted, in the transaction that wrote the list."
)
LIST: Final = "RFC 6962 (SHA-256) over entries of 33 bytes: a letter and an HMAC-SHA-256"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedRequest:
    """The erasure that is certified: its request, and how many inferences each hold kept."""

    id: UUID
    model_ids: Sequence[str]
    cause: str
    scope: str
    requested_at: datetime
    requested_by: str | None
    run: UUID | None
    held: Mapping[UUID, int] = field(default_factory=dict)
    # what was requested, without any value: see `hash_values`
    by: Mapping[str, Any] | None = None
    # which rules of which versions of policies, if a policy did
    decided_by: Sequence[Mapping[str, Any]] = ()
    # who waived what holds kept, and how many by hold
    given_up: Mapping[str, Any] | None = None


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
    request: CertifiedRequest,
    erased: Erased,
    counts: Mapping[str, Any],
    root: bytes,
    *,
    previous: Link,
    remains: Sequence[Mapping[str, Any]],
    exports: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the document of an erasure's certificate.

    `counts`: versions, bytes, rows by table; `exports`: see `certified_exports`; `remains`: see
    `Remaining`.
    """
    return {
        **previous.next_members,
        "issued_at": format_instant(datetime.now(UTC)),
        "erasure": {
            "id": str(request.id),
            "model_ids": list(request.model_ids),
            "cause": request.cause,
            "scope": request.scope,
            "requested_at": format_instant(request.requested_at),
            "requested_by": request.requested_by,
            "asked": request.by,
            "run": None if request.run is None else str(request.run),
            "decided_by": [dict(rule) for rule in request.decided_by],
        },
        "erased": {
            "inferences": erased.inferences,
            "objects": erased.objects,
            "oldest": format_instant(erased.oldest),
            "newest": format_instant(erased.newest),
            **counts,
        },
        "held": [{"hold": str(hold), "inferences": count} for hold, count in request.held.items()],
        **_describe_waiver(request.given_up),
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


def _describe_waiver(waived: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what stays although it was requested, because nobody waits for the holds."""
    if waived is None:
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


def subtract_counts(
    counted: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return counts of an erasure minus those of its earlier certificates.

    Never below 0: a restored backup counts again, and finds what was certified gone.
    """
    rest = dict(counted)
    for certified in earlier:
        for name, count in rest.items():
            if isinstance(count, Mapping):
                rest[name] = subtract_counts(count, [certified.get(name, {})])
            else:
                rest[name] = max(0, count - certified.get(name, 0))
    return rest
