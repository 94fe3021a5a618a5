"""Takes ground truth in bulk: finds the inferences of rows, and writes their sets, many at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict

from .awaiting import await_sets
from .documents import TruthSet
from .matching import find_matches
from .rows import Address, Row, WrongRow
from .sets import Key, TruthWriter

Outcome: TypeAlias = Literal["matched", "awaiting", "ambiguous", "erased", "refused"]
ROWS: Final = 5_000
"""Rows that are written together."""
_MOST_PROBLEMS: Final = 100
_TRIES: Final = 3


def batch_rows(rows: Iterator[Row | WrongRow]) -> Iterator[list[Row | WrongRow]]:
    """Yield rows by as many as are written together."""
    while some := list(islice(rows, ROWS)):
        yield some


class Problem(NamedTuple):
    """A row that changed nothing."""

    line: int
    outcome: Outcome
    why: str


@dataclass(slots=True)
class Intake:
    """What became of rows. `changed`: sets that were written; `unchanged`: those that were so
    already; `problems`: the first of those that changed nothing."""

    writer: TruthWriter
    registration: Registration
    by: str
    keep: timedelta
    note: Any
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    changed: int = 0
    unchanged: int = 0
    problems: list[Problem] = field(default_factory=list)

    async def take(self, rows: Sequence[Row | WrongRow]) -> None:
        """Take some rows. Raises ObjectStoreUnavailable."""
        good = [row for row in rows if isinstance(row, Row)]
        for row in rows:
            if isinstance(row, WrongRow):
                self._tell(row.line, "refused", row.why)
        async with self.writer.engine.connect() as connection:
            addresses = {row.address for row in good}
            matches = await find_matches(connection, self.registration.model, addresses)
        wanted: dict[Key, Row] = {}
        awaiting: dict[tuple[Address, str], TruthSet] = {}
        for row in good:
            uids, is_of_data = matches.uids.get(row.address, set()), row.address.how == "data_hash"
            if uids and is_of_data and self.keep:
                awaiting[row.address, row.set.source] = row.set  # others may have this datum later
            if len(uids) > 1 and not is_of_data:
                why = f"{len(uids)} inferences have it: name one by uid, as in {min(uids)}"
                self._tell(row.line, "ambiguous", why)
            elif uids:
                wanted |= {(uid, row.set.source): row for uid in uids}
                self.outcomes["matched"] += 1
            elif row.address in matches.erased:
                self._tell(row.line, "erased", "its inference was erased, or is being erased")
            elif not self.keep:
                self._tell(row.line, "refused", "there is no such inference")
            else:
                awaiting[row.address, row.set.source] = row.set
                self.outcomes["awaiting"] += 1
        keys = sorted(wanted, key=lambda key: key[0])
        for start in range(0, len(keys), ROWS):
            await self._write({key: wanted[key] for key in keys[start : start + ROWS]})
        if awaiting:
            async with self.writer.engine.begin() as connection:
                about = (connection, self.writer, self.registration, awaiting)
                if new := await await_sets(*about, by=self.by, keep=self.keep):
                    await self.note(connection, new)

    async def _write(self, rows: dict[Key, Row]) -> None:
        writer, model = self.writer, self.registration.model
        sets = {key: row.set for key, row in rows.items()}
        for _ in range(_TRIES):
            names = await writer.resolve(model, list(sets.values()))
            async with writer.engine.begin() as connection:
                if not await writer.hold_names(connection, model, names):
                    continue
                written = await writer.write(connection, self.registration, sets, by=self.by)
                if written.changed:
                    await self.note(connection, len(written.changed))
            break
        else:
            raise Conflict("Labels are being removed: try again in a moment.")
        self.changed += len(written.changed)
        self.unchanged += len(written.unchanged)
        for key, row in rows.items():
            if key[0] in written.gone:
                self._move(row, "erased", "its inference has just been erased")
            elif key in written.capped:
                self._move(row, "refused", "the model has as many labels as it may have")
            elif (hold := written.held.get(key)) is not None:
                why = f"the legal hold {hold.name!r} ({hold.id}) would not match any more"
                self._move(row, "refused", why)

    def _move(self, row: Row, outcome: Outcome, why: str) -> None:
        self.outcomes["matched"] -= 1
        self._tell(row.line, outcome, why)

    def _tell(self, line: int, outcome: Outcome, why: str) -> None:
        self.outcomes[outcome] += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(line, outcome, why))
