"""Chooses the models of a query across models."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.plural import counted

from .access import Access
from .schemas.across import Models

MOST_MODELS: Final = 1_000
_MOST_NAMED: Final = 5


async def choose_models(
    connection: AsyncConnection, access: Access, body: Models
) -> Sequence[Registration]:
    """Return the models to query. Raises NotFound as a path does; Invalid if they are too many."""
    models = await access.find_models(
        connection, model_ids=body.model_ids, project_id=body.project_id, limit=MOST_MODELS + 1
    )
    if len(models) > MOST_MODELS:
        fault = Fault("model_ids", f"at most {MOST_MODELS} models are asked at once")
        raise Invalid(
            f"These are more than {MOST_MODELS} models: name a project_id or model_ids.",
            faults=[fault],
        )
    return models


async def warn_of_left_out(
    connection: AsyncConnection, access: Access, body: Models
) -> Sequence[str]:
    """Return a warning about models that the caller may read, but that are left out of a stream.

    A stream needs `export` over each of its models; one that was named and lacks the right is
    refused.
    """
    if body.model_ids is not None or access.sees == access.scope:
        return ()
    readable = await registrations.page(
        connection, limit=None, within=access.sees, project_id=body.project_id
    )
    right = access.needed.right
    missing = [model.model_id for model in readable if not access.has_right(right, model)]
    if not missing:
        return ()
    more = ", …" if len(missing) > _MOST_NAMED else ""
    names = ", ".join(missing[:_MOST_NAMED]) + more
    models = counted(len(missing), "model is", "models are")
    return (f"{models} left out: you lack the right `{right.value}` over {names}.",)
