"""`make bench-api`: by id, pages, a count, a picture and a stream, by 1 and by 32 callers.

The api has access control, rights and the audit on. Beside it, in the same rounds, a bare route
that sends one prepared statement and dumps its rows; pictures are held against MinIO's own GET, and
questions of many models against those of one that has the same rows. At the end one caller asks
alone, and beside another who sends hostile bodies.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final
from uuid import UUID

import httpx
from tests.servers.fixtures import migrate
from tests.servers.minio import S3, MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres, PostgresServer

from benchmarks.events import MODEL, fill, make_events, open_store, put_objects
from benchmarks.results import add_results_option, deliver, describe_machine, format_table, mark
from benchmarks.servers import BUCKET, POSTGRES, Served, start_api

from .callers import Figures, Question, measure
from .hostile import KINDS, measure_beside

_CALLERS: Final = (1, 32)
_MOST_STREAM_US: Final = 250
_TOKEN: Final = "a-token-of-the-benchmark"
_PICTURE: Final = bytes(range(256)) * 400
_PICTURES: Final = 200
_MANY: Final = [f"{MODEL}-{n}" for n in range(100)]
_INFERENCES: Final = f"/v1/models/{MODEL}/inferences"
_NDJSON: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class _Stage:
    """All that is asked. `limited`: another api on the same store, with the default rate; `many`:
    an api on a store that has the same rows in many models."""

    api: Served
    limited: Served
    many: Served
    floor: Served
    # of an analyst, and of another caller: access, rights and the audit are on
    keys: Sequence[str]
    model: int
    uids: Sequence[UUID]
    # addresses of the same pictures at MinIO itself, signed
    pictures: Sequence[str]

    @property
    def head(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[0]}"}


@dataclass(frozen=True, slots=True)
class _Case:
    """A line of the table. `most_times`: its bar, in times of the floor's median for one caller;
    `most_more_ms`: that of a picture, in milliseconds over the floor."""

    name: str
    api: Question
    floor: Question
    most_times: float | None = None
    most_more_ms: float | None = None
    of_many: bool = False


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inferences", type=int, default=20_000, help="that are stored")
    parser.add_argument("--rounds", type=int, default=5, help="alternations; medians are printed")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each line in each round")
    add_results_option(parser, "api")
    arguments = parser.parse_args()
    machine = describe_machine()
    with _start(arguments.inferences) as stage:
        results = asyncio.run(_measure(stage, arguments.rounds, arguments.seconds))
    results |= {"machine": machine, "inferences": arguments.inferences}
    deliver(arguments.results, results, *_format_report(results))


@contextmanager
def _start(inferences: int) -> Iterator[_Stage]:
    """Start everything on `inferences` of one model, outside of any event loop."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(POSTGRES))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(BUCKET)
        dsn, many = (postgres.create_database(name) for name in ("bench", "many"))
        for database_dsn, model_ids in ((dsn, [MODEL]), (many, _MANY)):
            migrate(database_dsn)
            asyncio.run(fill(database_dsn, make_events(0, inferences), model_ids=model_ids))
        pictured = list(make_events(0, _PICTURES))
        put_objects(open_store(minio, BUCKET), pictured, data=_PICTURE)
        api = _start_api(stack, dsn, minio, API_RATE_LIMIT_PER_MINUTE="0")
        client, database = minio.client(), Postgres(dsn)
        yield _Stage(
            api=api,
            limited=_start_api(stack, dsn, minio),
            many=_start_api(stack, many, minio, API_RATE_LIMIT_PER_MINUTE="0"),
            floor=_start_floor(stack, dsn),
            keys=[_make_key(api, name) for name in ("bench", "other")],
            model=int(database.ask("SELECT model FROM registration")),
            uids=[
                UUID(uid)
                for uid in database.ask("SELECT array_agg(uid::text ORDER BY uid) FROM inference")
            ],
            pictures=[client.presigned_get_object(BUCKET, e.key("data")) for e in pictured],
        )


def _start_api(stack: ExitStack, dsn: str, minio: S3, **settings: str) -> Served:
    return start_api(stack, dsn, minio, AUTH="on", API_TOKEN=_TOKEN, **settings)


def _start_floor(stack: ExitStack, dsn: str) -> Served:
    port = str(free_port())
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.api.floor", dsn, port])
    stack.callback(process.kill)
    with httpx.Client(transport=httpx.HTTPTransport(retries=20)) as client:
        client.get(f"http://127.0.0.1:{port}/", timeout=60)
    return Served(f"http://127.0.0.1:{port}", process.pid)


def _make_key(api: Served, name: str) -> str:
    response = httpx.post(
        f"{api.address}/v1/keys",
        json={"name": name, "grants": [{"role": "analyst"}]},
        headers={"Authorization": f"Bearer {_TOKEN}"},
        timeout=60,
    )
    return str(response.raise_for_status().json()["key"])


