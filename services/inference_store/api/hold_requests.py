"""Turns requests for holds into entries of the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.ledger import Body
from inference_store.index import model_numbers
from inference_store.inference.errors import Fault, Forbidden, Invalid, NotFound
from inference_store.query.cql2 import Clock

from .access import Access
from .filters import read_filter
from .schemas.holds import HoldBody

# A hold with a moving time range would release inferences; one that stood still would hold less
# than meant.
_FIXED_CLOCK: Final = Clock(
    instead="a hold keeps the same for as long as it stands. Write the time itself, as in"
    " TIMESTAMP('2026-11-01T00:00:00Z'), and say by `until` when the hold ends"
)


async def read_request(body: HoldBody) -> holds.HoldCriteria:
    """Return what to hold, as the store takes it.

    Raises InvalidFilter; Invalid if it would hold nothing.
    """
    if body.until is not None and body.until <= datetime.now(UTC):
        fault = Fault("until", "it has passed: leave it out, or say a time to come")
        raise Invalid("The hold would keep nothing.", faults=[fault])
    is_text = isinstance(body.filter, str) and body.filter_lang != "cql2-json"
    return holds.HoldCriteria(
        filter=await read_filter(body.filter, body.filter_lang, clock=_FIXED_CLOCK),
        filter_text=body.filter if is_text else None,
        inference_ids=body.inference_ids,
        types=body.types,
    )


@dataclass(slots=True)
class HoldRequest:
    """A requested hold; `warnings` are set once its model and its keys are looked up."""

    access: Access
    body: HoldBody
    criteria: holds.HoldCriteria
    warnings: Sequence[str] = ()

    async def build_entry(self, connection: AsyncConnection, id: UUID, *, revision: int) -> Body:
        """Build the ledger's entry.

        Raises what `holds.build_filter` does; Forbidden, NotFound as the model does.
        """
        body = self.body
        model, expected = await self._find_model(connection)
        hold_filter = await holds.build_filter(connection, model, self.criteria)
        self.warnings = (*expected, *hold_filter.warnings)
        until = None if body.until is None else body.until.astimezone(UTC).isoformat()
        values = body.model_dump(include={"name", "reason", "model_id", "inference_ids"})
        return values | {
            "id": str(id),
            "filter": hold_filter.text,
            "until": until,
            "revision": revision,
        }

    async def _find_model(self, connection: AsyncConnection) -> tuple[int | None, Sequence[str]]:
        """Return its model's integer, and a warning if it is not registered, which may be a
        typo."""
        model_id, over_all = self.body.model_id, self.access.scope.is_everything
        if model_id is None and not over_all:
            detail = "A hold of every model needs the rights `read` and `hold` over everything."
            raise Forbidden(detail)
        if model_id is None:
            return None, ()
        try:
            return (await self.access.find_model(connection, model_id, lock=True)).model, ()
        except NotFound:
            if not over_all:
                raise
            warning = f"There is no model {model_id!r} yet: the hold keeps what comes of it."
            return await model_numbers.reserve(connection, model_id), (warning,)
