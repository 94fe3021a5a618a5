"""What a test says of the servers that it is about."""

import os

import pytest

from .environment import TEST_CITUS

ON_CITUS = bool(os.environ.get(TEST_CITUS))
plain_postgres = pytest.mark.skipif(ON_CITUS, reason="it is about a Postgres without Citus")
"""Not on distributed tables: they have no stored counts, say, and no plans."""
