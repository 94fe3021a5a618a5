"""Drift of a model: how the inferences of two windows differ, by more than chance."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import ConfigDict, Field, JsonValue, Strict
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.index import saved_views
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict, Invalid
from inference_store.inference.field_docs import FINITE, WHOLE, Body
from inference_store.query.aggregates.aggregation import Of
from inference_store.query.cql2 import Clock
from inference_store.query.cql2.tree import Instant, Named, Node, Operation
from inference_store.query.drift import (
    Drift,
    Window,
    choose_features,
    compare,
    read_windows,
)
from inference_store.query.preparation import QueryRequest, UnknownKeys, prepare

from .access import Access, Asking
from .answer import Answer, Shown
from .conditions import BodyLang, filter_field, read_filter
from .dependencies import Querying
from .fields import Window as TimeWindow
from .http import INFERENCES, ModelId
from .inference_pages import limit_query_time, set_deadline
from .routing import Router

_WEEK: Final[JsonValue] = {"from": "2026-11-01T00:00:00Z", "to": "2026-11-08T00:00:00Z"}
_EXAMPLE: Final[JsonValue] = {
    "reference": {"received_at": _WEEK},
    "current": {"received_at": {"from": "2026-11-08T00:00:00Z"}},
    "of": ["brightness", "top_label", "prediction.area"],
}


class DriftWindowBody(Body):
    """Which inferences; everything that is given must hold, and nothing is all of them."""

    filter: Any = filter_field("As in a query.", "data_source = 'hallway-camera-feed'")
    filter_lang: BodyLang = None
    received_at: TimeWindow | None = None
    """When the request came in; in place of the time of the view, if it has one."""
    view: UUID | None = None
    """A saved view of this model, by its id."""


class DriftQuestion(Body):
    """Two windows, and what of them is compared."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    reference: DriftWindowBody
    """What is usual."""
    current: DriftWindowBody
    """What is compared with it."""
    of: Annotated[list[Of], Field(min_length=1, max_length=100)] | None = None
    """Properties, metadata keys, `label`, numbers of predictions such as `prediction.score`, and
    `prediction.center_x`, `prediction.center_y` and `prediction.aspect` of boxes. Left out: errors,
    latency, labels, scores, boxes, and the 50 metadata keys that are sent most. Of a key it is also
    compared how many lack it."""
    level: Annotated[float, Field(ge=1e-6, le=0.5), FINITE] = 0.05
    """How likely a false alarm is, over the whole answer."""
    sample: Annotated[int, Strict(), Field(ge=100, le=20_000), WHOLE] = 10_000
    """The most inferences of each window that are compared; of more, a random sample is."""
    timeout_seconds: Annotated[float, Field(ge=0.1), FINITE] | None = None
    """The longest time, at most INFERENCE_STORE_QUERY_TIMEOUT_SECONDS, which is the default."""
    unknown_keys: UnknownKeys = "refuse"
    """`refuse`: a metadata key that no inference of the model has is an error; `empty`: nothing
    has it."""


class ShownDrift(Drift, Shown):
    """How two windows differ."""

    warnings: Sequence[str]


router = Router("inferences")
_NARROW: Final = (
    "The comparison took too long: narrow the windows' received_at, name fewer in `of`, or take a"
    " smaller `sample`."
)


