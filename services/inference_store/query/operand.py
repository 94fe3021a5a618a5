"""Values as parameters of a statement."""

from typing import Any

from sqlalchemy import bindparam
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.type_api import TypeEngine


def bind_one(value: Any, kind: TypeEngine[Any]) -> Any:
    """Return one value as a parameter."""
    return bindparam(None, value, type_=kind, unique=True)


def bind_many(values: Any, kind: TypeEngine[Any]) -> Any:
    """Return a list as one parameter: the protocol allows 32,767 of them."""
    return bindparam(None, list(values), type_=ARRAY(kind), unique=True)
