"""The event on the wire: nine fields, and those that a producer may add."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    create_model,
)

from .capture_problems import CAPTURE_PROBLEMS
from .event import Extras
from .field_types import Id, Reason, Word


class WireEvent(BaseModel):
    """The fields that are read from the message; anything else in it is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_id: Id
    inference_id: Id
    request_received_at: StrictStr
    request_forwarded_at: StrictStr | None
    request_responded_at: StrictStr | None
    event_published_at: StrictStr | None
    data_storage_key: StrictStr | None
    inference_storage_key: StrictStr | None
    metadata_storage_key: StrictStr | None

    schema_version: StrictInt | StrictStr | StrictFloat | None = None
    aliases: Annotated[Sequence[Id], Field(max_length=8)] = ()
    capture_problems: Annotated[Sequence[Reason], Field(max_length=len(CAPTURE_PROBLEMS))] = ()
    flags: Annotated[Sequence[Word], Field(max_length=8)] = ()
    metadata: Any = None
    response: Any = None


EXTRAS = tuple(extra.name for extra in fields(Extras))
_hints = get_type_hints(Extras, include_extras=True)
_extras: dict[str, Any] = {name: (_hints[name], None) for name in EXTRAS}
WHOLE_EVENT = create_model("WireEvent", __base__=WireEvent, **_extras)
"""The event with the extras, whose names and types are those of `Extras`."""
NINE = tuple(WireEvent.model_fields)[:9]
IDS = ("model_id", "inference_id")
PRODUCER_FLAGS = ("batch_not_split",)
"""Flags that a producer may set; others are left out."""
FIELDS = frozenset(WHOLE_EVENT.model_fields)
