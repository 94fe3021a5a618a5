"""Which models a question across models is asked of."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.errors import Fault, Invalid
from inference_store.store.registrations import Registration

from .access import Access
from .schemas.across import Models

MOST_MODELS: Final = 1_000


async def chosen_models(
    connection: AsyncConnection, access: Access, body: Models
) -> Sequence[Registration]:
    """The models that are asked. Raises NotFound as a path does; Invalid where they are many."""
    found = await access.models(
        connection, model_ids=body.model_ids, project_id=body.project_id, limit=MOST_MODELS + 1
    )
    if len(found) > MOST_MODELS:
        fault = Fault("model_ids", f"at most {MOST_MODELS} models are asked at once")
        raise Invalid(
            f"These are more than {MOST_MODELS} models: name a project_id or model_ids.",
            faults=[fault],
        )
    return found
