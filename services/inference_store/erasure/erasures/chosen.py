"""What an erasure is asked for by: a filter, ids, or a subject; as it is kept, and as a predicate.

A filter is resolved when it is asked for, and means the same ever after. A subject is a metadata
key with a value, under the type that is named, or under every type that the key was seen with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models
from inference_store.inference.errors import Invalid
from inference_store.inference.json_text import write_json
from inference_store.query.cql2 import Node, resolved_in, to_json, to_text
from inference_store.query.cql2.tree import Operation, SourceRange
from inference_store.query.filters import saved
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import Asked, metadata_node, one_of
from inference_store.query.filters.known import Known, known
from inference_store.query.filters.names import names_in
from inference_store.query.filters.typed import Predicate
from inference_store.query.lookup import UID_PREFIX, parse_uid
from inference_store.query.operators import find_operator

_TYPES = ("string", "float", "bool", "timestamp")
_EQUALS = find_operator("eq")


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom inferences are about. `type` None: whatever the key was seen as."""

    key: str
    type: str | None
    value: str

    @property
    def kept(self) -> dict[str, Any]:
        """As `erasure.asked` has it."""
        return {"subject": {"key": self.key, "type": self.type, "value": self.value}}


async def by_filter(
    connection: AsyncConnection, models: Models, tree: Node, text: str | None
) -> dict[str, Any]:
    """A filter as `erasure.asked` has it; `text`: as it was written. Of relative times it has the
    instants.

    Raises UnknownKey, ImpossibleComparison, InvalidFilter, NotKept.
    """
    keys = await known(connection, models, names_in(tree))
    check(tree, keys, source=text)  # a key that nobody has is a slip: refused
    kept = saved.save(tree, keys, source=text)
    if text is not None and resolved_in(tree):
        text = to_text(tree)
    return {"filter": text or write_json(to_json(tree)), "saved": kept.text}


async def by_subject(
    connection: AsyncConnection, models: Models, subject: Subject
) -> dict[str, Any]:
    """A subject as `erasure.asked` has it. Raises Invalid, ImpossibleComparison for its type."""
    await _of_subject(connection, models, subject)
    return subject.kept


def by_ids(inference_ids: Sequence[str]) -> dict[str, Any]:
    """Ids as `erasure.asked` has them. Raises Invalid for a malformed `uid:`."""
    for each in inference_ids:
        parse_uid(each)
    return {"inference_ids": list(dict.fromkeys(inference_ids))}


def subject_in(asked: Mapping[str, Any] | None) -> Subject | None:
    """The subject, where it is asked for by one whose value is not forgotten yet."""
    found = (asked or {}).get("subject")
    return None if found is None or "value" not in found else Subject(**found)


async def build_predicate(
    connection: AsyncConnection, models: Models, asked: Mapping[str, Any]
) -> Predicate:
    """What inferences must satisfy to be erased."""
    if "saved" in asked:
        return await saved.load(connection, asked["saved"])
    if (subject := subject_in(asked)) is not None:
        return await _of_subject(connection, models, subject)
    if "inference_ids" in asked:
        return _of_ids(asked["inference_ids"])
    raise Invalid("The erasure does not say what it is of.")


def _of_ids(inference_ids: Sequence[str]) -> Predicate:
    uids = [str(uid) for each in inference_ids if (uid := parse_uid(each)) is not None]
    names = [each for each in inference_ids if not each.startswith(UID_PREFIX)]
    parts = [
        one_of(name, texts, "inference_ids")
        for name, texts in (("uid", uids), ("inference_ids", names))
        if texts
    ]
    return check(_any_of(parts), Known()).predicate


async def _of_subject(connection: AsyncConnection, models: Models, subject: Subject) -> Predicate:
    assert _EQUALS is not None
    keys = await known(connection, models, {subject.key})
    asked = Asked("subject", subject.key, subject.type, _EQUALS, subject.value)
    nodes = [metadata_node(asked, keys, "accept")] if subject.type else _each_type(asked, keys)
    if not nodes:
        nodes = [metadata_node(asked, keys, "accept")]
    return check(_any_of(nodes), keys, unknown_keys="accept", kept=True).predicate


def _each_type(asked: Asked, keys: Known) -> list[Node]:
    found = []
    for name in _TYPES:
        try:
            found.append(metadata_node(replace(asked, type=name), keys, "accept"))
        except Invalid:
            continue  # the value is none of this type, or the key was never seen as it
    return found


def _any_of(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Operation("or", tuple(nodes), at=SourceRange("subject"))
