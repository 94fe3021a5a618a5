"""Filters with a relative time, and their meaning in plain comparisons."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

from inference_store.query.cql2 import Clock
from inference_store.query.filters.facts import Facts
from tests.integration.query.typed_rows import INSTANTS

_DURATIONS: Final[Mapping[str, timedelta]] = {
    "PT0S": timedelta(0),
    "PT1H": timedelta(hours=1),
    "PT0.000001S": timedelta(microseconds=1),
    "P1DT1M": timedelta(days=1, minutes=1),
    "P2W": timedelta(weeks=2),
}
_FORMS: Final[Mapping[str, Callable[[datetime, datetime], bool]]] = {
    "{name} > {time}": lambda value, at: value > at,
    "{name} <= {time}": lambda value, at: value <= at,
    "{time} = {name}": lambda value, at: value == at,
    "NOT {name} <> {time}": lambda value, at: value == at,
    "{name} BETWEEN {time} AND {time} + duration('P1D')": lambda value, at: (
        at <= value <= at + timedelta(days=1)
    ),
    "{name} IN (DATE('1999-01-01'), {time})": lambda value, at: value == at,
    "T_BEFORE({name}, {time})": lambda value, at: value < at,
    "T_INTERSECTS({name}, INTERVAL({time}, '..'))": lambda value, at: value >= at,
    "T_DURING({name}, INTERVAL('..', {time}))": lambda value, at: value < at,
}


@dataclass(frozen=True)
class Relative:
    """A filter. `at`: the instant that its relative time stands for."""

    text: str
    clock: Clock
    name: str
    at: datetime
    test: Callable[[datetime, datetime], bool]

    def holds(self, facts: Facts) -> bool:
        """Check whether some value satisfies the filter."""
        values = facts.properties.get(self.name) or facts.metadata_values(self.name, "timestamp")
        return any(self.test(value, self.at) for value in values if isinstance(value, datetime))


def draw_relative_time(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Relative:
    """Draw a filter. Its clock is set so that the relative time equals a stored one."""
    name, form = draw(st.sampled_from(["received_at", "when"])), draw(st.sampled_from([*_FORMS]))
    at, sign = draw(st.sampled_from(INSTANTS)), draw(st.sampled_from("+-"))
    duration = draw(st.sampled_from([*_DURATIONS]))
    by = _DURATIONS[duration]
    time = f"now() {sign} duration('{duration}')"
    clock = Clock(at - by if sign == "+" else at + by)
    return Relative(form.format(name=name, time=time), clock, name, at, _FORMS[form])
