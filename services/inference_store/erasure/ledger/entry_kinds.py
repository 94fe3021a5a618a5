"""The kinds of entries: the one list of what is written to the ledger before it takes effect."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain, holds, policies, requests
from inference_store.erasure.housekeeping import removed_models
from inference_store.erasure.mark import batches
from inference_store.erasure.mark.held_deletions import apply_ended, apply_spared
from inference_store.erasure.mark.orphan_objects import apply_orphans_batch, apply_orphans_requested
from inference_store.erasure.quarantine.removal import apply_removal
from inference_store.index import api_keys

from .entries import Body

Apply = Callable[[AsyncConnection, Body, datetime, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entry.

    `apply(connection, body, at, actor)` gives an entry its effect, in a transaction of the caller.
    It names models by their ids, refuses nothing, and can be repeated. `rehearsed`: it is tried
    and rolled back before the entry is put, so that no entry is put that cannot be applied.
    """

    name: str
    sentence: str
    apply: Apply
    rehearsed: bool = True


async def _do_nothing(_: AsyncConnection, body: Body, at: datetime, actor: str) -> None:
    """Do nothing: the entry is about the ledger itself."""


KINDS: Sequence[Kind] = (
    Kind("begun_anew", "The ledger goes on in a new bucket or under a new prefix.", _do_nothing),
    Kind("policy_set", "A retention policy was set.", policies.apply_set),
    Kind("policy_removed", "A retention policy was removed.", policies.apply_set),
    Kind("policy_revoked", "A policy that waited to begin was taken back.", policies.apply_revoked),
    Kind("model_moved", "A model was put into another project.", policies.apply_moved),
    Kind("model_removed", "A model was removed, and its policy.", removed_models.apply_removed),
    Kind("hold_placed", "A legal hold was placed.", holds.apply_placed),
    Kind("hold_changed", "Another hold was put in the place of one.", holds.apply_changed),
    Kind("hold_released", "A legal hold was released.", holds.apply_released),
    Kind("audit_checkpoint", "Where the audit's chain stood.", audit_chain.apply_checkpoint),
    Kind("erasure_requested", "An erasure was asked for.", batches.apply_requested),
    Kind(
        "erasure_batch",
        "Inferences are about to be marked for an erasure: their uids and objects.",
        batches.mark_batch,
        rehearsed=False,
    ),
    Kind(
        "quarantine_erased",
        "Dead letters or parked events are about to be erased: their rows and objects.",
        apply_removal,
        rehearsed=False,
    ),
    Kind(
        "erasure_spared",
        "Inferences that holds keep were taken out of erasures that had marked them: the uids.",
        apply_spared,
        rehearsed=False,
    ),
    Kind(
        "erasure_ended",
        "All that an erasure had marked was erased, but for what these holds keep.",
        apply_ended,
        rehearsed=False,
    ),
    Kind(
        "orphans_requested",
        "An erasure of the orphans of a reconciliation was asked for.",
        apply_orphans_requested,
    ),
    Kind(
        "orphans_batch",
        "Objects that no inference names are about to be erased: their keys.",
        apply_orphans_batch,
        rehearsed=False,
    ),
    Kind("erasure_cancelled", "An erasure was cancelled.", batches.apply_cancelled, False),
    Kind(
        "erasure_given_up",
        "What holds keep of an erasure was given up: the uids.",
        requests.apply_waiver,
        rehearsed=False,
    ),
    Kind("key_made", "An API key was made, or confirmed after a restore.", api_keys.apply_told),
    Kind("key_rotated", "An API key got a new text; its hash.", api_keys.apply_told),
    Kind("key_revoked", "An API key was revoked.", api_keys.apply_told),
)
