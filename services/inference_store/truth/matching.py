"""Finds the inferences that rows of ground truth are of, many at once."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ARRAY, Select, Text, any_, literal, select
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.pending_deletions import find_erased
from inference_store.index import long_text
from inference_store.index.key_registry import numbers
from inference_store.index.tables import SIDE_TABLES, inference, inference_alias
from inference_store.inference.metadata import MetadataCaps
from inference_store.inference.metadata.values import read_float, read_timestamp

from .rows import Address

_TEXTS: Final = ARRAY(Text(collation="C"))
_CAPS: Final = MetadataCaps()


@dataclass(slots=True)
class Matches:
    """The inferences of each address, and those addresses of which all was erased."""

    uids: defaultdict[Address, set[UUID]] = field(default_factory=lambda: defaultdict(set))
    erased: set[Address] = field(default_factory=set)


async def find_matches(
    connection: AsyncConnection, model: int, addresses: Collection[Address]
) -> Matches:
    """Find the inferences of these addresses, without those that are being erased."""
    by_how: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for address in addresses:
        by_how[address.how, address.name].add(address.value)
    matches = Matches()
    keys = {name for how, name in by_how if how == "metadata"}
    key_numbers = await numbers(connection, keys) if keys else {}
    for (how, name), values in sorted(by_how.items()):
        key = key_numbers[name][0] if name in key_numbers else None
        for query, spelt in _select(model, how, values, key):
            for value, uid in await connection.execute(query):
                for spelling in spelt.get(value, (str(value),)):
                    matches.uids[Address(how, spelling, name)].add(uid)
    found = {uid for uids in matches.uids.values() for uid in uids}
    wanted = {UUID(value) for value in by_how["uid", ""]}
    gone = await find_erased(connection, [(model, uid) for uid in found | wanted])
    erased = {uid for _, uid in gone}
    for address in list(matches.uids):
        matches.uids[address] -= erased
        if not matches.uids[address]:
            matches.erased.add(address)
            del matches.uids[address]
    matches.erased |= {Address("uid", str(uid)) for uid in wanted & erased}
    return matches


def _select(
    model: int, how: str, values: Collection[str], key: int | None
) -> Iterator[tuple[Select[Any], Mapping[Any, Collection[str]]]]:
    """Yield queries of a value and a uid, and how addresses spell the values."""
    here, listed = inference.c, literal(sorted(values), _TEXTS)
    if how == "uid":
        uids = literal([UUID(value) for value in sorted(values)], ARRAY(UUID_TYPE(as_uuid=True)))
        yield select(here.uid, here.uid).where(here.model == model, here.uid == any_(uids)), {}
    elif how == "data_hash":
        named = (here.model == model, here.data_hash == any_(listed))
        yield select(here.data_hash, here.uid).where(*named, here.data_hash.is_not(None)), {}
    elif how == "inference_id":
        named = (here.model == model, here.inference_id == any_(listed))
        yield select(here.inference_id, here.uid).where(*named), {}
        alias = inference_alias.c
        named = (alias.model == model, alias.alias == any_(listed))
        yield select(alias.alias, alias.uid).where(*named), {}
    elif key is not None:
        yield from _select_metadata(model, key, values)


def _select_metadata(
    model: int, key: int, values: Collection[str]
) -> Iterator[tuple[Select[Any], Mapping[Any, Collection[str]]]]:
    spelt: defaultdict[str, defaultdict[Any, set[str]]] = defaultdict(lambda: defaultdict(set))
    for value in values:
        spelt["string"][long_text.encode(value)[0]].add(value)
        if (number := read_float(value, _CAPS)[0]) is not None:
            spelt["number"][number].add(value)
        if value in {"true", "false"}:
            spelt["bool"][value == "true"].add(value)
        if (instant := read_timestamp(value, _CAPS)[0]) is not None:
            spelt["timestamp"][instant].add(value)
    for kind, by_value in spelt.items():
        table = SIDE_TABLES[kind]
        stored = literal(list(by_value), ARRAY(table.c.value.type))
        named = (table.c.model == model, table.c.key == key, table.c.value == any_(stored))
        yield select(table.c.value, table.c.uid).where(*named), by_value
