"""The rows: bench-query's population with its shares turned round, kept; each run has a copy.

The model that has 70 % of it is erased as a whole, two of 10 % while the fourth is asked.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.servers.postgres import PostgresServer

from benchmarks.ingest.__main__ import POSTGRES
from benchmarks.query.dataset import DATABASE, KeptPostgres, cache, loaded_into
from benchmarks.query.population import MODELS, VERSION

DOOMED, *BESIDE, ASKED = MODELS[::-1]
_SHARE = 0.7
_SETTINGS: Final = {**POSTGRES, "max_wal_size": "2GB", "random_page_cost": "1.1"}


@contextmanager
def dataset(rows: int) -> Iterator[PostgresServer]:
    """A server where DOOMED has about `rows` inferences: gone when this ends."""
    size = round(rows / _SHARE)
    data_folder = cache() / f"v{VERSION}-{size}-erasure"
    loaded_into(data_folder, size, models=MODELS[::-1], objects=False)
    folder = cache() / f"v{VERSION}-{size}-erasure-run"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", data_folder, folder], check=True)
        with KeptPostgres(folder, _SETTINGS) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def dsn_of(server: PostgresServer) -> str:
    """The address of its database."""
    return server.dsn_of(DATABASE)
