"""Measures of the inferences that match, by groups."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from inference_store_client.errors import SettingsError, warn
from inference_store_client.json_text import write_count
from inference_store_client.question import Question
from inference_store_client.reading import fetch
from inference_store_client.requests import make_request
from inference_store_client.tables import Rows
from inference_store_client.times import format_duration
from inference_store_client.transport import Transport
from inference_store_client.values.answers import Aggregate

Measure: TypeAlias = str | Mapping[str, Any]
"""`count`, `mean(top_score)`; or what the API takes: `{"function": "share", "of": "ok"}`."""
_CALL: Final = re.compile(r"\s*(\w+)\s*(?:\(\s*(.*?)\s*\))?\s*")


@dataclass(frozen=True, slots=True)
class Grouping:
    """By what the matches are grouped, and which groups come first."""

    groups: Sequence[str | Mapping[str, Any]] = ()
    every: str | timedelta | None = None
    """Of the time of arrival: `hour`, `day`, `PT15M`."""
    order: str | None = None
    limit: int | None = None

    def to_body(self) -> dict[str, Any]:
        """Return the members of the request."""
        span = format_duration(self.every) if isinstance(self.every, timedelta) else self.every
        groups = [*self.groups] if span is None else [*self.groups, {"time": span}]
        more = {"order": self.order, "limit": self.limit}
        return {"group_by": groups, **{name: v for name, v in more.items() if v is not None}}


async def aggregate(
    transport: Transport,
    question: Question,
    grouping: Grouping,
    measures: Sequence[Measure],
    named: Mapping[str, Measure],
) -> Rows[dict[str, Any]]:
    """Return a row for each group: its keys, and its measures. Without a measure: the counts."""
    if question.limit is not None:
        raise SettingsError("measures are of all that match: leave `limit` and `sample` out")
    asked = [*map(_read_measure, measures)]
    asked += [{**_read_measure(measure), "as": name} for name, measure in named.items()]
    body = {
        **question.list_conditions(),
        **grouping.to_body(),
        "measures": asked or [{"function": "count"}],
    }
    request = make_request("POST", f"{question.path}/aggregate", body=body)
    answer = await fetch(transport, Aggregate, request)
    warn(answer.warnings)
    if answer.others.groups:
        groups = write_count(answer.others.groups, "group")
        warn([f"{groups} with {answer.others.inferences:,} inferences left out: give a `limit`"])
    return Rows({**group.key, **group.measures} for group in answer.groups)


def _read_measure(measure: Measure) -> Mapping[str, Any]:
    if not isinstance(measure, str):
        return measure
    call = _CALL.fullmatch(measure)
    if call is None:
        raise SettingsError(f"{measure!r} is no measure: write count, or mean(top_score)")
    return {"function": call[1]} if not call[2] else {"function": call[1], "of": call[2]}
