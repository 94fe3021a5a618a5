"""The operations of an OpenAPI document, and the types of schemathesis for their cases."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import schemathesis
from schemathesis.core.result import Err
from schemathesis.schemas import BaseSchema

Operation: TypeAlias = schemathesis.APIOperation[Any, Any, Any, Any]
Case: TypeAlias = schemathesis.Case[Operation]


def read_operations(document: BaseSchema) -> Iterator[Operation]:
    """Yield every operation of the document. Raises the error of an invalid one."""
    for result in document.get_all_operations():
        if isinstance(result, Err):
            raise result.err()
        yield result.ok()
