"""Saved views: saved, listed, opened, changed, deleted."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.index import registrations, saved_views
from inference_store.index.registrations import Registration
from inference_store.index.saved_views import TIME, Look, SavedView, Shared, read_time
from inference_store.inference.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotKept,
    require_revision,
)
from inference_store.inference.field_docs import Body, ShortText, Text
from inference_store.query.order import NEWEST_FIRST, resolve_sort
from inference_store.query.preparation import QueryRequest, check_request
from inference_store.query.watched import Watch, check_watch

from .access import Access, Asking, Needs, OfModel, Over
from .answer import Answer, Shown
from .conditions import Sort, read_requested_filter
from .dependencies import IfMatch, Reading, Writing
from .fields import InQuery, PageAnswer, PageParameters, by_time, refuse_no_time
from .routing import Router

MOST_CHARACTERS: Final = 10_000
"""Of a filter: that of a link."""


def _check_time(value: str) -> str:
    since, until = read_time(value, datetime.now(UTC))
    refuse_no_time(until, since)
    return value


Name: TypeAlias = Annotated[ShortText, Field(min_length=1, max_length=120)]
Filter: TypeAlias = Annotated[
    Text, Field(min_length=1, max_length=MOST_CHARACTERS, examples=["frame_number > 9000"])
]
Time: TypeAlias = Annotated[
    ShortText,
    Field(examples=["24h"], json_schema_extra={"pattern": TIME}),
    AfterValidator(_check_time),
]
Columns: TypeAlias = Annotated[
    list[Annotated[Text, Field(min_length=1, max_length=300)]], Field(max_length=64)
]


class ViewBody(Body):
    """A view to save. Its filter and its sort are checked as a query's are."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "doubtful persons",
                    "model_id": "hallway-detector",
                    "filter": "prediction(label = 'person' AND score < 0.4)",
                    "time": "24h",
                    "shared": "project",
                }
            ]
        }
    )

    name: Name
    """Its name, unique among the shared views of a model, and among the private ones of a
    caller."""
    model_id: ShortText
    filter: Filter | None = None
    """CQL2-Text. A relative time in it is resolved whenever the view is opened."""
    time: Time | None = None
    """`30m`, `24h` or `7d` before now, or `<from>..<to>` in RFC 3339, either of which may be
    missing; left out: all time."""
    sort: Sort = NEWEST_FIRST
    """As in a query."""
    view: Look = "grid"
    """How it is shown."""
    columns: Columns = Field(default=[])
    """The columns of a table: properties, and `metadata.` with a key; empty for the default."""
    shared: Shared = "private"
    """`private`: only for you; `project`: for everyone who may read the model, which needs the
    right `annotate` over it."""
    watch: Watch | None = None
    """What of it is shown as a metric; left out: nothing. The view must be shared with the project,
    because every reader of the metrics sees its name."""


_MAY_LACK: Final = frozenset({"filter", "time", "watch"})