@router.add(f"POST {INFERENCES}/drift", Right.READ, "Compare two windows", 501)
async def compare_windows(
    model_id: ModelId, body: DriftQuestion, connection: Querying, access: Asking
) -> Answer[ShownDrift]:
    """Whether the metadata, labels, scores, boxes, latency and errors of two windows differ by more
    than chance, and by how much: the largest changes first."""
    model, extent = await access.find_model_to_query(connection, model_id)
    deadline, now = set_deadline(body, access.settings), datetime.now(UTC)
    windows = [
        await _read_window(connection, access, model, name, window, now)
        for name, window in (("reference", body.reference), ("current", body.current))
    ]
    same = "both windows are the same: give it another time, filter or view"
    if windows[0].node == windows[1].node:
        raise Invalid.of("current", same)
    warnings = []
    choice = await choose_features(connection, model.model, body.of, body.unknown_keys)
    prepared = []
    for window in windows:
        request = window.to_request(body.unknown_keys)
        one = await prepare(connection, model.model, request, extent)
        warnings += [f"{window.name}: {warning}" for warning in one.warnings]
        prepared.append(Window(one.query, window.node))
    with limit_query_time("drift", _NARROW, prepared[0].query):
        how: Any = {"most": body.sample}
        features, read = choice.features, (prepared, choice.features, deadline)
        (reference, current), scattered = await read_windows(connection, model, *read, **how)
    for window, sampled in zip(windows, (reference, current), strict=True):
        if not sampled.sampled:
            message = "the window is empty: no inference matches; widen its time or its filter"
            raise Invalid.of(window.name, message)
    # samples of one order have in common what the windows have
    shared = not set(reference.uids).isdisjoint(current.uids)
    if shared and reference.uids == current.uids:
        raise Invalid.of("current", same)
    if shared:
        warnings.append("The windows overlap: what both have hides what has changed.")
    if body.of is not None and scattered:
        names = ", ".join(scattered)
        warnings.append(f"Too many different values to be compared: {names}.")
    left_out = choice.keys_left_out + (0 if body.of else len(scattered))
    how = {"level": body.level, "keys_left_out": left_out}
    result = await asyncio.to_thread(compare, features, reference, current, **how)
    warnings = [*dict.fromkeys([*warnings, *choice.warnings])]
    return Answer(ShownDrift.show(result, warnings=warnings))


@dataclass(frozen=True, slots=True)
class _Window:
    """A window of the question. `text`: of its filter, if errors can point into it."""

    name: str
    filter: Node | None
    text: str | None
    since: datetime | None
    until: datetime | None

    @property
    def node(self) -> Node | None:
        """Its filter with its time, in CQL2."""
        at = Named("received_at")
        parts = [] if self.filter is None else [self.filter]
        for op, end in ((">=", self.since), ("<", self.until)):
            parts += [] if end is None else [Operation(op, (at, Instant(end)))]
        return Operation("and", tuple(parts)) if len(parts) > 1 else next(iter(parts), None)

    def to_request(self, unknown_keys: UnknownKeys) -> QueryRequest:
        """Return it as the store takes it."""
        return QueryRequest(
            filter=self.filter,
            filter_text=self.text,
            since=self.since,
            until=self.until,
            unknown_keys=unknown_keys,
        )


async def _read_window(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    model: Registration,
    name: str,
    body: DriftWindowBody,
    now: datetime,
) -> _Window:
    clock, window = Clock(now), body.received_at or TimeWindow()
    filter = await read_filter(body.filter, body.filter_lang, clock=clock, path=f"{name}.filter")
    is_text = isinstance(body.filter, str) and body.filter_lang != "cql2-json"
    text = body.filter if is_text else None
    since, until = window.since, window.until
    if body.view is not None:
        by, within = access.caller.name, access.scope
        view = await saved_views.find(connection, body.view, by=by, within=within)
        if view.model != model.model:
            message = f"it is a view of the model {view.model_id!r}: choose one of this model"
            raise Invalid.of(f"{name}.view", message)
        if view.erased_by is not None:
            detail = "An erasure removed the view's filter: choose another view."
            raise Conflict(detail, at=f"{name}.view")
        own = await read_filter(view.filter, "cql2-text", clock=clock, path=f"{name}.view")
        if own is not None:
            both = filter is not None
            filter, text = Operation("and", (own, filter)) if filter else own, None
            text = None if both else view.filter
        if body.received_at is None and view.time is not None:
            since, until = saved_views.read_time(view.time, now)
        elif body.received_at is None:
            since, until = None, None
    return _Window(name, filter, text, since, until)
