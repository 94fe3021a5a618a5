"""The criteria of a requested erasure: a filter, ids, or a subject; as stored, and as a predicate.

A filter is resolved when it is sent, and its meaning never changes. A subject is a metadata key
with a value, under the type that is named, or under every type that the key was seen with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models
from inference_store.inference.errors import Invalid, UnknownKey
from inference_store.inference.json_text import write_json
from inference_store.query.cql2 import Node, resolved_in, to_json, to_text
from inference_store.query.cql2.tree import Operation, SourceRange
from inference_store.query.filters import saved
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node, one_of
from inference_store.query.filters.names import KnownKeys, find_known_keys, names_in
from inference_store.query.filters.typed import Predicate
from inference_store.query.lookup import UID_PREFIX, parse_uid
from inference_store.query.operators import find_operator

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
    saved_filter = saved.save(tree, keys, source=text)
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
        metadata_node(_make_condition(subject), keys, "refuse")
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
        return await saved.load(connection, criteria["saved"])
    if (subject := find_subject(criteria)) is not None:
        return await _build_subject_predicate(connection, models, subject)
    if "inference_ids" in criteria:
        return _build_ids_predicate(criteria["inference_ids"])
    raise Invalid("The erasure does not say what it is of.")


def _build_ids_predicate(inference_ids: Sequence[str]) -> Predicate:
    uids = [
        str(uid) for inference_id in inference_ids if (uid := parse_uid(inference_id)) is not None
    ]
    names = [
        inference_id for inference_id in inference_ids if not inference_id.startswith(UID_PREFIX)
    ]
    parts = [
        one_of(name, texts, "inference_ids")
        for name, texts in (("uid", uids), ("inference_ids", names))
        if texts
    ]
    return check(_any_of(parts), KnownKeys()).predicate


async def _build_subject_predicate(
    connection: AsyncConnection, models: Models, subject: Subject
) -> Predicate:
    keys = await find_known_keys(connection, models, {subject.key})
    condition = _make_condition(subject)
    nodes = (
        [metadata_node(condition, keys, "accept")]
        if subject.type
        else _list_typed_nodes(condition, keys)
    )
    if not nodes:
        nodes = [metadata_node(condition, keys, "accept")]
    return check(_any_of(nodes), keys, unknown_keys="accept", is_saved=True).predicate


def _make_condition(subject: Subject) -> MetadataEntry:
    assert _EQUALS is not None
    return MetadataEntry("subject", subject.key, subject.type, _EQUALS, subject.value)


def _list_typed_nodes(condition: MetadataEntry, keys: KnownKeys) -> list[Node]:
    nodes = []
    for name in _TYPES:
        try:
            nodes.append(metadata_node(replace(condition, type=name), keys, "accept"))
        except Invalid:
            continue  # the value is not of this type, or the key was never seen with it
    return nodes


def _any_of(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Operation("or", tuple(nodes), at=SourceRange("subject"))
