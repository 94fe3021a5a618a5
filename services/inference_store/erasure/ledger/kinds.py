"""Everything that is written to the ledger before it takes effect: the one list."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain, holds, policies
from inference_store.erasure.erasures import entries, objects, waiver
from inference_store.erasure.housekeeping import removed_models

from .entry import Body

Apply = Callable[[AsyncConnection, Body, datetime, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entry.

    `apply(connection, body, at, actor)` gives it its effect, in a transaction of its caller. It
    names models by their ids, refuses nothing, and may be done again. `rehearsed`: it is tried
    before the entry is put, and taken back, so that no entry is put that could not be applied.
    """

    name: str
    sentence: str
    apply: Apply
    rehearsed: bool = True


async def _nothing(_: AsyncConnection, body: Body, at: datetime, actor: str) -> None:
    """An entry that says something of the ledger itself."""


KINDS: Sequence[Kind] = (
    Kind("begun_anew", "The ledger goes on in a new bucket or under a new prefix.", _nothing),
    Kind("policy_set", "A retention policy was set.", policies.apply_set),
    Kind("policy_removed", "A retention policy was removed.", policies.apply_set),
    Kind("policy_revoked", "A policy that waited to begin was taken back.", policies.apply_revoked),
    Kind("model_moved", "A model was put into another project.", policies.apply_moved),
    Kind("model_removed", "A model was removed, and its policy.", removed_models.apply_removed),
    Kind("hold_placed", "A legal hold was placed.", holds.apply_placed),
    Kind("hold_changed", "Another hold was put in the place of one.", holds.apply_changed),
    Kind("hold_released", "A legal hold was released.", holds.apply_released),
    Kind("audit_checkpoint", "Where the audit's chain stood.", audit_chain.apply_checkpoint),
    Kind("erasure_requested", "An erasure was asked for.", entries.apply_requested),
    Kind(
        "erasure_batch",
        "Inferences are about to be marked for an erasure: their uids and objects.",
        entries.apply_batch,
        rehearsed=False,
    ),
    Kind(
        "orphans_requested",
        "An erasure of the orphans of a reconciliation was asked for.",
        objects.apply_requested,
    ),
    Kind(
        "orphans_batch",
        "Objects that no inference names are about to be erased: their keys.",
        objects.apply_batch,
        rehearsed=False,
    ),
    Kind("erasure_cancelled", "An erasure was cancelled.", entries.apply_cancelled, False),
    Kind(
        "erasure_given_up",
        "What holds keep of an erasure was given up: the uids.",
        waiver.apply_waiver,
        rehearsed=False,
    ),
)
