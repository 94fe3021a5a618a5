"""The list of mutants, by what they break."""

from .access import ACCESS
from .capturing import CAPTURING
from .deleting import DELETING
from .indexing import INDEXING
from .ingesting import INGESTING
from .proving import PROVING
from .querying import QUERYING

MUTANTS = (*INGESTING, *INDEXING, *QUERYING, *DELETING, *PROVING, *ACCESS, *CAPTURING)
"""Every mutant; a name is there once."""
