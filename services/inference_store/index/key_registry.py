"""The key registry: the metadata keys of a model's inferences, with their types and counts.

Every batch appends its own counts (`metadata_key_delta`); `fold` adds them up in
`metadata_key_seen`. A reader uses both, so that a new key shows at once. Whoever deletes rows of
metadata takes them off in the same transaction.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    CompoundSelect,
    Table,
    any_,
    bindparam,
    func,
    insert,
    literal,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects.postgresql import INTEGER, JSONB, TEXT
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.inference.json_text import storable
from inference_store.inference.metadata import Family, type_named
from inference_store.inference.nearest import nearest as spelt_most_alike

from .prepared_statement import PreparedStatement
from .sidecars import among
from .tables import (
    SIDE_TABLES,
    metadata_key,
    metadata_key_delta,
    metadata_key_seen,
    metadata_presence,
    model_key,
)

_LOCK = 7_302_006
MOST_EXAMPLES = 3
_NO_EXAMPLES = literal([], JSONB)
_UIDS: Final = ARRAY(UUID_TYPE(as_uuid=True))
_MODELS = bindparam("models", type_=ARRAY(INTEGER()))
FROM_TEXT: Final = "from_text"
KEY_TOO_LONG: Final = "key_too_long"
NO_VALUE: Final = frozenset({"null", "present"})
_NOT_COMPARED: Final = frozenset(
    {"number_too_large", "nul_character", "lone_surrogate", "too_deep", KEY_TOO_LONG}
)


@dataclass(frozen=True, slots=True)
class TypeSeen:
    """One type under which a key came."""

    type: str
    flag: str
    """Empty where the values are indexed as their type; else why not, or how they came."""
    count: int
    first_seen: datetime
    last_seen: datetime
    examples: tuple[str, ...]

    @property
    def family(self) -> Family | None:
        """The type that such values can be compared as: what is none of its type is text
        (`not_int`)."""
        if self.flag == KEY_TOO_LONG:
            return None
        if self.flag.startswith("not_"):
            return "string"
        entry = type_named(self.type)
        return entry.family if entry is not None else None

    @property
    def kind(self) -> Family | None:
        """The table that has its values; None: they are only known to be there."""
        return None if self.flag in NO_VALUE | _NOT_COMPARED else self.family


@dataclass(frozen=True, slots=True)
class KeySeen:
    """A key of a model. `families`: what its values can be compared as."""

    key: int
    name: str
    types: tuple[TypeSeen, ...]
    several: bool = False
    """Whether it came several times with one inference."""

    @property
    def families(self) -> frozenset[Family]:
        families_of_types = (entry.family for entry in self.types)
        return frozenset(family for family in families_of_types if family is not None)

    @property
    def many(self) -> bool:
        """Check whether one inference may have several values of it."""
        return self.several or "[]" in self.name

    @property
    def spells_numbers(self) -> bool:
        """Check whether texts of it spell numbers, as which they are found too."""
        return any(entry.flag == FROM_TEXT for entry in self.types)

    @property
    def count(self) -> int:
        """The number of its values; a text that is a number as well is one."""
        return sum(entry.count for entry in self.types if entry.flag != FROM_TEXT)

    @property
    def conflict(self) -> bool:
        """Check whether its values came as things that cannot be compared with each other.

        A text that is a number as well is found as both, on purpose.
        """
        return len({entry.family for entry in self.types if entry.flag != FROM_TEXT} - {None}) > 1


Models: TypeAlias = int | Sequence[int]
"""One model, or several whose keys are taken together: keys have the same integers in all."""


def of_models(column: ColumnElement[int], model: Models) -> ColumnElement[bool]:
    """Match the rows whose column is one of these models."""
    return column == model if isinstance(model, int) else column.in_(sorted(model))


async def keys(
    connection: AsyncConnection,
    model: Models,
    *,
    names: Collection[str] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[KeySeen]:
    """Return the model's keys in order of name, all or those in `names`; `after`, `limit` page."""
    parameters = {
        "models": [model] if isinstance(model, int) else list(model),
        "names": None if names is None else list(names),
        "after": after,
        "most": limit,
    }
    rows = await _keys().fetch(connection, parameters)
    if not rows:
        return []
    types = await _types(connection, parameters | {"keys": [row["key"] for row in rows]})
    return [
        KeySeen(row["key"], row["name"], tuple(types.get(row["key"], ())), row["several"])
        for row in rows
    ]


