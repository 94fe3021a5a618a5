"""Texts: folded as Python folds them, and compared around the length that an index holds whole."""

import unicodedata
from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.long_text import encode
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.deadline import bind_many, range_of_time
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node
from inference_store.query.filters.names import find_known_keys
from inference_store.query.filters.operands import without_accents
from inference_store.query.matching import Query, match_by_index
from inference_store.query.properties import OPERATORS
from tests.integration.stored_inferences import NewInference, at, store
from tests.unit.query.filters.oracle import Facts, evaluate

# The letters of every Unicode version in use: those of Python and Postgres differ.
_OLD = unicodedata.ucd_3_2_0


def _letters() -> list[str]:
    points = (chr(point) for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000)
    assigned = [letter for letter in points if _OLD.category(letter) not in {"Cn", "Co"}]
    # Hangul and Han have neither case nor accents, and are most of the letters.
    return [
        letter
        for letter in assigned
        if unicodedata.category(letter) != "Lo" or ord(letter) < 0x2000
    ]


async def test_every_letter_is_folded_as_in_python(engine: AsyncEngine) -> None:
    letters = _letters()
    # Each letter alone and after an `a`, with which marks are composed again.
    texts = [*letters, *("a" + letter for letter in letters), "", "Straße", "e\u0301\u0323"]
    async with engine.connect() as connection:
        for name, fold in (("fold_case", str.casefold), ("fold_accents", without_accents)):
            original = func.unnest(bind_many(texts, TEXT())).column_valued("given")
            folded = getattr(func, name)(original)
            folded_texts = {
                row[0]: row[1] for row in await connection.execute(select(original, folded))
            }
            assert folded_texts == {text: fold(text) for text in texts}, name


async def test_null_stays_null(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        none = select(func.fold_case(None, type_=TEXT()), func.fold_accents(None, type_=TEXT()))
        row: tuple[object, ...] = tuple((await connection.execute(none)).one())
        assert row == (None, None)


_LENGTHS = (444, 445, 446, 447, 448, 449, 480, 512, 513)
_ENDINGS = ("", "\x01", "b", "\ud7ff", "\ue000", "😀", "\U0010ffff", "\U0010ffff\U0010ffff")


def _texts(character: str) -> list[str]:
    size = len(character.encode())
    whole = [character * (n // size) + "a" * (n % size) for n in _LENGTHS]
    texts = {text + end for text in whole for end in _ENDINGS}
    return sorted(texts | {encode(text)[0] for text in texts} | {"", "a", character})


async def test_compares_long_texts(engine: AsyncEngine) -> None:
    for character in ("a", "é", "€", "😀", "\ud7ff", "\U0010ffff"):
        texts = _texts(character)
        inferences = [
            NewInference(str(n), at(n), [("k", "string", text)], model_id=character)
            for n, text in enumerate(texts)
        ]
        model = await store(engine, *inferences)
        facts = {inference.uid: Facts(metadata=inference.read) for inference in inferences}
        async with engine.connect() as connection:
            await _check_comparisons(connection, model, facts, texts)


async def _check_comparisons(
    connection: AsyncConnection, model: int, facts: Mapping[UUID, Facts], texts: Sequence[str]
) -> None:
    keys = await find_known_keys(connection, model, {"k"})
    for name in ("eq", "gt", "gte", "lt", "lte", "between", "in", "like"):
        for text in texts[:: 1 if name in {"gt", "lte", "eq"} else 4]:
            value = {"between": [text, text + "b"], "in": [text, "b"], "like": text + "%"}
            entry = MetadataEntry("", "k", "string", OPERATORS[name], value.get(name, text))
            predicate = check(metadata_node(entry, keys), keys).predicate
            condition = compile_condition(predicate, Names())
            query = Query(range_of_time(model, None, None), (condition,))
            assert query.is_driven
            rows = await connection.execute(match_by_index(query, query.scan_range))
            expected = {uid for uid, of in facts.items() if evaluate(predicate, of)}
            assert set(rows.scalars()) == expected, (name, text)
