"""Registrations: the models that the store knows, how their responses are read, their projects."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    func,
    literal,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.index.model_numbers import former
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import policy_version, registration
from inference_store.inference.errors import Conflict, NotFound, require_revision
from inference_store.inference.events import InferenceEvent
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.inference.nearest import MOST_COMPARED, nearest, suggest
from inference_store.inference.task_types import OutputMapping

# Matches the rows within a caller's scope, in SQL.


def match_registrations(scope: AccessScope) -> ColumnElement[bool]:
    """Match the registrations that are in the scope."""
    here = registration.c
    return and_(
        true(),
        *(
            or_(_among(here.project_id, part.projects), _among(here.model_id, part.models))
            for part in scope.parts
        ),
    )


def match_models(scope: AccessScope, model: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `model` (the integer) is a model in the scope."""
    return _match(scope, model, registration.c.model)


def match_model_ids(scope: AccessScope, model_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `model_id` (the text) names a model in the scope."""
    return _match(scope, model_id, registration.c.model_id)


def match_projects(scope: AccessScope, project_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `project_id` names a project that is in the scope as a whole."""
    return and_(true(), *(_among(project_id, part.projects) for part in scope.parts))


def match_policies(scope: AccessScope) -> ColumnElement[bool]:
    """Match the versions of policies whose owner is in the scope; the default is in everything."""
    here = policy_version.c
    parts = (
        or_(
            and_(here.level == "model", _among(here.subject, part.models)),
            and_(here.level == "project", _among(here.subject, part.projects)),
        )
        for part in scope.parts
    )
    return and_(true(), *parts)


async def models_of(
    connection: AsyncConnection, projects: Collection[str]
) -> dict[str, frozenset[str]]:
    """Return the ids of the models in these projects."""
    here, ids_by_project = registration.c, defaultdict(set)
    query = select(here.project_id, here.model_id).where(_among(here.project_id, projects))
    for project_id, model_id in await connection.execute(query):
        ids_by_project[project_id].add(model_id)
    return {project_id: frozenset(models) for project_id, models in ids_by_project.items()}


def _match(
    scope: AccessScope, column: ColumnElement[Any], key: ColumnElement[Any]
) -> ColumnElement[bool]:
    within = select(key).where(match_registrations(scope))
    return true() if scope.is_everything else column.in_(within)


def _among(column: ColumnElement[Any], texts: Collection[str]) -> ColumnElement[bool]:
    """Compare with texts as one parameter, however many there are."""
    return column == any_(literal(sorted(texts), ARRAY(Text)))


MOST_REACHES: Final = 256
"""The number of scopes for which the look-up of a model stays compiled."""
GOES: Final = "removed"
"""By whom a model is registered that was removed, and goes with the last of what is left of it."""


class Registration(Stored):
    """A model's entry. `model` is the integer that stands for it everywhere in the index."""

    model: Hidden[int]
    model_id: str
    project_id: str | None
    name: str | None
    task_type: str | None
    class_labels: tuple[str, ...]
    output_mapping: OutputMapping | None
    registered_by: str
    """`event`: the first event of an unknown model made it; `ledger`: a replay of the ledger did;
    `removed`: it goes with what is left of it; else `api`."""
    revision: int
    registered_at: datetime
    updated_at: datetime
    left_project_id: Hidden[str | None] = None
    """If it was before; until `moves_at` that project's policy goes on to decide."""
    moves_at: Hidden[datetime | None] = None


def registration_of(row: Any) -> Registration:
    """Build a Registration from a row of the table, by name."""
    return Registration.model_validate(dict(row))


async def find_by_ids(
    connection: AsyncConnection, model_ids: Collection[str], *, within: AccessScope = EVERYTHING
) -> dict[str, Registration]:
    """Return the registrations of the models that have one, by model id."""
    among = registration.c.model_id.in_(sorted(model_ids))
    query = select(registration).where(among, match_registrations(within))
    rows = (await connection.execute(query)).mappings()
    return {row["model_id"]: registration_of(row) for row in rows}


async def register_missing(
    connection: AsyncConnection, events: Mapping[str, InferenceEvent]
) -> dict[str, Registration]:
    """Register models by their first event; one that is registered meanwhile stays as it is.

    Only missing ones are inserted: ON CONFLICT uses up identity values.
    """
    missing = set(events) - set(await find_by_ids(connection, events))
    rows = [
        {
            "model_id": model_id,
            "project_id": events[model_id].extras.project_id,
            "name": events[model_id].extras.model_name,
            "task_type": events[model_id].extras.task_type,
            "registered_by": "event",
        }
        for model_id in sorted(missing)
    ]
    await _add(connection, rows)
    return await find_by_ids(connection, events)


async def _add(connection: AsyncConnection, rows: list[dict[str, Any]]) -> list[Registration]:
    """Register models, with their former integers if any; return those that were not there."""
    numbers = await former(connection, [row["model_id"] for row in rows])
    added: list[Registration] = []
    for row in rows:
        new = upsert(registration).values(row | numbers.get(row["model_id"], {}))
        inserted = await connection.execute(new.on_conflict_do_nothing().returning(registration))
        added += map(registration_of, inserted.mappings())
    return added


async def _change(connection: AsyncConnection, model: int, **values: Any) -> Registration:
    """Set columns of a registration, as its next revision."""
    revision = registration.c.revision + 1
    changed = registration.update().where(registration.c.model == model)
    changed = changed.values(values | {"revision": revision, "updated_at": func.now()})
    rows = await connection.execute(changed.returning(registration))
    return registration_of(rows.mappings().one())


async def ensure(connection: AsyncConnection, model_id: str) -> int:
    """Return the integer of a model; register a missing one, with its former integer if any."""
    query = select(registration.c.model).where(registration.c.model_id == model_id)
    model = await connection.scalar(query)
    if model is not None:
        return int(model)
    await _add(connection, [{"model_id": model_id, "registered_by": "ledger"}])
    return int((await connection.execute(query)).scalar_one())


async def every_model(connection: AsyncConnection) -> list[int]:
    """Return the integers of all models, in order."""
    query = select(registration.c.model).order_by(registration.c.model)
    return list((await connection.execute(query)).scalars())


async def keep(connection: AsyncConnection, models: Collection[int]) -> bool:
    """Lock registrations against removal until the transaction ends; False: one is gone."""
    query = select(registration.c.model).where(registration.c.model.in_(sorted(models)))
    rows = await connection.execute(query.with_for_update(read=True, key_share=True))
    return len(rows.all()) == len(set(models))


class Details(Stored):
    """The fields of a registration that an owner sets."""

    project_id: str | None = None
    name: str | None = None
    task_type: str | None = None
    class_labels: tuple[str, ...] = ()
    output_mapping: OutputMapping | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Its columns."""
        columns = self.model_dump(mode="json")
        return columns | ({"output_mapping": null()} if self.output_mapping is None else {})


async def get(
    connection: AsyncConnection,
    model_id: str,
    *,
    lock: bool = False,
    within: AccessScope = EVERYTHING,
) -> Registration:
    """Return a model's registration; `lock`: against change until the transaction ends.

    Raises NotFound, also if the model is not within the scope.
    """
    return registration_of(await find(connection, _by_id(within, lock), model_id))


async def find(connection: AsyncConnection, selecting: PreparedStatement, model_id: str) -> Any:
    """Return the row of a SELECT from `selected`. Raises NotFound."""
    rows = await selecting.fetch(connection, {"wanted": model_id})
    if not rows:
        raise NotFound(f"There is no model {model_id!r}.")
    return rows[0]


def selected(within: AccessScope) -> Select[Any]:
    """Select the registration of the model whose id is the parameter `wanted`, if it is within the
    scope."""
    query = select(registration).where(registration.c.model_id == bindparam("wanted"))
    return query if within.is_everything else query.where(match_registrations(within))


@lru_cache(MOST_REACHES)
def _by_id(within: AccessScope, lock: bool) -> PreparedStatement:
    query = selected(within)
    return PreparedStatement(query.with_for_update() if lock else query)


async def page(
    connection: AsyncConnection,
    *,
    limit: int | None,
    after: str | None = None,
    within: AccessScope = EVERYTHING,
    project_id: str | None = None,
) -> list[Registration]:
    """Return registrations in order of model id, after `after`; only of `project_id` if given."""
    query = (
        select(registration)
        .where(match_registrations(within))
        .order_by(registration.c.model_id)
        .limit(limit)
    )
    if project_id is not None:
        query = query.where(registration.c.project_id == project_id)
    if after is not None:
        query = query.where(registration.c.model_id > after)
    return [registration_of(row) for row in (await connection.execute(query)).mappings()]


async def list_ids(connection: AsyncConnection, *, within: AccessScope, limit: int) -> list[str]:
    """Return up to `limit` ids of the models within a scope, in order."""
    ids = select(registration.c.model_id).where(match_registrations(within))
    rows = await connection.execute(ids.order_by(registration.c.model_id).limit(limit))
    return list(rows.scalars())


async def put(
    connection: AsyncConnection,
    model_id: str,
    details: Details,
    *,
    revision: int | None = None,
    must_be_new: bool = False,
) -> tuple[Registration, bool]:
    """Register a model, or replace its details; True: it is new.

    `revision`: the one it must have now (0: it must be new). Raises PreconditionFailed; Conflict
    if it `must_be_new` and exists, because an event came first.
    """
    query = select(registration).where(registration.c.model_id == model_id)
    row = (await connection.execute(query.with_for_update())).first()
    if row is None and revision in (None, 0):
        new = {"model_id": model_id, "registered_by": "api", **details.values}
        if added := await _add(connection, [new]):
            return added[0], True
        return await put(connection, model_id, details, revision=revision, must_be_new=must_be_new)
    if row is not None and must_be_new:
        raise Conflict(f"The model {model_id!r} has just been registered: try again.")
    require_revision("The registration", 0 if row is None else row.revision, revision)
    assert row is not None, "it has no revision but 0"
    # a change of one that is to be removed keeps it
    by = "api" if row.registered_by == GOES else row.registered_by
    return await _change(connection, row.model, registered_by=by, **details.values), False


async def move(
    connection: AsyncConnection,
    model_id: str,
    project_id: str | None,
    *,
    left: str | None = None,
    at: datetime | None = None,
) -> Registration:
    """Put a model into a project; register a missing model.

    The policy of the project that it `left` decides until `at`, if that is given.
    """
    model = await ensure(connection, model_id)
    return await _change(
        connection, model, project_id=project_id, left_project_id=left, moves_at=at
    )


async def names(connection: AsyncConnection, models: Collection[int | None]) -> dict[int, str]:
    """Return the ids of models by their integers."""
    numbers = sorted(model for model in models if model is not None)
    query = select(registration.c.model, registration.c.model_id)
    rows = await connection.execute(query.where(registration.c.model.in_(numbers)))
    return {row.model: row.model_id for row in rows}


class Project(Stored):
    """What registrations name as their project."""

    project_id: str
    models: int
    """How many of its models the caller sees."""


async def list_projects(
    connection: AsyncConnection,
    *,
    limit: int,
    after: str | None = None,
    within: AccessScope = EVERYTHING,
) -> list[Project]:
    """Return the projects that have models in the scope, in order of their ids, after `after`."""
    here = registration.c
    query = (
        select(here.project_id, func.count().label("models"))
        .where(match_registrations(within), here.project_id.is_not(None))
        .group_by(here.project_id)
        .order_by(here.project_id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(here.project_id > after)
    return [Project.model_validate(row) for row in await connection.execute(query)]


_MOST_NAMED: Final = 3


async def refuse_model(
    connection: AsyncConnection, model_id: str, within: AccessScope, *, at: str | None = None
) -> NotFound:
    """Return the error for a model that is not within the scope, with the nearest ids that are.
    `at`: the field that names it.

    Its words are the same whether or not the model exists outside the scope.
    """
    model_ids = await list_ids(connection, within=within, limit=MOST_COMPARED)
    near = nearest(model_id, model_ids, limit=_MOST_NAMED)
    return NotFound(f"There is no model {model_id!r}.{suggest(near)}", at=at)