@cache
def _keys() -> PreparedStatement:
    """Build the statement for keys of `models` in order of name.

    They are in `names`, after `after`, at most `most`; a parameter that is NULL does not narrow.
    """
    here = metadata_key.c
    names, after = bindparam("names", type_=ARRAY(here.name.type)), bindparam("after", type_=TEXT())
    theirs = select(model_key.c.key).where(model_key.c.model == any_(_MODELS))
    return PreparedStatement(
        select(here.key, here.name, here.several)
        .where(here.key.in_(theirs), names.is_(None) | (here.name == any_(names)))
        .where(after.is_(None) | (here.name > after))
        .order_by(here.name)
        .limit(bindparam("most", type_=INTEGER()))
    )


async def find(
    connection: AsyncConnection, model: Models, names: Collection[str]
) -> Mapping[str, KeySeen]:
    """Return the keys with these names that the model has."""
    valid_names = {name for name in names if storable(name)}
    stored_keys = await keys(connection, model, names=valid_names) if valid_names else []
    return {key.name: key for key in stored_keys}


async def numbers(
    connection: AsyncConnection, names: Collection[str]
) -> Mapping[str, tuple[int, bool]]:
    """Return the integers of the names that any inference ever had, and whether they have several
    values, from the dictionary alone."""
    valid_names = sorted(name for name in names if storable(name))
    here = metadata_key.c
    chosen = select(here.name, here.key, here.several).where(here.name.in_(valid_names))
    return {row.name: (row.key, row.several) for row in await connection.execute(chosen)}


async def all_names(connection: AsyncConnection, model: Models) -> list[str]:
    """Return the names of all the model's keys, in order."""
    table = select(metadata_key.c.name).join(model_key, model_key.c.key == metadata_key.c.key)
    rows = await connection.execute(table.where(of_models(model_key.c.model, model)).distinct())
    return sorted(rows.scalars())


async def nearest(connection: AsyncConnection, model: Models, name: str) -> list[str]:
    """Return up to five of the model's keys that are spelt most like `name`."""
    return spelt_most_alike(name, await all_names(connection, model))


async def _types(connection: AsyncConnection, of: Mapping[str, Any]) -> dict[int, list[TypeSeen]]:
    types_by_key: dict[int, list[TypeSeen]] = {}
    for key, kind, flag, total, first, last, some in await _merged().fetch(connection, of):
        examples = tuple(dict.fromkeys(example for these in some for example in these))
        entry = TypeSeen(kind, flag, int(total), first, last, examples[:MOST_EXAMPLES])
        types_by_key.setdefault(key, []).append(entry)
    return types_by_key


@cache
def _merged() -> PreparedStatement:
    keys = bindparam("keys", type_=ARRAY(INTEGER()))
    parts = [
        select(*(table.c[column.name] for column in metadata_key_seen.c)).where(
            table.c.model == any_(_MODELS), table.c.key == any_(keys)
        )
        for table in (metadata_key_seen, metadata_key_delta)
    ]
    both = union_all(*parts).subquery()
    # Examples of a few rows are enough, and a hot key may have thousands of deltas, many of them
    # without any since an erasure.
    some = func.array_remove(
        func.array_agg(both.c.examples), _NO_EXAMPLES, type_=ARRAY(both.c.examples.type)
    )
    examples = some[1:100].label("examples")
    return PreparedStatement(
        select(
            both.c.key,
            both.c.type,
            both.c.flag,
            func.sum(both.c.count).label("total"),
            func.min(both.c.first_seen).label("first_seen"),
            func.max(both.c.last_seen).label("last_seen"),
            examples,
        )
        .group_by(both.c.key, both.c.type, both.c.flag)
        .having(func.sum(both.c.count) > 0)
        .order_by(both.c.key, both.c.type, both.c.flag)
    )


