"""What is asked for: an erasure by its criteria, its cancellation, and the waiver of what holds
protect.

A filter is resolved when it is sent, and its meaning never changes. A subject is a metadata key
with a value, under the type that is named, or under every type that the key was seen with. An
erasure can be cancelled until the first object is being deleted. The row of the erasure decides:
it is cancelled, or its deletion has begun; its rest is waived, or marked again as a hold is
released; never both. The service does the rest, a batch at a time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import case, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.key_registry import Models
from inference_store.index.sidecars import among
from inference_store.index.tables import erasing, erasure, erasure_held, erasure_model
from inference_store.inference.errors import Conflict, Invalid, UnknownKey
from inference_store.inference.json_text import write_json
from inference_store.query.cql2 import Node, resolved_in, to_json, to_text
from inference_store.query.cql2.tree import Operation, SourceRange
from inference_store.query.filters import certain
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node, of_ids
from inference_store.query.filters.names import KnownKeys, find_known_keys, names_in
from inference_store.query.filters.typed import Predicate
from inference_store.query.lookup import parse_uid
from inference_store.query.properties import find_operator

from .progress import COLUMNS, Erasure

_TYPES = ("string", "float", "bool", "timestamp")
_EQUALS = find_operator("eq")


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of inferences. `type` None: every type that the key was seen with."""

    key: str
    type: str | None
    value: str

    @property
    def stored(self) -> dict[str, Any]:
        """The form in `erasure.asked`."""
        return {"subject": {"key": self.key, "type": self.type, "value": self.value}}


async def describe_filter(
    connection: AsyncConnection, models: Models, tree: Node, text: str | None
) -> dict[str, Any]:
    """Return a filter as `erasure.asked` has it; `text`: as it was written.

    Relative times are replaced by their instants. Raises UnknownKey, ImpossibleComparison,
    InvalidFilter, NotKept.
    """
    keys = await find_known_keys(connection, models, names_in(tree))
    check(tree, keys, source=text)  # a key that nobody has is a typo: it is refused
    saved_filter = certain.save(tree, keys, source=text)
    if text is not None and resolved_in(tree):
        text = to_text(tree)
    return {"filter": text or write_json(to_json(tree)), "saved": saved_filter.text}


async def describe_subject(
    connection: AsyncConnection, models: Models, subject: Subject
) -> dict[str, Any]:
    """Return a subject as `erasure.asked` has it. Raises Invalid, ImpossibleComparison for its
    type."""
    await _build_subject_predicate(connection, models, subject)
    return subject.stored


async def find_unknown_key(
    connection: AsyncConnection, models: Models, subject: Subject
) -> UnknownKey | None:
    """Return the refusal of a subject whose key no model has seen; None: one has."""
    keys = await find_known_keys(connection, models, {subject.key})
    try:
        check(metadata_node(_make_condition(subject), keys), keys)
    except UnknownKey as refusal:
        return refusal
    except Invalid:
        return None  # the key is known, and no value of it is of this type
    return None


def describe_ids(inference_ids: Sequence[str]) -> dict[str, Any]:
    """Return ids as `erasure.asked` has them. Raises Invalid for a malformed `uid:`."""
    for inference_id in inference_ids:
        parse_uid(inference_id)
    return {"inference_ids": list(dict.fromkeys(inference_ids))}


def find_subject(criteria: Mapping[str, Any] | None) -> Subject | None:
    """Return the subject, if the request has one whose value is not redacted yet."""
    members = (criteria or {}).get("subject")
    return None if members is None or "value" not in members else Subject(**members)


async def build_predicate(
    connection: AsyncConnection, models: Models, criteria: Mapping[str, Any]
) -> Predicate:
    """Return the predicate that inferences must satisfy to be erased."""
    if "saved" in criteria:
        return await certain.load(connection, criteria["saved"])
    if (subject := find_subject(criteria)) is not None:
        return await _build_subject_predicate(connection, models, subject)
    if "inference_ids" in criteria:
        return check(of_ids(criteria["inference_ids"]), KnownKeys()).predicate
    raise Invalid("The erasure does not say what it selects.")


async def _build_subject_predicate(
    connection: AsyncConnection, models: Models, subject: Subject
) -> Predicate:
    keys = await find_known_keys(connection, models, {subject.key})
    condition = _make_condition(subject)
    nodes = [metadata_node(condition, keys)] if subject.type else _list_typed_nodes(condition, keys)
    if not nodes:
        nodes = [metadata_node(condition, keys)]
    several = Operation("or", tuple(nodes), at=SourceRange("subject"))
    node = nodes[0] if len(nodes) == 1 else several
    return check(node, keys, unknown_keys="accept", is_saved=True).predicate


def _make_condition(subject: Subject) -> MetadataEntry:
    assert _EQUALS is not None
    return MetadataEntry("subject", subject.key, subject.type, _EQUALS, subject.value)


def _list_typed_nodes(condition: MetadataEntry, keys: KnownKeys) -> list[Node]:
    nodes = []
    for name in _TYPES:
        try:
            nodes.append(metadata_node(replace(condition, type=name), keys))
        except Invalid:
            continue  # the value is not of this type, or the key was never seen with it
    return nodes


