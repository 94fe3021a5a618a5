"""The schema's functions fold every letter as Python does."""

import unicodedata

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.filters.folding import without_accents, without_case
from inference_store.query.operand import bind_many

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
        for name, fold in (("fold_case", without_case), ("fold_accents", without_accents)):
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
