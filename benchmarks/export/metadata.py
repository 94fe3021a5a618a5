"""The population with its metadata as they came, which the benchmarks of queries leave out."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.fixtures import migrate
from tests.servers.postgres import Postgres

from benchmarks.query.dataset import DATABASE, SETTINGS, KeptPostgres, folder_of, loaded_into

_COMPLETE = "complete"
_TYPES = (
    "('frame_number','int'),('latitude','float'),('longitude','float'),('exposure','float'),"
    "('temperature','float'),('incident','int'),('data_source','string'),"
    "('organization','string'),('segment','string'),('firmware','string'),('note','string'),"
    "('night','bool'),('captured_at','timestamp')"
)
# As the ingester stores them: a JSON array of objects.
_FILL = f"""
WITH kind (name, type) AS (VALUES {_TYPES}), leaf AS (
    SELECT model, key, uid, value::text FROM metadata_number
    UNION ALL SELECT model, key, uid, value FROM metadata_string
    UNION ALL SELECT model, key, uid, value::text FROM metadata_bool
    UNION ALL SELECT model, key, uid,
        to_char(value AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM metadata_timestamp
), entries AS (
    SELECT model, uid, '[' || string_agg(
        json_build_object('key', name, 'type', type, 'value', value)::text, ',' ORDER BY name
    ) || ']' AS entries
    FROM leaf JOIN metadata_key USING (key) JOIN kind USING (name) GROUP BY model, uid
)
UPDATE inference SET metadata = convert_to(entries.entries, 'UTF8')
FROM entries WHERE inference.model = entries.model AND inference.uid = entries.uid
"""


@contextmanager
def serve_dataset(size: int) -> Iterator[str]:
    """Yield the address of a database with `size` inferences and their metadata; kept."""
    folder = folder_of(size, None)
    folder = folder.with_name(f"{folder.name}-with-metadata")
    if not (folder / _COMPLETE).exists():
        _fill(folder, size)
    with KeptPostgres(folder, SETTINGS) as server:
        dsn = server.dsn_of(DATABASE)
        migrate(dsn)
        yield dsn


def _fill(folder: Path, size: int) -> None:
    if folder.exists():  # of a run that was stopped
        shutil.rmtree(folder)
    loaded_into(folder, size)
    with KeptPostgres(folder, SETTINGS) as server:
        dsn = server.dsn_of(DATABASE)
        Postgres(dsn).execute(_FILL)
        Postgres(dsn).execute("VACUUM FULL ANALYZE inference")
        Postgres(dsn).execute("CHECKPOINT")
    (folder / _COMPLETE).touch()