async def request_erasure(
    connection: AsyncConnection,
    *,
    models: Sequence[int],
    criteria: Mapping[str, Any],
    by: str,
    id: UUID,
    at: datetime,
) -> Erasure:
    """Make an erasure by criteria, and return it; by a `report`, of its orphans. Repeatable with
    the same `id`."""
    cause, scope = ("orphans", "object") if "report" in criteria else ("request", "inference")
    values = {"id": id, "cause": cause, "scope": scope, "state": "pending"}
    single_model = models[0] if len(models) == 1 else None
    inserted = insert(erasure).values(
        **values, model=single_model, asked=dict(criteria), requested_by=by, requested_at=at
    )
    await connection.execute(inserted.on_conflict_do_nothing())
    rows = [{"erasure": id, "model": model} for model in models]
    if rows:
        await connection.execute(insert(erasure_model).on_conflict_do_nothing(), rows)
    stored = await connection.execute(select(*COLUMNS).where(erasure.c.id == id))
    return Erasure.model_validate(stored.one())


_NOT_YET = ("pending", "marking", "failed", "partly_held", "cancelling", "cancelled")


async def request_cancellation(connection: AsyncConnection, id: UUID) -> Erasure:
    """Ask the service to remove the marks; repeatable. Raises Conflict if it is too late."""
    here = erasure.c
    state = case((here.state == "cancelled", here.state), else_="cancelling")
    where = (here.id == id, here.deleting_since.is_(None), here.state.in_(_NOT_YET))
    changed = erasure.update().where(*where).values(state=state).returning(*COLUMNS)
    row = (await connection.execute(changed)).first()
    if row is None:
        detail = "cannot be cancelled: it has begun to delete objects, or is over"
        raise Conflict(f"The erasure {id} {detail}.")
    return Erasure.model_validate(row)


async def remove_pending_of(connection: AsyncConnection, id: UUID, *, limit: int) -> int:
    """Remove marks of an erasure, and return how many. Queries show what no other erasure has
    marked."""
    here = erasing.c
    some = select(here.model, here.uid, here.scope).where(here.erasure == id).limit(limit)
    marks = tuple_(here.model, here.uid, here.scope)
    gone = erasing.delete().where(here.erasure == id, marks.in_(some))
    return (await connection.execute(gone)).rowcount


async def request_waiver(connection: AsyncConnection, id: UUID, *, by: str) -> Erasure:
    """Ask the service to waive what holds protect; repeatable.

    Raises Conflict if they protect nothing of it, or if it goes on already.
    """
    here = erasure.c
    given_up = func.coalesce(here.given_up, func.jsonb_build_object("by", by))
    where = (here.id == id, here.state.in_(("partly_held", "giving_up")))
    changed = erasure.update().where(*where).values(state="giving_up", given_up=given_up)
    row = (await connection.execute(changed.returning(*COLUMNS))).first()
    if row is None:
        raise Conflict(f"The erasure {id} is not `partly_held`: there is no rest to give up.")
    return Erasure.model_validate(row)


async def find_held_rest(
    connection: AsyncConnection, stored_erasure: Erasure, *, limit: int
) -> dict[str, Any] | None:
    """Return the next inferences that holds protect, of one model, as the ledger has them; None: no
    more."""
    here = erasure_held.c
    query = select(here.model, here.uid, here.hold).where(here.erasure == stored_erasure.id)
    rows = list(await connection.execute(query.order_by(here.model, here.uid).limit(limit)))
    if not rows:
        return None
    model = rows[0].model
    name = (await registrations.names(connection, {model})).get(model)
    if name is None:
        raise Conflict("A model of the erasure is no longer registered.")
    return {
        "erasure": str(stored_erasure.id),
        "by": (stored_erasure.given_up or {}).get("by"),
        "model_id": name,
        "rest": [[str(row.uid), str(row.hold)] for row in rows if row.model == model],
    }


async def apply_waiver(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> None:
    """Remove these inferences from the erasure. Repeatable.

    A replay may find them marked: a hold that came after the mark had removed it. If it finds the
    rest of the erasure held, that is waived too.
    """
    number = UUID(body["erasure"])
    model = await registrations.ensure(connection, body["model_id"])
    holds = {UUID(uid): hold for uid, hold in body["rest"]}
    released: set[UUID] = set()
    for table in (erasing, erasure_held):
        ours = (among(table, model, list(holds)), table.c.erasure == number)
        deleted = await connection.execute(table.delete().where(*ours).returning(table.c.uid))
        released |= set(deleted.scalars())
    query = select(erasure.c.state, erasure.c.given_up).where(erasure.c.id == number)
    row = (await connection.execute(query.with_for_update())).first()
    if row is None:
        return
    before = (row.given_up or {}).get("holds", {})
    counted = Counter(before) + Counter(holds[uid] for uid in released)
    given_up = {"by": body["by"], "holds": dict(sorted(counted.items()))}
    values: dict[str, Any] = {"given_up": given_up}
    if row.state == "partly_held":
        values["state"] = "giving_up"
    await connection.execute(erasure.update().where(erasure.c.id == number).values(values))
