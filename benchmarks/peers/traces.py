"""Inferences as MLflow's traces: the rows that its tracking server writes of each.

`written` puts some through the server's own API and keeps the rows that it made of them;
`load` puts all there by COPY, and ends unless those come out as the same rows.
"""

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import asyncpg

from benchmarks.query.population import MODELS

from .documents import format_name, format_tags, list_chunks, list_inferences

Row: TypeAlias = tuple[Any, ...]
# So many are written by MLflow itself, to be compared with.
SHOWN = 20
TABLES: Mapping[str, tuple[str, ...]] = {
    "trace_info": (
        *("request_id", "experiment_id", "timestamp_ms", "execution_time_ms", "status"),
        *("client_request_id", "db_payload_generation"),
    ),
    "trace_tags": ("request_id", "key", "value"),
    "trace_request_metadata": ("request_id", "key", "value"),
}


@dataclass(frozen=True, slots=True)
class Trace:
    """One inference. Its id is made of the uid, so that answers can be compared with ours."""

    trace_id: str
    model: str
    timestamp_ms: int
    execution_time_ms: int
    status: str
    client_request_id: str
    tags: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self, experiments: Mapping[str, int]) -> Mapping[str, list[Row]]:
        """By table; `experiments`: their numbers by name, which are the models'."""
        experiment = experiments[self.model]
        artifacts = f"mlflow-artifacts:/{experiment}/traces/{self.trace_id}/artifacts"
        tagged = {**self.tags, "mlflow.artifactLocation": artifacts}
        info = (
            *(self.trace_id, experiment, self.timestamp_ms, self.execution_time_ms, self.status),
            *(self.client_request_id, 0),
        )
        return {
            "trace_info": [info],
            "trace_tags": [(self.trace_id, key, value) for key, value in tagged.items()],
            "trace_request_metadata": [(self.trace_id, "mlflow.trace.infoFinalized", "true")],
        }


def uid_of(trace_id: str) -> str:
    """Return the uid that a trace's id was made of, without hyphens."""
    return trace_id.removeprefix("tr-")


def list_traces(size: int) -> Iterator[Trace]:
    """Yield the whole population."""
    for chunk in list_chunks(size):
        for uid, inference in list_inferences(chunk):
            yield Trace(
                trace_id=f"tr-{uid.hex}",
                model=MODELS[inference.model_number],
                timestamp_ms=int(inference.received_at.timestamp() * 1000),
                execution_time_ms=10 + round(inference.metadata["exposure"] * 10),
                status="ERROR" if inference.predictions is None else "OK",
                client_request_id=format_name(inference),
                tags=format_tags(inference),
            )


async def load(
    dsn: str,
    size: int,
    experiments: Mapping[str, int],
    write: Callable[[Trace], Awaitable[None]],
) -> None:
    """Fill a database that MLflow has made; `write` is its own API."""
    every = list(list_traces(size))
    samples = every[:: max(1, len(every) // SHOWN)]
    connection = await asyncpg.connect(dsn)
    try:
        for trace in samples:
            await write(trace)
        theirs = await _read_rows(connection, samples)
        await connection.execute("DELETE FROM trace_info")
        for table, columns in TABLES.items():
            rows = (row for trace in every for row in trace.rows(experiments)[table])
            await connection.copy_records_to_table(table, records=rows, columns=columns)
            await connection.execute(f"VACUUM (ANALYZE) {table}")
        if await _read_rows(connection, samples) != theirs:
            sys.exit("MLflow wrote other rows than those that were loaded")
    finally:
        await connection.close()


async def _read_rows(connection: asyncpg.Connection, some: Sequence[Trace]) -> list[str]:
    """Return every column of every row of some traces, in order."""
    ids = [trace.trace_id for trace in some]
    rows: list[str] = []
    for table in TABLES:
        query = f"SELECT to_jsonb(t)::text FROM {table} AS t WHERE request_id = ANY($1) ORDER BY 1"
        rows += [row[0] for row in await connection.fetch(query, ids)]
    return rows
