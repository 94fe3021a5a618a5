"""The operations of an OpenAPI document, and the cases made of them, as schemathesis has them."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import schemathesis
from schemathesis.core.result import Err
from schemathesis.schemas import BaseSchema

Operation: TypeAlias = schemathesis.APIOperation[Any, Any, Any, Any]
Case: TypeAlias = schemathesis.Case[Operation]


def read_operations(document: BaseSchema) -> Iterator[Operation]:
    """Every operation of the document. Raises what is wrong with one that is no operation."""
    for found in document.get_all_operations():
        if isinstance(found, Err):
            raise found.err()
        yield found.ok()
