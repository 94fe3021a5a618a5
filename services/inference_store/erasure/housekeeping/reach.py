"""The records in which an erasure may redact mentions of its subject.

Who may erase from one model must neither change nor learn what stands about another. So an erasure
reaches what belongs to its own models; what belongs to no single model (entries of the audit about
the whole store, defaults, holds of every model), only if no model is outside of it.
"""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.access.rights import ScopePart
from inference_store.erasure.progress.erasure import Erasure, list_models
from inference_store.index.tables import registration


async def find_reach(connection: AsyncConnection, erasure: Erasure) -> AccessScope:
    """Return the scope of an erasure's models, and of the projects that have no other models."""
    here = registration.c
    is_inside = here.model.in_(await list_models(connection, erasure))
    query = select(here.project_id, func.bool_and(is_inside).label("is_whole"))
    query = query.add_columns(func.array_agg(here.model_id).filter(is_inside).label("models"))
    projects = (await connection.execute(query.group_by(here.project_id))).all()
    if projects and all(row.is_whole for row in projects):
        return EVERYTHING
    whole = frozenset(row.project_id for row in projects if row.is_whole and row.project_id)
    models = frozenset(model for row in projects for model in row.models or ())
    return AccessScope((ScopePart(whole, models),))