class ViewChange(Body):
    """The fields to change. Others stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "doubtful people"}]})

    name: Name | None = None
    filter: Filter | None = None
    """Null: none."""
    time: Time | None = None
    """Null: all time."""
    sort: Sort | None = None
    view: Look | None = None
    columns: Columns | None = None
    shared: Shared | None = None
    """Only its creator can make it private again."""
    watch: Watch | None = None
    """Null: it is no metric."""

    def values(self) -> dict[str, Any]:
        """The fields that are given; null takes away what may be missing."""
        given = self.model_dump(exclude_unset=True)
        kept = [name for name in given if given[name] is not None or name in _MAY_LACK]
        return {name: given[name] for name in kept}


class ViewParameters(PageParameters):
    """Which page of which views."""

    model_id: ShortText | None = None
    """Those of this model."""
    shared: Shared | None = None


class ViewFault(Shown):
    """What is wrong with a saved view by now."""

    part: Literal["filter", "sort", "watch"]
    detail: str
    """What is wrong, as the error of a query says it."""
    known: list[str]
    """The nearest names that there are."""


class ListedView(SavedView, Shown):
    """A saved view."""

    may_change: bool
    """Whether you may change and delete it."""


class CheckedView(ListedView):
    """A saved view, and whether its query still works."""

    faults: list[ViewFault]
    """Empty if a query with its filter and its sort works, and so does its watch."""


router = Router("saved views")
_NEEDED = Needs(Right.READ, Over.SOME)
_ONE = "/views/{view_id}"


@router.add("POST /views", _NEEDED, "Save a view", 404, 409, 501, status=201)
async def save_view(body: ViewBody, connection: Writing, access: Asking) -> Answer[CheckedView]:
    """Save a query of a model under a name: for yourself or, with the right `annotate` over the
    model, for everyone who may read it."""
    model = await access.find_model(connection, body.model_id)
    await _keep(connection, model)
    _check_shared(access, model, body.shared)
    values = body.model_dump(exclude={"model_id"})
    _check_watchable(values)
    await _check_question(connection, model.model, values)
    id = await saved_views.add(connection, model, values, by=access.caller.name)
    return await _answer_changed(connection, access, Action.VIEW_SAVED, model, id, status=201)


@router.add("GET /views", _NEEDED, "List saved views", 404)
async def list_views(
    page: InQuery[ViewParameters], connection: Reading, access: Asking
) -> PageAnswer[ListedView]:
    """Your own views, and those of the projects of models that you may read, the newest first."""
    model = None
    if page.model_id is not None:
        model = (await access.find_model(connection, page.model_id)).model
    views = await saved_views.list_views(
        connection,
        by=access.caller.name,
        within=access.scope,
        model=model,
        shared=page.shared,
        before=page.find_before(),
        limit=page.limit + 1,
    )
    return page.answer(
        views,
        lambda view: ListedView.show(view, may_change=_may_change(access, view)),
        by_time("created_at"),
    )


@router.add(f"GET {_ONE}", _NEEDED, "Read a saved view")
async def get_view(view_id: UUID, connection: Reading, access: Asking) -> Answer[CheckedView]:
    """A view, and what is wrong with it by now: a key that it names may no longer exist."""
    return await _answer_view(connection, access, await _find(connection, access, view_id))


@router.add(f"PATCH {_ONE}", _NEEDED, "Change a saved view", 409, 501)
async def change_view(
    view_id: UUID, body: ViewChange, connection: Writing, if_match: IfMatch, access: Asking
) -> Answer[CheckedView]:
    """Change the fields that are given. A view for a project needs the right `annotate` over its
    model."""
    model, view = await _lock(connection, access, view_id)
    given = body.values()
    if body.watch is not None:  # whole: what is stored has no defaults
        given["watch"] = body.watch.model_dump()
    _check_change(access, view, given)
    require_revision("The view", view.revision, if_match)
    await _check_question(connection, model.model, given)
    await saved_views.change(connection, model, view, given, by=access.caller.name)
    return await _answer_changed(connection, access, Action.VIEW_CHANGED, model, view_id)


@router.add(f"DELETE {_ONE}", _NEEDED, "Delete a saved view", status=204)
async def delete_view(
    view_id: UUID, connection: Writing, if_match: IfMatch, access: Asking
) -> Response:
    """Delete a view. One for a project needs the right `annotate` over its model."""
    model, view = await _lock(connection, access, view_id)
    _check_shared(access, view, view.shared)
    require_revision("The view", view.revision, if_match)
    await saved_views.remove(connection, view_id)
    await access.note(connection, Action.VIEW_DELETED, model, **_describe(view))
    return Response(status_code=204)


async def _find(
    connection: AsyncConnection, access: Access, view_id: UUID, *, lock: bool = False
) -> SavedView:
    by, within = access.caller.name, access.scope
    return await saved_views.find(connection, view_id, by=by, within=within, lock=lock)


async def _lock(
    connection: AsyncConnection, access: Access, view_id: UUID
) -> tuple[Registration, SavedView]:
    model_id = (await _find(connection, access, view_id)).model_id
    model = await registrations.get(connection, model_id, within=access.sees)
    await _keep(connection, model)
    return model, await _find(connection, access, view_id, lock=True)


async def _keep(connection: AsyncConnection, model: Registration) -> None:
    if not await registrations.keep(connection, [model.model]):
        raise NotFound(f"There is no model {model.model_id!r}.")


async def _answer_changed(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    action: Action,
    model: Registration,
    view_id: UUID,
    status: int = 200,
) -> Answer[CheckedView]:
    view = await _find(connection, access, view_id)
    await access.note(connection, action, model, **_describe(view))
    return await _answer_view(connection, access, view, status=status)


def _describe(view: SavedView) -> dict[str, Any]:
    # not its name, which may name a subject that was erased since
    known = {"view": str(view.id), "shared": view.shared, "revision": view.revision}
    return {**known, "watched": view.watch is not None}


async def _check_question(
    connection: AsyncConnection, model: int, given: Mapping[str, Any]
) -> None:
    if (text := given.get("filter")) is not None:
        filter = await read_requested_filter(text, "cql2-text")
        await check_request(
            connection, model, QueryRequest(filter=filter.tree, filter_text=filter.text)
        )
    if (sort := given.get("sort")) is not None:
        await resolve_sort(connection, model, sort)
    if (watch := given.get("watch")) is not None:
        await check_watch(connection, model, watch)


def _check_shared(access: Access, subject: OfModel, shared: Shared) -> None:
    if shared == "project":
        access.require_right(Right.ANNOTATE, subject)


def _check_change(access: Access, view: SavedView, given: Mapping[str, Any]) -> None:
    if view.erased_by is not None:
        raise Conflict(
            "An erasure removed the view's name and filter: delete the view, and save a new one."
        )
    shared: Shared = given.get("shared", view.shared)
    for kind in {view.shared, shared}:
        _check_shared(access, view, kind)
    if shared == "private" and view.created_by != access.caller.name:
        raise Forbidden("Only the person who saved the view can make it private again.")
    _check_watchable({"shared": view.shared, "watch": view.watch, **given})


def _check_watchable(view: Mapping[str, Any]) -> None:
    if view["watch"] is not None and view["shared"] != "project":
        wrong = "only a view whose `shared` is `project` can be watched: share it, or send null"
        raise Invalid.of("watch", wrong)


async def _answer_view(
    connection: AsyncConnection, access: Access, view: SavedView, *, status: int = 200
) -> Answer[CheckedView]:
    faults: list[ViewFault] = []
    question = view.model_dump(include={"filter", "sort", "watch"})
    for part in ("filter", "sort", "watch"):
        try:
            await _check_question(connection, view.model, {part: question[part]})
        except (Invalid, NotKept) as refused:
            known = [name for fault in refused.faults for name in fault.known]
            faults.append(ViewFault(part=part, detail=refused.detail, known=known))
    shown = CheckedView.show(view, may_change=_may_change(access, view), faults=faults)
    location = f"/v1/views/{view.id}" if status == 201 else None
    return Answer(shown, status, revision=view.revision, location=location)


def _may_change(access: Access, view: SavedView) -> bool:
    return view.shared == "private" or access.has_right(Right.ANNOTATE, view)
