"""The event as it lies on the wire: nine fields, and what a producer may add."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from inference_store.inference.task_types import task_type_named

from .capture_problems import CAPTURE_PROBLEMS
from .data_hash import data_hash_of

MAX_ID_CHARACTERS = 256


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds NUL")
    return text


def _known(reason: str) -> str:
    if reason not in CAPTURE_PROBLEMS:
        raise ValueError(f"expected one of {', '.join(CAPTURE_PROBLEMS)}")
    return reason


def _hash(text: str) -> str:
    found = data_hash_of(text)
    if found is None:
        raise ValueError("expected 64 hexadecimal digits")
    return found


def _task_type(name: str) -> str:
    found = task_type_named(name)
    if found is None:
        raise ValueError("expected a task type")
    return found.name


_Id = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_ID_CHARACTERS)]
Id = Annotated[_Id, AfterValidator(_no_nul)]
_Word = Annotated[str, Field(strict=True, max_length=256), AfterValidator(_no_nul)]
_Sentence = Annotated[str, Field(strict=True, max_length=16_384), AfterValidator(_no_nul)]
_Reason = Annotated[StrictStr, AfterValidator(_known)]
_Int32 = Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]
_Size = Annotated[StrictInt, Field(ge=0, lt=2**63)]
_Pixels = Annotated[StrictInt, Field(gt=0, lt=2**31)]


class WireEvent(BaseModel):
    """What is read of the message; anything else in it is left alone."""

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
    capture_problems: Annotated[Sequence[_Reason], Field(max_length=len(CAPTURE_PROBLEMS))] = ()
    flags: Annotated[Sequence[_Word], Field(max_length=8)] = ()
    metadata: Any = None
    response: Any = None

    capture_id: UUID | None = None
    project_id: _Word | None = None
    model_name: _Word | None = None
    model_version: _Word | None = None
    task_type: Annotated[_Word, AfterValidator(_task_type)] | None = None
    protocol: _Word | None = None
    action: _Word | None = None
    ok: StrictBool | None = None
    http_status: _Int32 | None = None
    grpc_code: _Int32 | None = None
    error: _Sentence | None = None
    trace_id: _Word | None = None
    data_hash: Annotated[_Word, AfterValidator(_hash)] | None = None
    data_size: _Size | None = None
    data_content_type: _Word | None = None
    width: _Pixels | None = None
    height: _Pixels | None = None
    batch_index: Annotated[_Int32, Field(ge=0)] | None = None
    batch_size: Annotated[_Int32, Field(ge=0)] | None = None


NINE = tuple(WireEvent.model_fields)[:9]
IDS = ("model_id", "inference_id")
EXTRAS = tuple(WireEvent.model_fields)[15:]
PRODUCER_FLAGS = ("batch_not_split",)
"""Flags that a producer may give; others are left out."""
FIELDS = frozenset(WireEvent.model_fields)
