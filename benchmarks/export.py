"""`make bench-export SIZE=100k`: all inferences of a model as a stream, in each format.

CPU is that of the api and of Postgres together, for each inference. Beside each stream another
caller, in a process of its own, asks for pages of 50, one after the other; just before it asks
alone.
"""

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from tests.servers.fixtures import migrate
from tests.servers.minio import MinioServer
from tests.servers.postgres import Postgres

from benchmarks.query.dataset import DATABASE, SETTINGS, SIZES, KeptPostgres, folder_of, loaded_into
from benchmarks.query.population import MODELS
from inference_store.api.http import NDJSON
from inference_store.export.formats import FORMATS

from .results import add_results_option, deliver, describe_machine, format_table, percentile
from .servers import Served, cpu_seconds, start_api

_BODY: Final = {"include": ["metadata", "predictions"]}
_CODINGS: Final = ("identity", "zstd")
_QUERY: Final = f"/v1/models/{MODELS[0]}/inferences/query"
_COUNT: Final = (
    "SELECT count(*) FROM inference"
    f" WHERE model = (SELECT model FROM registration WHERE model_id = '{MODELS[0]}')"
)
_ALONE_SECONDS: Final = 4.0
_MEBIBYTE: Final = 2**20
_ASK: Final = "--ask"
_BUCKET: Final = "captures"
_COMPLETE: Final = "complete"
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


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stream took, for each inference: microseconds of CPU, bytes; and altogether."""

    api: float
    postgres: float
    bytes: float
    seconds: float
    grown_mib: float
    """By how much the api's memory was larger during the stream than before it, at most."""


@dataclass(frozen=True, slots=True)
class _Stage:
    api: Served
    postgres: Callable[[], Sequence[int]]
    inferences: int


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="100k", help="inferences")
    parser.add_argument(_ASK, metavar="ADDRESS", help=argparse.SUPPRESS)
    add_results_option(parser, "export")
    arguments = parser.parse_args()
    if arguments.ask:
        _ask_until_input_ends(arguments.ask)
        return
    machine = describe_machine()
    with _serve(SIZES[arguments.size]) as stage:
        lines = [
            _measure_line(stage, media_type, coding)
            for media_type in (NDJSON, *FORMATS)
            for coding in _CODINGS
        ]
    results = {"machine": machine, "inferences": stage.inferences, "lines": lines}
    about = f"{stage.inferences:,} inferences with metadata and predictions."
    head = "format | coding | api µs | Postgres µs | bytes | seconds | memory"
    head += " | p99 alone | p99 beside | seconds beside"
    deliver(arguments.results, results, about, format_table(head, map(_list_cells, lines)))


@contextmanager
def _serve(size: int) -> Iterator[_Stage]:
    with ExitStack() as stack:
        postgres, dsn = stack.enter_context(_serve_dataset(size))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(_BUCKET)
        api = start_api(stack, dsn, minio, _BUCKET, API_RATE_LIMIT_PER_MINUTE="0")
        yield _Stage(api, postgres.pids, int(Postgres(dsn).ask(_COUNT)))


@contextmanager
def _serve_dataset(size: int) -> Iterator[tuple[KeptPostgres, str]]:
    """A server with `size` inferences and their metadata, kept, and the database's address."""
    folder = folder_of(f"{size}-with-metadata")
    if not (folder / _COMPLETE).exists():
        _fill(folder, size)
    with KeptPostgres(folder, SETTINGS) as server:
        dsn = server.dsn_of(DATABASE)
        migrate(dsn)
        yield server, dsn


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


def _measure_line(stage: _Stage, media_type: str, coding: str) -> dict[str, Any]:
    print(f"{media_type}, {coding} …", flush=True)
    _measure_stream(stage, media_type, coding)
    cost = _measure_stream(stage, media_type, coding)
    with _asking_beside(stage.api.address) as alone:
        time.sleep(_ALONE_SECONDS)
    with _asking_beside(stage.api.address) as neighbour:
        beside = _measure_stream(stage, media_type, coding)
    return {
        **{"format": media_type, "coding": coding, **asdict(cost)},
        **{"p99 alone": _find_p99_ms(alone), "p99 beside": _find_p99_ms(neighbour)},
        **{"seconds beside": beside.seconds},
    }


def _measure_stream(stage: _Stage, media_type: str, coding: str) -> Cost:
    process = psutil.Process(stage.api.pid)
    headers = {"Accept": media_type, "Accept-Encoding": coding}
    before = most = process.memory_info().rss
    api, postgres = cpu_seconds([process.pid]), cpu_seconds(stage.postgres())
    began, size = time.perf_counter(), 0
    with httpx.stream(
        "POST", f"{stage.api.address}{_QUERY}", json=_BODY, headers=headers, timeout=600
    ) as answer:
        answer.raise_for_status()
        for piece in answer.iter_raw():
            size += len(piece)
            most = max(most, process.memory_info().rss)
    each = 1e6 / stage.inferences
    return Cost(
        api=each * (cpu_seconds([process.pid]) - api),
        postgres=each * (cpu_seconds(stage.postgres()) - postgres),
        bytes=size / stage.inferences,
        seconds=time.perf_counter() - began,
        grown_mib=(most - before) / _MEBIBYTE,
    )


def _find_p99_ms(seconds: Iterable[float]) -> float:
    return 1000 * percentile(sorted(seconds), 0.99)


def _list_cells(line: dict[str, Any]) -> Iterator[str]:
    yield from (line["format"], line["coding"])
    yield from (f"{line[name]:.0f}" for name in ("api", "postgres", "bytes"))
    yield from (f"{line['seconds']:.1f}", f"+{line['grown_mib']:.0f} MiB")
    yield f"{line['p99 alone']:.0f} ms"
    yield f"{line['p99 beside'] / line['p99 alone']:.1f} times"
    yield f"{line['seconds beside']:.1f}"


@contextmanager
def _asking_beside(address: str) -> Iterator[list[float]]:
    """Let another caller ask while the block runs; afterwards, the seconds of its pages."""
    seconds: list[float] = []
    command = [sys.executable, "-m", "benchmarks.export", _ASK, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield seconds
        printed, _ = process.communicate()
        seconds += json.loads(printed)


def _ask_until_input_ends(address: str) -> None:
    """Ask for pages, one after the other; print the seconds that each took."""
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    seconds, page = [], {"limit": 50, **_BODY}
    with httpx.Client(base_url=address, timeout=60) as client:
        client.post(_QUERY, json=page).raise_for_status()
        print(flush=True)
        while not stop.is_set():
            began = time.perf_counter()
            client.post(_QUERY, json=page).raise_for_status()
            seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