TABLES: Final = dict[str | None, Table]([(None, metadata_presence), *SIDE_TABLES.items()])
"""Those with rows of metadata; None: of keys that are only known to be there."""


async def delete_rows(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    *,
    keys: Collection[int] | None = None,
    counted: Sequence[UUID] | None = None,
) -> Counter[str]:
    """Delete the metadata rows of inferences, all or those of `keys`, take them off the counts, and
    return how many went of each table.

    `counted`: the inferences whose rows are still in the counts; None: of all of them.
    """
    deletions = {
        kind: table.delete()
        .where(among(table, model, uids), *([] if keys is None else [table.c.key.in_(keys)]))
        .returning(table.c.uid, table.c.key)
        .cte(f"of_{table.name}")
        for kind, table in TABLES.items()
    }
    return await _take_off(connection, model, deletions, counted)


async def subtract(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Take the metadata rows of inferences off the counts: they go later, with their partition."""
    rows = {
        kind: select(table.c.uid, table.c.key).where(among(table, model, uids)).cte()
        for kind, table in TABLES.items()
    }
    await _take_off(connection, model, rows)


async def _take_off(
    connection: AsyncConnection,
    model: int,
    going: Mapping[str | None, CTE],
    counted: Sequence[UUID] | None = None,
) -> Counter[str]:
    """Write what goes as deltas, and return how many rows there are of each table. A row does not
    say as what type its value was sent: types that share a table lose in proportion."""
    lost: dict[int, dict[str | None, int]] = defaultdict(dict)
    total: Counter[str] = Counter()
    # one statement: for each table by itself, counting takes twice as long
    for row in await connection.execute(_count_going(going, counted)):
        total[TABLES[row.kind].name] += row.rows
        if row.counted:
            lost[row.key][row.kind] = row.counted
    types = await _types(connection, {"models": [model], "keys": list(lost)}) if lost else {}
    deltas = [
        {
            **{"model": model, "key": key, "type": seen.type, "flag": seen.flag, "count": -number},
            **{"first_seen": seen.first_seen, "last_seen": seen.last_seen},
        }
        for key, numbers in lost.items()
        for kind, gone in numbers.items()
        for seen, number in _share([e for e in types.get(key, ()) if e.kind == kind], gone)
    ]
    if deltas:
        await connection.execute(insert(metadata_key_delta), deltas)
    return total


def _count_going(
    going: Mapping[str | None, CTE], counted: Sequence[UUID] | None
) -> CompoundSelect[Any]:
    counts = []
    for kind, rows in going.items():
        number, texts = func.count(), going["string"]
        is_whole = kind is not None and counted is None
        query = select(literal(kind, TEXT()).label("kind"), rows.c.key, number.label("rows"))
        query = query.add_columns((number if is_whole else literal(0)).label("counted"))
        counts.append(query.group_by(rows.c.key))
        if is_whole:
            continue
        some = select(rows.c.uid, rows.c.key)
        if counted is not None:
            some = some.where(rows.c.uid == any_(literal(counted, _UIDS)))
        of = some.subquery()
        if kind is None:
            # what is there as text too is counted as text alone; no join: CTEs are estimated at
            # one row, and a nested loop compares all with all
            of = some.except_(select(texts.c.uid, texts.c.key)).subquery()
        query = select(literal(kind, TEXT()), of.c.key, literal(0), number)
        counts.append(query.group_by(of.c.key))
    return union_all(*counts)


def _share(types: Sequence[TypeSeen], lost: int) -> Iterator[tuple[TypeSeen, int]]:
    """Yield what each type loses. None falls below 1 while anything is left, because a filter must
    know of every type; so there may be one too many of each."""
    total = sum(seen.count for seen in types)
    left = max(total - lost, 0)
    fewest = min(left, 1)
    for seen in types:
        kept = max(left * seen.count // total, fewest)
        total, left = total - seen.count, max(left - kept, 0)
        if kept < seen.count:
            yield seen, seen.count - kept


async def list_emptied(connection: AsyncConnection) -> Sequence[int]:
    """Return the models that have a key without a count, as far as it is folded."""
    here = metadata_key_seen.c
    emptied = select(here.model, here.key).group_by(here.model, here.key)
    models = emptied.having(func.sum(here.count) <= 0).subquery().c.model
    return (await connection.execute(select(models).distinct())).scalars().all()


async def forget(connection: AsyncConnection, model: int, keys: Sequence[int]) -> None:
    """Delete the counts of keys that the model has no more; no fold brings them back."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    for table in (metadata_key_seen, metadata_key_delta):
        theirs = (table.c.model == model, table.c.key.in_(keys))
        await connection.execute(table.delete().where(*theirs))


_FOLD = text("""
WITH taken AS (
    DELETE FROM metadata_key_delta WHERE id IN (
        SELECT id FROM metadata_key_delta ORDER BY id LIMIT :most
    ) RETURNING *
), added AS (
    SELECT model, key, type, flag, sum(count) AS count,
        min(first_seen) AS first_seen, max(last_seen) AS last_seen,
        (array_agg(examples ORDER BY jsonb_array_length(examples) DESC))[1] AS examples
    FROM taken GROUP BY model, key, type, flag
), folded AS (
    INSERT INTO metadata_key_seen AS seen
        (model, key, type, flag, count, first_seen, last_seen, examples)
    SELECT model, key, type, flag, count, first_seen, last_seen, examples FROM added
    ON CONFLICT (model, key, type, flag) DO UPDATE SET
        count = seen.count + excluded.count,
        first_seen = least(seen.first_seen, excluded.first_seen),
        last_seen = greatest(seen.last_seen, excluded.last_seen),
        examples = CASE WHEN jsonb_array_length(seen.examples) >= jsonb_array_length(
            excluded.examples) THEN seen.examples ELSE excluded.examples END
)
SELECT count(*) FROM taken
""")


async def fold(connection: AsyncConnection, *, most: int = 50_000) -> int:
    """Fold up to `most` deltas into the counts; return their number, 0 while another one folds.

    One statement takes and adds them: a crash leaves them in place.
    """
    if not await connection.scalar(select(func.pg_try_advisory_xact_lock(_LOCK))):
        return 0
    return int(await connection.scalar(_FOLD, {"most": most}) or 0)


async def forget_examples(connection: AsyncConnection, model: int) -> None:
    """Empty the examples of all the model's keys: they are values of inferences.

    Repeatable; rows without examples are left alone. It waits for a fold, which carries examples
    from one table to the other, and lets none begin until the caller's transaction ends.
    """
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    for table in (metadata_key_seen, metadata_key_delta):
        has_examples = (table.c.model == model, table.c.examples != _NO_EXAMPLES)
        await connection.execute(table.update().where(*has_examples).values(examples=_NO_EXAMPLES))


def warn_of_text_order(key: KeySeen, remedy: str) -> str:
    """Return a warning for where texts that spell numbers are put in order as texts."""
    return (
        f"The values of {key.name!r} are texts, some of which spell numbers. They are in text"
        f" order, so '10' comes before '9'. {remedy} for the order of numbers."
    )


def types_of(key: KeySeen) -> Sequence[str]:
    """Return the names of the types seen, for people."""
    names: set[str] = set()
    for entry in key.types:
        is_stray = entry.flag.startswith("not_") or entry.flag == KEY_TOO_LONG
        names.add(f"{entry.type or '(none)'}{f' ({entry.flag})' if is_stray else ''}")
    return sorted(names)


async def count(connection: AsyncConnection, model: int) -> int:
    """Return the number of the model's keys."""
    query = select(func.count()).select_from(model_key).where(model_key.c.model == model)
    return int(await connection.scalar(query) or 0)
