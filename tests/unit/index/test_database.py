"""Which errors of the driver mean that the database is unavailable, and which that we are at
fault."""

import re
from collections import Counter
from pathlib import Path

from asyncpg.exceptions import (
    AdminShutdownError,
    ConnectionDoesNotExistError,
    InterfaceError,
    UndefinedColumnError,
)

from inference_store.index.database import is_transient


def test_distinguishes_transient_errors_from_defects() -> None:
    for error, transient in (
        (InterfaceError("connection is closed"), True),
        # the error of a rollback after a connection was cut amid an operation
        (InterfaceError("cannot perform operation: another operation is in progress"), True),
        (InterfaceError("cannot use a cursor outside of a transaction"), False),
        (ConnectionDoesNotExistError("connection was closed in the middle of operation"), True),
        (AdminShutdownError("terminating connection due to administrator command"), True),
        (UndefinedColumnError("column does not exist"), False),
    ):
        assert is_transient(error) is transient, error


SERVICES = Path(__file__).parents[3] / "services" / "inference_store"


def test_every_lock_has_a_number_of_its_own() -> None:
    text = "\n".join(path.read_text() for path in SERVICES.rglob("*.py"))
    counts = Counter(re.findall(r"= (7_302_\d{3})\b", text))
    assert len(counts) > 5
    assert {number for number, count in counts.items() if count > 1} == set()
