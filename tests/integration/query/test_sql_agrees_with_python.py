"""Metadata filters are implemented twice, in SQL and in Python: the two must agree."""

import json
import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.errors import Invalid
from inference_store.inference.metadata import Metadata
from inference_store.inference.metadata.entry import Leaf, Presence
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.filters import typed
from inference_store.query.filters.check import check
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node
from inference_store.query.filters.known_keys import find_known_keys
from inference_store.query.matching import Query, count_matches, match_by_index, match_by_scan
from inference_store.query.operators import OPERATORS, Takes
from inference_store.query.scan_range import range_of_time
from tests.integration.stored_inferences import NewInference, at, store
from tests.properties import examples

# Texts with equal index prefixes, in characters of one to four bytes.
_PREFIXES = [c * (n // len(c.encode())) for c in "a€" for n in (445, 448, 513)]
_LONG = st.builds(
    lambda prefix, rest: prefix + rest,
    st.sampled_from(_PREFIXES),
    st.text("aé€😀%_\\\U0010ffff\x01", max_size=6),
)
_SHORT = st.text("abA%_\\é😀\U0010ffff\ud7ff\ue000\x01 ", max_size=3)
_TEXTS = st.one_of(_SHORT, _LONG, st.sampled_from(["1", "0.1", "true", "2026-11-01T00:00:00Z"]))
_NUMBERS = st.one_of(
    st.integers(-3, 3).map(Decimal),
    st.sampled_from(["0.1", "0.10", "-0", "1e400", "1E-400", "9007199254740993"]).map(Decimal),
    st.sampled_from(["98765432109876543210", "98765432109876543211", "0.1000000000000000001"]).map(
        Decimal
    ),
)
_INSTANTS = st.builds(
    lambda day, micro: f"2026-11-0{day}T00:00:00.{micro:06d}Z",
    st.integers(1, 2),
    st.integers(0, 2),
)
_BOOLS = st.booleans()
_SCALARS = st.one_of(_TEXTS, _NUMBERS, _BOOLS)
_OPERANDS = st.one_of(_TEXTS, _NUMBERS, _BOOLS, _INSTANTS)


def _json(value: Any) -> str:
    """JSON text with numbers as they are."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_json(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


_JSON = st.one_of(
    _SCALARS, st.none(), st.lists(_SCALARS, max_size=3), st.fixed_dictionaries({"a": _SCALARS})
).map(_json)
_ITEMS = st.one_of(
    st.tuples(st.just("string"), st.one_of(_TEXTS, st.none())),
    st.tuples(st.sampled_from(["int", "float"]), st.one_of(_NUMBERS.map(str), _SHORT)),
    st.tuples(st.just("timestamp"), _INSTANTS),
    st.tuples(st.just("bool"), _BOOLS.map(lambda value: str(value).lower())),
    st.tuples(st.just("json"), _JSON),
)
_METADATA = st.dictionaries(st.sampled_from(["k", "k", "other"]), _ITEMS, min_size=1, max_size=2)
_TYPES = st.sampled_from([None, None, None, "string", "int", "float", "bool", "timestamp", "json"])
_Items = list[dict[str, tuple[str, Any]]]


def _list_values(inferences: list[NewInference], key: str) -> list[Any]:
    """Return the values of a key in the form of a filter."""
    values = [
        leaf.value for inference in inferences for leaf in inference.read.leaves if leaf.name == key
    ]
    return [v.isoformat() if isinstance(v, datetime) else v for v in values] or ["nothing"]


def _draw_near(stored_values: list[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of stored values, and of texts close to them."""
    near = st.sampled_from(stored_values)
    texts = [value for value in stored_values if isinstance(value, str)] or [""]
    beside = st.one_of(
        st.builds(
            lambda text, more: text + more, st.sampled_from(texts), st.sampled_from("a%_\x01")
        ),
        st.builds(
            lambda text, length: text[:length] + "%", st.sampled_from(texts), st.integers(0, 520)
        ),
        st.builds(lambda text, length: text[:length], st.sampled_from(texts), st.integers(0, 520)),
    )
    # LIKE leads its index by the text before `_`: the case of the rest it must check itself.
    other_case = st.sampled_from(texts).map(lambda text: "_" + text[1:].swapcase())
    return st.one_of(near, near, beside, other_case, _OPERANDS)


def _draw_lists(stored_values: list[Any], least: int, most: int) -> st.SearchStrategy[list[Any]]:
    """Return a strategy of lists: of anything, mostly refused, and of comparable stored values."""
    kinds = [
        [value for value in stored_values if isinstance(value, kind)]
        for kind in (str, bool, (Decimal, int))
    ]
    numbers = st.one_of(st.sampled_from(kinds[2] or [Decimal(0)]), _NUMBERS)
    texts = st.one_of(st.sampled_from(kinds[0] or [""]), _TEXTS)
    alike = [
        strategy for strategy, kind in zip((texts, _BOOLS, numbers), kinds, strict=True) if kind
    ]
    mixed = st.lists(_draw_near(stored_values), min_size=least, max_size=most)
    return st.one_of(
        mixed, *(st.lists(strategy, min_size=least, max_size=most) for strategy in alike)
    )


def _draw_entry(data: st.DataObject, inferences: list[NewInference]) -> MetadataEntry:
    names = sorted(
        {leaf.name for inference in inferences for leaf in inference.read.leaves} | {"k"}
    )
    key = data.draw(st.sampled_from(names))
    operator = OPERATORS[data.draw(st.sampled_from(sorted(OPERATORS)))]
    stored_values = _list_values(inferences, key)
    match operator.takes:
        case Takes.ONE:
            value: Any = data.draw(_draw_near(stored_values))
        case Takes.NONE:
            value = None
        case Takes.PAIR:
            value = data.draw(_draw_lists(stored_values, 2, 2))
        case _:
            value = data.draw(_draw_lists(stored_values, 1, 3))
    return MetadataEntry("metadata_filter[0]", key, data.draw(_TYPES), operator, value)


def _check_refusal(entry: MetadataEntry, inferences: list[NewInference]) -> None:
    """Check that no comparison with a value that the key has is refused."""
    event("refused")
    comparable = entry.operator.name in {"eq", "neq"} and entry.type is None
    if comparable and isinstance(entry.value, str):
        leaves = [
            leaf
            for inference in inferences
            for leaf in inference.read.leaves
            if leaf.name == entry.key
        ]
        assert all(leaf.value != entry.value for leaf in leaves), entry


def _holds(entry: MetadataEntry, predicate: typed.Predicate, metadata: Metadata) -> bool:
    """Check whether the values satisfy an entry, by the table of operators."""
    inner = predicate.of if isinstance(predicate, typed.Not) else predicate
    if isinstance(inner, typed.Sent):
        rows: list[Leaf | Presence] = [*metadata.leaves, *metadata.presences]
        return entry.operator.holds([row for row in rows if row.name == entry.key], None)
    of, *constants = (getattr(inner, name) for name in inner.__dataclass_fields__ if name != "op")
    values = [
        leaf.value for leaf in metadata.leaves if (leaf.name, leaf.family) == (of.name, of.kind)
    ]
    flat = constants[0] if isinstance(inner, typed.Among) else constants
    typed_values = [
        constant.value if isinstance(constant, typed.Constant) else constant for constant in flat
    ]
    several = entry.operator.takes in {Takes.LIST, Takes.PAIR}
    return entry.operator.holds(values, typed_values if several else typed_values[0])


async def _select_uids(engine: AsyncEngine, query: Query) -> tuple[set[Any], set[Any], int]:
    async with engine.connect() as connection:
        by_walk = await connection.execute(match_by_scan(query, query.scan_range))
        by_index = await connection.execute(match_by_index(query, query.scan_range)[0])
        number = await connection.scalar(count_matches(query, query.scan_range))
        return set(by_walk.scalars()), set(by_index.scalars()), int(number or 0)


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(stored=st.lists(_METADATA, min_size=2, max_size=6), data=st.data())
async def test_sql_agrees_with_python(
    engine: AsyncEngine, stored: _Items, data: st.DataObject
) -> None:
    model_id = str(uuid.uuid4())
    inferences = [
        NewInference(str(n), at(n), [(k, t, v) for k, (t, v) in items.items()], model_id=model_id)
        for n, items in enumerate(stored)
    ]
    model = await store(engine, *inferences)
    async with engine.connect() as connection:
        names = {leaf.name for inference in inferences for leaf in inference.read.leaves}
        keys = await find_known_keys(connection, model, names | {"k"})
    for _ in range(12):
        entry = _draw_entry(data, inferences)
        if entry.key not in keys.keys:
            continue
        try:
            predicate = check(metadata_node(entry, keys), keys).predicate
        except Invalid:
            _check_refusal(entry, inferences)
            continue
        expected = {
            inference.uid for inference in inferences if _holds(entry, predicate, inference.read)
        }
        agreeing = {
            inference.uid
            for inference in inferences
            if evaluate(predicate, Facts(metadata=inference.read))
        }
        assert agreeing == expected
        condition = compile_condition(predicate, Names())
        event(f"{entry.operator.name}: {'some' if expected else 'none'}")
        scope = range_of_time(model, None, None)
        by_walk, by_index, number = await _select_uids(engine, Query(scope, (condition,)))
        assert by_walk == expected
        assert by_index == expected
        assert number == len(expected)
