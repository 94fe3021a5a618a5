"""Takes ground truth in bulk: finds the inferences of rows, and writes their sets, many at once."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict
from inference_store.inference.nearest import shortened

from .awaiting import await_sets
from .matching import find_matches
from .rows import Address, Earlier, Row, WrongRow
from .sets import Key, TruthWriter

Outcome: TypeAlias = Literal["awaiting", "matched", "ambiguous", "erased", "refused"]
"""The gravest last: that of a row is the gravest of those in its models and inferences."""
Find: TypeAlias = Callable[
    [Collection[str | None]], Awaitable[Mapping[str | None, Sequence[Registration]]]
]
"""Finds the models of rows by the ids that these give; None: all, for data that they have."""
ROWS: Final = 5_000
"""Rows that are written together."""
_MOST_PROBLEMS: Final = 100
_TRIES: Final = 3


def _refuse_apart(one: "_Each", other: "_Each | None", line: int) -> set[int]:
    """Refuse rows of an inference that name it in two ways: no part may pass for the whole. Return
    their lines. `line`: of the first; `other`: of the same batch."""
    why = "the same inference by another name, in rows that follow each other: use one name"
    one[1].tell("refused", f"line {line} is of {why}")
    if other is not None:
        other[1].tell("refused", f"line {one[0].line} is of {why}")
    return {row.line for row, _ in filter(None, (one, other))}


def _describe_missing(model_id: str | None) -> str:
    if model_id is None:
        return "model_id: say of which model it is"
    return f"model_id: there is no model {shortened(model_id)}"


@dataclass(slots=True)
class Taken:
    """What became of a row. `is_new`: something of it was written."""

    row: Row | WrongRow
    outcome: Outcome = "awaiting"
    why: str = ""
    is_new: bool = False

    def tell(self, outcome: Outcome, why: str = "") -> None:
        """Note an outcome, unless a graver one is."""
        gravity = get_args(Outcome).index
        if gravity(outcome) > gravity(self.outcome):
            self.outcome, self.why = outcome, why


_Each: TypeAlias = tuple[Row, Taken]


@dataclass(slots=True)
class Intake:
    """What became of rows. `changed`: sets that were written; `unchanged`: those that were so
    already; `problems`: the first of those that changed nothing. `note` is called in each
    transaction that changes something."""

    writer: TruthWriter
    find: Find
    by: str
    keep: timedelta
    note: Callable[[AsyncConnection, Registration, int], Awaitable[None]]
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    changed: int = 0
    unchanged: int = 0
    problems: list[Taken] = field(default_factory=list)
    earlier: Earlier = field(default_factory=Earlier)

    async def take(self, rows: Sequence[Row | WrongRow]) -> list[Taken]:
        """Take some rows, and return what became of each. Raises ObjectStoreUnavailable."""
        taken = [Taken(row) for row in rows]
        good = [(each.row, each) for each in taken if isinstance(each.row, Row)]
        models = await self.find({row.model_id for row, _ in good})
        of_models: dict[int, tuple[Registration, list[_Each]]] = {}
        for row, each in good:
            has_model = row.model_id is not None or row.address.how == "data_hash"
            found = models.get(row.model_id, ()) if has_model else ()
            for registration in found:
                of_models.setdefault(registration.model, (registration, []))[1].append((row, each))
            if not found:
                each.tell("refused", _describe_missing(row.model_id))
        for registration, some in of_models.values():
            await self._take(registration, some)
        for each in taken:
            if isinstance(each.row, WrongRow):
                each.tell("refused", each.row.why)
            self.outcomes[each.outcome] += 1
            if each.why and len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(each)
        return taken

    async def _take(self, registration: Registration, some: Sequence[_Each]) -> None:
        async with self.writer.engine.connect() as connection:
            addresses = {row.address for row, _ in some}
            matches = await find_matches(connection, registration.model, addresses)
        wanted: dict[Key, _Each] = {}
        awaiting: dict[tuple[Address, str], _Each] = {}
        apart: set[int] = set()
        for row, each in some:
            uids, is_of_data = matches.uids.get(row.address, set()), row.address.how == "data_hash"
            if self.keep and (is_of_data if uids else row.address not in matches.erased):
                # others may have this datum later
                awaiting[row.address, row.set.source] = row, each
            if len(uids) > 1 and not is_of_data:
                why = f"{len(uids)} inferences have it: name one by uid, as in {min(uids)}"
                each.tell("ambiguous", why)
            elif uids:
                each.tell("matched")
                for uid in uids:
                    place = uid, row.set.source
                    above = self.earlier.note((registration.model, place), row.line)
                    if above is not None and not row.is_whole:
                        apart |= _refuse_apart((row, each), wanted.get(place), above)
                    wanted[place] = row, each
            elif row.address in matches.erased:
                each.tell("erased", "its inference was erased, or is being erased")
            elif not self.keep:
                each.tell("refused", "there is no such inference")
        awaiting = {key: one for key, one in awaiting.items() if one[0].line not in apart}
        wanted = {key: one for key, one in wanted.items() if one[0].line not in apart}
        keys = sorted(wanted, key=lambda key: key[0])
        for start in range(0, len(keys), ROWS):
            await self._write(registration, {key: wanted[key] for key in keys[start:][:ROWS]})
        if awaiting:
            async with self.writer.engine.begin() as connection:
                about = (connection, self.writer, registration)
                rows = {key: row for key, (row, _) in awaiting.items()}
                new = await await_sets(*about, rows, by=self.by, keep=self.keep)
                if new:
                    await self.note(connection, registration, len(new))
            for key in new:
                awaiting[key][1].is_new = True

    async def _write(self, registration: Registration, wanted: Mapping[Key, _Each]) -> None:
        writer, model = self.writer, registration.model
        sets = {key: row.set for key, (row, _) in wanted.items()}
        said_at = {key: row.at for key, (row, _) in wanted.items() if row.at is not None}
        for _ in range(_TRIES):
            names = await writer.resolve(model, list(sets.values()))
            async with writer.engine.begin() as connection:
                if not await writer.hold_names(connection, model, names):
                    continue
                written = await writer.write(
                    connection, registration, sets, by=self.by, said_at=said_at
                )
                if written.changed:
                    await self.note(connection, registration, len(written.changed))
            break
        else:
            raise Conflict("Labels are being removed: try again in a moment.")
        self.changed += len(written.changed)
        self.unchanged += len(written.unchanged)
        for key, (_, each) in wanted.items():
            each.is_new |= key in written.changed
            if key[0] in written.gone:
                each.tell("erased", "its inference has just been erased")
            elif key in written.capped:
                each.tell("refused", "the model has as many labels as it may have")
            elif (hold := written.held.get(key)) is not None:
                why = f"the legal hold {hold.name!r} ({hold.id}) would not match any more"
                each.tell("refused", why)
