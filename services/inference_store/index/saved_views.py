"""Saved views: named questions about a model, private to a caller or of the model's project."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID, uuid4

from pydantic import Field
from sqlalchemy import ColumnElement, Select, delete, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope
from inference_store.index.registrations import Registration, match_registrations
from inference_store.inference.errors import Conflict, NotFound
from inference_store.inference.field_docs import Hidden, Stored, instant

from .tables import registration, saved_view

Shared: TypeAlias = Literal["private", "project"]
Look: TypeAlias = Literal["grid", "patches", "table", "map"]
MOST_OF_A_CALLER: Final = 200
"""Private views of one caller, of all models together."""
MOST_OF_A_PROJECT: Final = 500
"""Views of one project; of a model without a project, so many of its own."""
MOST_WATCHED: Final = 100
"""Watched views, of all models together: each is a series of a metric, and a query that returns."""
_LOCK = 7_302_041
_HERE: Final = saved_view.c
_INSTANT: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
TIME: Final = rf"^([0-9]{{1,4}}[mhd]|{_INSTANT}\.\.({_INSTANT})?|\.\.{_INSTANT})$"
"""The pattern of a view's time."""
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


def read_time(text: str, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the ends of a view's time, either of which may be missing. Raises ValueError."""
    if not re.fullmatch(TIME, text):
        raise ValueError(
            "it must be a span before now, such as 30m, 24h or 7d, or `<from>..<to>` in RFC 3339"
        )
    start, between, end = text.partition("..")
    if not between:
        return now - timedelta(**{_UNITS[text[-1]]: int(text[:-1])}), None
    return instant(start) if start else None, instant(end) if end else None


class StoredWatch(Stored):
    """The metric that a view is, as it was checked."""

    every: str = Field(examples=["PT5M"])
    """How often it is read: an ISO 8601 duration."""
    of: dict[str, Any] = Field(examples=[{"function": "count"}])
    """The measure of an aggregate."""


class SavedView(Stored):
    """A named question about a model."""

    id: UUID
    model: Hidden[int]
    model_id: str
    project_id: str | None
    """The project that the model is in now."""
    name: str | None
    """Null: an erasure took it."""
    filter: str | None
    """CQL2-Text, as it was saved; null: none."""
    time: str | None
    """`30m`, `24h` or `7d` before now, or `<from>..<to>`, either of which may be missing; null: all
    time."""
    sort: str
    view: Look
    """How it is shown."""
    columns: list[str]
    """The columns of a table; empty: those that a table has by itself."""
    shared: Shared
    """`private`: for whoever saved it; `project`: for whoever may read the model."""
    watch: StoredWatch | None
    """The metric `inference_store_saved_query` that it is; null: none."""
    revision: int
    created_by: str
    created_at: datetime
    updated_by: str
    updated_at: datetime
    erased_by: UUID | None
    """The erasure that took its name, filter, sort and columns, because one of them mentioned what
    was erased."""


async def find(
    connection: AsyncConnection, id: UUID, *, by: str, within: AccessScope, lock: bool = False
) -> SavedView:
    """Return a view that the caller `by` may see. `lock`: against change until the transaction
    ends. Raises NotFound."""
    if lock:
        await connection.execute(select(_HERE.id).where(_HERE.id == id).with_for_update())
    query = _select(*_visible(by, within)).where(_HERE.id == id)
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound(f"There is no view {id}.")
    return SavedView(**row._mapping)


async def list_views(
    connection: AsyncConnection,
    *,
    by: str,
    within: AccessScope,
    model: int | None = None,
    shared: Shared | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int,
) -> list[SavedView]:
    """Return the views that the caller `by` may see, the newest first; `before`: (created_at, id)
    of the last one of a page."""
    query = _select(*_visible(by, within))
    if model is not None:
        query = query.where(_HERE.model == model)
    if shared is not None:
        query = query.where(_HERE.shared == shared)
    if before is not None:
        query = query.where(tuple_(_HERE.created_at, _HERE.id) < before)
    query = query.order_by(_HERE.created_at.desc(), _HERE.id.desc()).limit(limit)
    return [SavedView(**row._mapping) for row in await connection.execute(query)]


async def list_watched(connection: AsyncConnection) -> list[SavedView]:
    """Return the views that are metrics."""
    query = _select(_HERE.watch.is_not(None), _HERE.shared == "project").order_by(_HERE.id)
    return [SavedView(**row._mapping) for row in await connection.execute(query)]


async def add(
    connection: AsyncConnection, model: Registration, values: Mapping[str, Any], *, by: str
) -> UUID:
    """Save a view; return its id. Raises Conflict if the name is taken,
    or if there are too many."""
    await _require_free_name(connection, model, values["shared"], values["name"], by=by)
    await _require_room(connection, model, values["shared"], by=by)
    if values["watch"] is not None:
        await _require_watchable(connection)
    id = uuid4()
    row = {"id": id, "model": model.model, "created_by": by, "updated_by": by, **values}
    await connection.execute(saved_view.insert().values(row))
    return id


async def change(
    connection: AsyncConnection,
    model: Registration,
    view: SavedView,
    values: Mapping[str, Any],
    *,
    by: str,
) -> None:
    """Change a view that is locked. Raises Conflict as `add` does."""
    name, shared = values.get("name", view.name), values.get("shared", view.shared)
    owner = view.created_by
    if (name, shared) != (view.name, view.shared):
        await _require_free_name(connection, model, shared, name, by=owner)
    if shared != view.shared:
        await _require_room(connection, model, shared, by=owner)
    if view.watch is None and values.get("watch") is not None:
        await _require_watchable(connection)
    more = {"revision": _HERE.revision + 1, "updated_by": by, "updated_at": func.now()}
    changed = saved_view.update().where(_HERE.id == view.id)
    await connection.execute(changed.values({**values, **more}))


async def remove(connection: AsyncConnection, id: UUID) -> None:
    """Delete a view."""
    await connection.execute(delete(saved_view).where(_HERE.id == id))


def _select(*tests: ColumnElement[bool]) -> Select[Any]:
    names = [name for name in SavedView.model_fields if name in _HERE]
    query = select(
        *(_HERE[name] for name in names), registration.c.model_id, registration.c.project_id
    ).join(registration, registration.c.model == _HERE.model)
    return query.where(*tests)


def _visible(by: str, within: AccessScope) -> tuple[ColumnElement[bool], ...]:
    return match_registrations(within), or_(_HERE.shared == "project", _HERE.created_by == by)


async def _require_free_name(
    connection: AsyncConnection, model: Registration, shared: Shared, name: str, *, by: str
) -> None:
    """Raise Conflict if the name is taken; nobody else takes one until the transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    same = [_HERE.model == model.model, _HERE.name == name, _HERE.shared == shared]
    if shared == "private":
        same.append(_HERE.created_by == by)
    query = select(_HERE.id).where(*same)
    if await connection.scalar(query) is not None:
        whose = "you have" if shared == "private" else "its project has"
        raise Conflict(
            f"Of this model {whose} a view {name!r} already: choose another name, or change that"
            " view.",
            at="name",
        )


async def _require_room(
    connection: AsyncConnection, model: Registration, shared: Shared, *, by: str
) -> None:
    here, most = registration.c, MOST_OF_A_CALLER
    query = select(func.count()).select_from(saved_view).where(_HERE.shared == shared)
    if shared == "private":
        query = query.where(_HERE.created_by == by)
    else:
        most = MOST_OF_A_PROJECT
        models = select(here.model).where(here.project_id == model.project_id)
        own = _HERE.model == model.model
        query = query.where(own if model.project_id is None else _HERE.model.in_(models))
    if int(await connection.scalar(query) or 0) >= most:
        whose = "You have" if shared == "private" else "The project has"
        detail = f"{whose} {most} saved views, which is the most: delete one first."
        raise Conflict(detail, at="shared")


async def _require_watchable(connection: AsyncConnection) -> None:
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    query = select(func.count()).where(_HERE.watch.is_not(None))
    if int(await connection.scalar(query) or 0) >= MOST_WATCHED:
        raise Conflict(
            f"{MOST_WATCHED} views are watched, which is the most: end the watch of one first.",
            at="watch",
        )
