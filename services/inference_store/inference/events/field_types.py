"""The types of the fields of an event, with the limits of the wire."""

from typing import Annotated

from pydantic import AfterValidator, Field, StrictInt, StrictStr

from inference_store.inference.ids import check_id
from inference_store.inference.task_types import task_type_named

from .capture_problems import CAPTURE_PROBLEMS
from .data_hash import data_hash_of


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds NUL")
    return text


def _check_reason(reason: str) -> str:
    if reason not in CAPTURE_PROBLEMS:
        raise ValueError(f"expected one of {', '.join(CAPTURE_PROBLEMS)}")
    return reason


def _hash(text: str) -> str:
    data_hash = data_hash_of(text)
    if data_hash is None:
        raise ValueError("expected 64 hexadecimal digits")
    return data_hash


def _task_type(name: str) -> str:
    task_type = task_type_named(name)
    if task_type is None:
        raise ValueError("expected a task type")
    return task_type.name


Id = Annotated[StrictStr, AfterValidator(check_id)]
Word = Annotated[str, Field(strict=True, max_length=256), AfterValidator(_no_nul)]
Sentence = Annotated[str, Field(strict=True, max_length=16_384), AfterValidator(_no_nul)]
Reason = Annotated[StrictStr, AfterValidator(_check_reason)]
Int32 = Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]
Size = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Pixels = Annotated[StrictInt, Field(gt=0, lt=2**31)]
Position = Annotated[Int32, Field(ge=0)]
TaskType = Annotated[Word, AfterValidator(_task_type)]
DataHash = Annotated[Word, AfterValidator(_hash)]
