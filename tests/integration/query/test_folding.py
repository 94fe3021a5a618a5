"""The schema's functions fold every letter as Python does."""

import unicodedata

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.filters.folding import without_accents, without_case
from inference_store.query.operand import bind_many

# What every version of Unicode that is in play has: Python's and Postgres' own differ.
_OLD = unicodedata.ucd_3_2_0


def _letters() -> list[str]:
    points = (chr(point) for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000)
    kept = [each for each in points if _OLD.category(each) not in {"Cn", "Co"}]
    # Hangul and Han have neither case nor accents, and are most of all
    return [each for each in kept if unicodedata.category(each) != "Lo" or ord(each) < 0x2000]


async def test_every_letter_is_folded_as_in_python(engine: AsyncEngine) -> None:
    letters = _letters()
    # one after a letter that takes marks, and one before it: they are put together again
    texts = [*letters, *("a" + letter for letter in letters), "", "Straße", "e\u0301\u0323"]
    async with engine.connect() as connection:
        for name, fold in (("fold_case", without_case), ("fold_accents", without_accents)):
            given = func.unnest(bind_many(texts, TEXT())).column_valued("given")
            folded = getattr(func, name)(given)
            found = {row[0]: row[1] for row in await connection.execute(select(given, folded))}
            assert found == {text: fold(text) for text in texts}, name


async def test_null_stays_null(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        none = select(func.fold_case(None, type_=TEXT()), func.fold_accents(None, type_=TEXT()))
        found: tuple[object, ...] = tuple((await connection.execute(none)).one())
        assert found == (None, None)
