"""Ends an erasure with its certificate. The order makes every crash harmless:

1. list     write the pieces of the list to the bucket, under names made of their content
2. sign     write the signed document to the ledger; its effect sets the erasure's state

After a crash before 2 the pieces are written again. After it the ledger gives the entry its effect.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import certificates, erased_lists, ledger_entries, log, progress
from inference_store.erasure.erased_lists import Erased, write_list
from inference_store.erasure.hash_chain import START, Link
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import CERTIFICATE, BrokenChain, ChainHead, SigningKey
from inference_store.erasure.progress import Erasure, State
from inference_store.erasure.quarantine import has_searched_all
from inference_store.export.erased import ReachedExport, list_reached
from inference_store.index import registrations
from inference_store.inference.errors import Unavailable
from inference_store.platform.failpoints import failpoint
from inference_store.platform.json_encoding import format_instant
from inference_store.platform.metrics import CERTIFICATE_TROUBLE, CERTIFICATES, UNCERTIFIED

_log = structlog.get_logger()
# The reasons for which an erasure ends without a certificate.
UNCERTIFIED_REASONS: Final = ("no_key", "key_missing", "unlisted")
_ACTOR: Final = "retention"
# Between two writes of the head, while certificates are signed one after the other.
_HEAD_SECONDS = 60.0


class Certifier:
    """Signs certificates of erasures. `keys`: the first one signs; the others signed before it.

    Raises ObjectStoreUnavailable, Unavailable and errors of the database; it can then be called
    again.
    """

    def __init__(
        self,
        ledger: Ledger,
        keys: Sequence[SigningKey],
        remaining: "Remaining",
        *,
        head: ChainHead | None = None,
        head_seconds: float = _HEAD_SECONDS,
    ) -> None:
        self._ledger = ledger
        self._engine = ledger.engine
        self._keys = keys
        self._remaining = remaining
        self._head = head
        self._head_seconds = head_seconds
        # the ends that were written last
        self._signed, self._entry = START, START
        self._head_due = 0.0

    @property
    def key(self) -> SigningKey:
        """The key that signs and hashes now."""
        return self._keys[0]

    async def write_head(self, *, at_once: bool = False) -> None:
        """Sign where the chain and the ledger end, in a locked place, unless it says so already.

        It is written once for all certificates of a minute, because every version is read when the
        chain is verified; `at_once` writes it sooner, as the service ends. After a crash between
        two writes the head lags, which is not false, and the next one is written at the start.
        """
        if self._head is None or (time.monotonic() < self._head_due and not at_once):
            return
        async with self._engine.connect() as connection:
            entry = await ledger_entries.read_head(connection)
            signed = await certificates.find_head(connection)
            if signed == self._signed and not (at_once and entry != self._entry):
                return
            known = {key.id for key in await certificates.find_public_keys(connection)}
        # nobody could tell who signed with a key that no document introduces: the next certificate
        # introduces a new key, and until then the one before it signs
        key = next((key for key in self._keys if key.id in known), None)
        if key is None:
            return
        failpoint("retention.certify.head.before")
        text = log.sign_head(key, signed, entry).text
        locked = await asyncio.to_thread(self._head.put, text)
        failpoint("retention.certify.head.after")
        self._signed, self._entry = signed, entry
        self._head_due = time.monotonic() + self._head_seconds
        _log.info("head of the chain", action="chain_head", number=signed.number, locked=locked)

    async def certify(self, erasure: Erasure) -> State:
        """Sign an erasure's certificate; no mark is left, or holds protect the rest. Raises
        BrokenChain."""
        failpoint("retention.certify.before")
        await certificates.introduce_key(self._ledger, self._keys, by=_ACTOR)
        async with self._engine.connect() as connection:
            now = await progress.find_erasure(connection, erasure.id)
            span = await erased_lists.find_dropping_span(connection, erasure.id)
            uncertified = await erased_lists.find_uncertified(connection, erasure.id)
            rows = await certificates.list_certificates(connection, erasure_id=erasure.id)
        if now is None or now.state not in {"certifying", "partly_held"}:
            return erasure.state if now is None else now.state
        if span is not None:
            _log.info("partition is not dropped yet", action="certificate_waits", span=span)
            return "certifying"
        earlier = [log.read_document(row.signed).document for row in rows]
        name = "objects" if now.scope == "object" else "inferences"
        named = sum(int(document["erased"][name]) for document in earlier)
        if named + getattr(uncertified, name) < getattr(now, name):
            # it began without a key
            return await end_uncertified(self._engine, now, "unlisted")
        if not uncertified.batches and now.state == "partly_held":
            return "partly_held"
        names_waived = now.given_up is None or any("given_up" in before for before in earlier)
        if not uncertified.batches and earlier and names_waived:
            async with self._engine.begin() as connection:
                await progress.advance_erasure(connection, now.id, "certified")
            return "certified"
        await self._sign(now, uncertified, earlier)
        return "certified" if now.state == "certifying" else now.state

    async def _sign(
        self, erasure: Erasure, uncertified: Erased, earlier: Sequence[Mapping[str, Any]]
    ) -> None:
        root = await write_list(self._engine, self._ledger.blobs, uncertified.batches)
        failpoint("retention.certify.leaves.after")

        async def make(connection: AsyncConnection, end: Link) -> dict[str, Any]:
            keys = await certificates.find_public_keys(connection)
            found = await erased_lists.find_uncertified(connection, erasure.id)
            if keys[-1].id != self.key.id or found.batches != uncertified.batches:
                raise Unavailable("Another process signed meanwhile: try again.")
            models = await progress.list_models(connection, erasure)
            names = await registrations.names(connection, models)
            held = await progress.count_held(connection, erasure.id)
            exports = describe_exports(await list_reached(connection, erasure.id), earlier)
            remains = [*self._remaining.list_locations(erasure.asked), *list_copies(exports)]
            return make_certificate(
                *(erasure, uncertified, self.key, root, end),
                model_ids=names.values(),
                held=held,
                earlier=earlier,
                exports=exports,
                remains=remains,
            )

        failpoint("retention.certify.put.before")
        signed = await certificates.sign(self._ledger, CERTIFICATE, self.key, make, by=_ACTOR)
        failpoint("retention.certify.put.after")
        CERTIFICATES.inc()
        _log.info("certificate", action="certificate", number=signed.number)


async def end_erasure(
    engine: AsyncEngine, certifier: Certifier | None, erasure: Erasure, state: State
) -> State:
    """Sign the certificate of an erasure in this state, or end it without one if there is no key;
    return its last state."""
    if certifier is not None and state in {"certifying", "partly_held"}:
        try:
            return await certifier.certify(erasure)
        except BrokenChain as broken:
            CERTIFICATE_TROUBLE.inc()
            _log.error("certificates cannot be signed", action="chain_apart", error=str(broken))
    elif certifier is None and state in {"certifying", "deleted"}:
        async with engine.connect() as connection:
            began = (await certificates.find_head(connection)).number > 0
        return await end_uncertified(engine, erasure, "key_missing" if began else "no_key")
    return state


async def end_uncertified(engine: AsyncEngine, erasure: Erasure, reason: str) -> State:
    """End an erasure without a certificate; `reason` as the metric has it."""
    async with engine.begin() as connection:
        await progress.advance_erasure(connection, erasure.id, "deleted")
    UNCERTIFIED.labels(reason).inc()
    _log.warning("no certificate", action="uncertified", id=str(erasure.id), reason=reason)
    return "deleted"


# The documents that are signed.

_METHOD: Final = (
    "Every object was deleted in all its versions, then its key was listed again and not found."
    " What lay in a segment with others was overwritten with zeros, its older versions were"
    " deleted, and it was read back."
    " Then its rows were deleted, in the transaction that wrote the list."
)
_LIST: Final = "RFC 6962 (SHA-256) over entries of 33 bytes: a letter and an HMAC-SHA-256"


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
            "asked": log.hash_values(key, erasure.asked),
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
            "method": _LIST,
            "count": erased.inferences + erased.objects,
            "root": root.hex(),
            "hashed_by": list(erased.hashed_by),
        },
        "verified": {
            "method": _METHOD,
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


def describe_exports(
    exports: Iterable[ReachedExport], earlier: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the member `exports`: copies that the erasure reached, and who has others; without
    what the `earlier` certificates of the erasure name."""
    named = [before for document in earlier for before in document.get("exports", ())]
    described = []
    for export in exports:
        id = str(export.id)
        counted = {"inferences": export.inferences, "parts_deleted": export.parts_deleted}
        counts = _subtract_counts(counted, [before for before in named if before["export"] == id])
        downloads = [
            {
                "by": download.actor,
                "first_at": format_instant(download.first_at),
                "last_at": format_instant(download.last_at),
            }
            for download in export.downloads
        ]
        if counts["inferences"]:
            described.append({"export": id, **counts, "downloads": downloads})
    return described


def list_copies(described: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the places of `remains`: each download of an export."""
    copies = [
        f"export {export['export']}, downloaded by {download['by']} at {download['first_at']}"
        for export in described
        for download in export["downloads"]
    ]
    return [{"where": where, "clear_at": None} for where in copies]


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