def _list_cases(stage: _Stage) -> list[_Case]:
    uids, pictures, head = stage.uids, stage.pictures, stage.head

    def of_floor(name: str) -> Question:
        # pages from the newer half: there are 50 behind each
        half = len(uids) // 2
        return Question(lambda n: f"/{name}/{stage.model}/{uids[half + n % half]}")

    def of_models(name: str, path: str, **body: Any) -> _Case:
        asked = Question(
            lambda _: f"/v1/inferences/{path}", body, {"Authorization": f"Bearer {_TOKEN}"}
        )
        return _Case(f"{name} of 100 models, beside one", asked, asked, most_times=3, of_many=True)

    def page(**more: Any) -> Question:
        return Question(lambda _: f"{_INFERENCES}/query", {"limit": 50, **more}, head)

    return [
        _Case(
            "one by its id, with everything and links",
            Question(lambda n: f"{_INFERENCES}/frame-{n % len(uids)}", headers=head),
            of_floor("by-id"),
            most_times=5,
        ),
        _Case("a page of 50", page(include=[]), of_floor("page"), most_times=3),
        _Case(
            "a page of 50 with metadata and predictions",
            page(include=["metadata", "predictions"]),
            of_floor("page-whole"),
            most_times=3.5,
        ),
        _Case(
            "a count by one key",
            Question(lambda _: f"{_INFERENCES}/count", {"filter": "zoom = 7"}, head),
            of_floor("count"),
        ),
        _Case(
            "a picture of 100 KiB, beside S3's own GET",
            Question(lambda n: f"{_INFERENCES}/frame-{n % len(pictures)}/data", headers=head),
            Question(lambda n: pictures[n % len(pictures)]),
            most_more_ms=6,
        ),
        of_models("a page of 50", "query", limit=50, include=[], filter="zoom = 7"),
        of_models("a count", "count", filter="zoom = 7"),
        of_models("labels by hour", "aggregate", group_by=[{"label": True}, {"time": "hour"}]),
    ]


async def _measure(stage: _Stage, rounds: int, seconds: float) -> dict[str, Any]:
    lines = []
    for callers in _CALLERS:
        for case in _list_cases(stage):
            print(f"{case.name}, {callers} callers …", flush=True)
            figures = [
                await _measure_round(stage, case, callers, seconds) for _ in range(rounds + 1)
            ]
            line = {"callers": callers, "name": case.name, "rounds": figures[1:]}  # one warms up
            bars = {"most times": case.most_times, "most more ms": case.most_more_ms}
            lines.append(line | bars)
    body = {"include": ["metadata", "predictions"]}
    question = Question(lambda _: f"{_INFERENCES}/query", body, stage.head | {"Accept": _NDJSON})
    streams = [
        # at least one stream, however short the time
        await measure(stage.api, question, callers=1, seconds=0.001)
        for _ in range(rounds)
    ]
    beside = {}
    for kind in KINDS:
        print(f"beside {kind} …", flush=True)
        beside[kind] = await measure_beside(
            kind, stage.limited.address, f"{_INFERENCES}/query", stage.keys, 3 * seconds
        )
    return {
        "lines": lines,
        "streams": [asdict(figures) for figures in streams],
        "hostile": beside,
    }


async def _measure_round(
    stage: _Stage, case: _Case, callers: int, seconds: float
) -> dict[str, dict[str, float]]:
    bare = Served("", stage.floor.pid) if case.most_more_ms else stage.floor
    pair = (stage.many, stage.api) if case.of_many else (stage.api, bare)
    figures: dict[str, Figures] = {
        name: await measure(server, question, callers=callers, seconds=seconds)
        for name, server, question in zip(
            ("api", "floor"), pair, (case.api, case.floor), strict=True
        )
    }
    return {name: asdict(each) for name, each in figures.items()}


def _format_report(results: dict[str, Any]) -> Iterator[str]:
    yield f"{results['inferences']:,} inferences."
    head = "what is asked | ms | floor ms | times | bar | p99 ms | answers/s | floor | CPU ms"
    for callers in _CALLERS:
        lines = [line for line in results["lines"] if line["callers"] == callers]
        table = format_table(head, map(_list_cells, lines))
        yield f"{callers} caller{'s' if callers > 1 else ''}:\n\n{table}"
    each = median(1000 * figures["cpu_ms"] for figures in results["streams"])
    each /= results["inferences"]
    yield (
        f"A stream of {results['inferences']:,} inferences with metadata and predictions:"
        f" {each:.0f} µs of the api's CPU an inference"
        f" (bar ≤ {_MOST_STREAM_US}{mark(each <= _MOST_STREAM_US)})."
    )
    rows = (
        (
            *(kind, f"{figures['answers a second']:.0f}"),
            *(
                f"{quiet:.1f} ms | {busy:.1f} ms | {busy / quiet:.1f}"
                for quiet, busy in (figures["p50"], figures["p99"])
            ),
        )
        for kind, figures in results["hostile"].items()
    )
    head = "p50 alone | beside | ratio | p99 alone | beside | ratio"
    yield format_table(f"the neighbour sends | answers to it a second | {head}", rows)


def _list_cells(line: dict[str, Any]) -> Iterator[str]:
    rounds = line["rounds"]
    pairs = [(each["api"]["median_ms"], each["floor"]["median_ms"]) for each in rounds]
    times = median(ours / floor for ours, floor in pairs)
    more = median(ours - floor for ours, floor in pairs)
    bar = ""
    if line["callers"] == 1 and line["most times"] is not None:
        bar = f"≤ {line['most times']:g}{mark(times <= line['most times'])}"
    if line["callers"] == 1 and line["most more ms"] is not None:
        bar = f"≤ {line['most more ms']:g} ms more{mark(more <= line['most more ms'])}"

    def of(who: str, figure: str) -> float:
        return float(median(each[who][figure] for each in rounds))

    yield from (line["name"], *(f"{of(who, 'median_ms'):.1f}" for who in ("api", "floor")))
    yield from (f"{times:.1f}", bar, f"{of('api', 'p99_ms'):.1f}")
    yield from (f"{of(who, 'a_second'):.0f}" for who in ("api", "floor"))
    yield f"{of('api', 'cpu_ms'):.1f}"


if __name__ == "__main__":
    main()
