"""Marks of tests that need certain servers, with the reason why others do not run them."""

import os

import pytest

from .environment import TEST_CITUS

ON_CITUS = bool(os.environ.get(TEST_CITUS))


def _not_on_citus(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(ON_CITUS, reason=f"not on Citus: {reason}")


plain_postgres = _not_on_citus("it is about a Postgres without it")
stored_counts = _not_on_citus("a distributed table has no triggers, so nothing is counted ahead")
merged_partitions = _not_on_citus("partitions are not merged there")
on_citus = pytest.mark.skipif(not ON_CITUS, reason=f"it is about Citus: {TEST_CITUS} names none")
