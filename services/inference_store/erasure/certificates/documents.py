"""What a certificate says in words: the documents that are signed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from .chain import Link
from .erased import Erased
from .keys import PublicKey, SigningKey
from .signed import canonical

METHOD: Final = (
    "Every object was deleted in all its versions, then its key was listed again and not found."
    " Then its rows were deleted, in the transaction that wrote the list."
)
LIST: Final = "RFC 6962 (SHA-256) over entries of 33 bytes: a letter and an HMAC-SHA-256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which erasure is certified, why it was made, and how many inferences each hold kept."""

    id: UUID
    model_ids: Sequence[str]
    cause: str
    scope: str
    requested_at: datetime
    requested_by: str | None
    run: UUID | None
    held: Mapping[UUID, int] = field(default_factory=dict)
    # by what it was asked for, without any value: see `without_values`
    by: Mapping[str, Any] | None = None
    # which rules of which versions of policies, where a policy did
    decided_by: Sequence[Mapping[str, Any]] = ()
    # who gave up what holds kept, and how many by hold
    given_up: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Remaining:
    """Where something may be left that no erasure reaches, and how long events, what entries of the
    ledger say, and entries of the audit are kept from now on."""

    events_seconds: float
    ledger_seconds: float
    audit_seconds: float

    def places(self) -> list[dict[str, Any]]:
        """Each with the time when the last of it is gone by itself; null: nobody can say."""
        events = _after(self.events_seconds)
        until = {
            "Kafka, by the topic's retention": events,
            "spools of proxies that are away": events,
            "the ledger of the bucket: what its entries say": _after(self.ledger_seconds),
            "the audit: who did what and when, without erased values": _after(self.audit_seconds),
            "legal holds: what they keep, and what they and policies in force say": None,
            "exports, and copies that readers made": None,
            "backups of Postgres and of the bucket": None,
        }
        return [{"where": where, "clear_at": at} for where, at in until.items()]


def _after(seconds: float) -> str | None:
    return instant(datetime.now(UTC) + timedelta(seconds=seconds))


def certificate_of(
    asked: Asked,
    erased: Erased,
    counts: Mapping[str, Any],
    root: bytes,
    *,
    place: Link,
    remains: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The document of an erasure's certificate. `counts`: versions, bytes, rows by table;
    `remains`: see `Remaining`."""
    return {
        **_placed(place),
        "erasure": {
            "id": str(asked.id),
            "model_ids": list(asked.model_ids),
            "cause": asked.cause,
            "scope": asked.scope,
            "requested_at": instant(asked.requested_at),
            "requested_by": asked.requested_by,
            "asked": asked.by,
            "run": None if asked.run is None else str(asked.run),
            "decided_by": [dict(each) for each in asked.decided_by],
        },
        "erased": {
            "inferences": erased.inferences,
            "objects": erased.objects,
            "oldest": instant(erased.oldest),
            "newest": instant(erased.newest),
            **counts,
        },
        "held": [{"hold": str(hold), "inferences": count} for hold, count in asked.held.items()],
        **_given_up(asked.given_up),
        "leaves": {
            "method": LIST,
            "count": erased.inferences + erased.objects,
            "root": root.hex(),
            "hashed_by": list(erased.hashed_by),
        },
        "verified": {
            "method": METHOD,
            "first_at": instant(erased.first_at),
            "last_at": instant(erased.last_at),
        },
        "remains": [dict(each) for each in remains],
    }


def _given_up(said: Mapping[str, Any] | None) -> dict[str, Any]:
    """What stays although it was asked for, since nobody waits for the holds any more."""
    if said is None:
        return {}
    held = [{"hold": hold, "inferences": n} for hold, n in said.get("holds", {}).items()]
    return {"given_up": {"by": said["by"], "held": held}}


def without_values(key: SigningKey, asked: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What an erasure was asked for: a filter and a subject by keyed hashes, ids by how many."""
    if asked is None:
        return None
    said: dict[str, Any] = {}
    if "filter" in asked:
        said["filter"] = {"keyed_hash": keyed_hash(key, "filter", asked["filter"])}
    if "subject" in asked:
        subject = asked["subject"]
        said["subject"] = {"keyed_hash": keyed_hash(key, "subject", subject)}
    if "report" in asked:
        said["report"] = asked["report"]
    if "inference_ids" in asked:
        said["inference_ids"] = len(asked["inference_ids"])
    return said


def keyed_hash(key: SigningKey, kind: str, value: Any) -> str:
    """What a document says instead of a value."""
    return key.keyed_hash(kind, canonical(value).encode()).hex()


def key_of(key: PublicKey, *, place: Link) -> dict[str, Any]:
    """The document of a key, to be signed by the key before it (the first: by itself)."""
    return {**_placed(place), "key": key.id, "public_key": key.text}


def _placed(before: Link) -> dict[str, Any]:
    return {
        "number": before.number + 1,
        "previous": before.hash.hex(),
        "issued_at": instant(datetime.now(UTC)),
    }


def instant(at: datetime | None) -> str | None:
    """RFC 3339, UTC, with microseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def without(counted: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of an erasure without those that its earlier certificates have said.

    Never below 0: a restored backup counts again, and finds what was certified gone."""
    left = dict(counted)
    for said in earlier:
        for name, count in left.items():
            if isinstance(count, Mapping):
                left[name] = without(count, [said.get(name, {})])
            else:
                left[name] = max(0, count - said.get(name, 0))
    return left
