"""A data set of the benchmark, as large as the module of tests says."""

from collections.abc import Iterator

import pytest
from benchmarks.query.dataset import scratch

from tests.servers.minio import find_minio
from tests.servers.missing import demand
from tests.servers.postgres import find_postgres

from .loaded import Loaded


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    """SIZE inferences."""
    demand("postgres", find_postgres)
    demand("minio", find_minio)
    with scratch(request.module.SIZE) as (server, dsn):
        yield Loaded(server, dsn)
