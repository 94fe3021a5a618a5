"""Which policies apply to which models, now."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import structlog
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.failures import failed
from inference_store.index.tables import registration
from inference_store.inference.errors import StoreError

from . import stored
from .chain import DEFAULT, Chain, Of, chain_of
from .stored import Version

_log = structlog.get_logger()


def deciding() -> ColumnElement[str | None]:
    """The project whose policy decides over a registration: for a while after a move the one that
    it left."""
    here = registration.c
    return case((here.moves_at > func.now(), here.left_project_id), else_=here.project_id)


def wider(model_id: str, project_id: str | None) -> tuple[Of, ...]:
    """Whose policies apply to a model, the nearest first."""
    project = () if project_id is None else (Of("project", project_id),)
    return (Of("model", model_id), *project, DEFAULT)


async def by_model(
    connection: AsyncConnection, models: Collection[int] | None = None
) -> dict[int, Chain]:
    """What applies to these models, or to all; one of which everything is kept is not there."""
    here = registration.c
    query = select(here.model, here.model_id, deciding().label("project_id"))
    if models is not None:
        query = query.where(here.model.in_(sorted(models)))
    rows = (await connection.execute(query)).all()
    chosen = None if models is None else _owners(rows)
    versions = await stored.in_force(connection, chosen)
    found = {row.model: chain(wider(row.model_id, row.project_id), versions) for row in rows}
    return {model: each for model, each in found.items() if each is not None}


async def limited_by_bytes(connection: AsyncConnection) -> list[int]:
    """The models that a limit by bytes is over, now or once all has begun that waits, in order."""
    here = registration.c
    query = select(here.model, here.model_id, here.project_id, deciding().label("deciding"))
    rows = (await connection.execute(query.order_by(here.model))).all()
    times = await stored.in_force(connection), await stored.ahead(connection)
    return [
        row.model
        for row in rows
        if any(
            _has_bytes(chain(wider(row.model_id, project), versions))
            for versions in times
            for project in {row.project_id, row.deciding}
        )
    ]


def _has_bytes(found: Chain | None) -> bool:
    return found is not None and any(each.name == "max_bytes" for each in found.limits)


def chain(owners: Iterable[Of], versions: Mapping[Of, Version]) -> Chain | None:
    """The chain of these owners' policies; None: none of them has one that can be read."""
    found = [versions[of] for of in owners if of in versions]
    if not found:
        return None
    texts = [stored.write_document(each.policy) for each in found if each.policy is not None]
    return _chain(tuple((e.of, e.revision, text) for e, text in zip(found, texts, strict=True)))


@lru_cache(maxsize=4096)
def _chain(policies: tuple[tuple[Of, int, str], ...]) -> Chain | None:
    """None where a filter cannot be read: nothing may be deleted then, and it is said once."""
    try:
        return chain_of([(of, revision, stored.read_document(t)) for of, revision, t in policies])
    except (StoreError, ValueError, KeyError, TypeError) as error:
        failed("policy_unreadable")
        whose = ", ".join(str(of) for of, _, _ in policies)
        _log.error("policy unreadable", action="policy_unreadable", of=whose, error=str(error))
        return None


def _owners(rows: Iterable[Any]) -> set[Of]:
    return {of for row in rows for of in wider(row.model_id, row.project_id)}
