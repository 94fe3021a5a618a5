"""The MetaData that every table hangs on, and how constraints are named."""

from sqlalchemy import MetaData
from sqlalchemy.dialects.postgresql import TEXT

METADATA = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)

# Code-point order everywhere: the same order as Python's, on any operating system.
CODE_POINTS = TEXT(collation="C")
