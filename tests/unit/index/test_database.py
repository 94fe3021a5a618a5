"""Which errors of the driver mean that the database is away, and which that we are at fault."""

import pytest
from asyncpg.exceptions import (
    AdminShutdownError,
    ConnectionDoesNotExistError,
    InterfaceError,
    UndefinedColumnError,
)

from inference_store.index.database import is_trouble


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (InterfaceError("connection is closed"), True),
        # what the rollback says where a connection was cut amid an operation
        (InterfaceError("cannot perform operation: another operation is in progress"), True),
        (InterfaceError("cannot use a cursor outside of a transaction"), False),
        (ConnectionDoesNotExistError("connection was closed in the middle of operation"), True),
        (AdminShutdownError("terminating connection due to administrator command"), True),
        (UndefinedColumnError("column does not exist"), False),
    ],
)
def test_trouble_is_told_from_a_fault_of_ours(error: Exception, trouble: bool) -> None:
    assert is_trouble(error) is trouble
