"""Each benchmark runs on next to nothing: its questions have the right answers, and its report
says what was measured."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.erasure import report as erasure_report
from benchmarks.erasure.__main__ import main as measure_erasures
from benchmarks.peers import jsonb
from benchmarks.peers.comparison import compare, draw_put
from benchmarks.peers.databases import fill_database
from benchmarks.peers.questions import QUESTIONS, Put
from benchmarks.proxy_servers.cases import run_cases
from benchmarks.query import matrix, plan, report
from benchmarks.query.asker import Answer, asking
from benchmarks.query.bodies import CASES, metadata
from benchmarks.query.dataset import CACHE, scratch
from benchmarks.query.descriptions import describe
from benchmarks.query.feeder import feeding
from benchmarks.query.restoration import restore

from tests.servers.minio import find_minio
from tests.servers.missing import demand
from tests.servers.postgres import Postgres, PostgresServer, find_postgres
from tests.servers.server import SHARED_TEMPORARY

SIZE = 3_000
_SMALL = {
    "rows": "1400", "inferences": "40", "rounds": "1", "row-sample": "40", "sample": "20",
    "events": "20",
}  # fmt: skip
_WIRE = "tests/integration/proxy/test_rest_forwarding.py"
_HALF_CLOSED = "test_half_closed_caller_gets_its_answer"


@pytest.fixture(scope="module")
def servers() -> None:
    demand("postgres", find_postgres)
    demand("minio", find_minio)


@pytest.fixture(scope="module")
def loaded(servers: None) -> Iterator[tuple[PostgresServer, str]]:  # noqa: ARG001
    """A Postgres of its own with SIZE inferences, and the DSN of their database."""
    with scratch(SIZE) as result:
        yield result


async def test_the_benchmark_of_questions(loaded: tuple[PostgresServer, str]) -> None:
    _, dsn = loaded
    everyone = [
        described
        for partition in plan.plan(SIZE)
        for chunk in partition.chunks()
        for described in describe(chunk)
        if described.model_number == 0
    ]
    dark = [described for described in everyone if described.metadata["night"]]
    newest = sorted(dark, key=lambda described: described.received_at, reverse=True)[:50]
    some = [case for case in CASES if case.name in {"equality, 2 %", "AND of four common"}]
    async with asking(dsn) as asker:
        question = metadata(("night", "eq", True))
        assert (await asker.count(question)).rows == len(dark) > 50
        ids = [item["inference_id"] for item in (await asker.page(question)).body["items"]]
        assert ids == [f"frame-{described.number:09d}" for described in newest]
        lines = await matrix.measure_look_ups(asker, runs=3)
        measured = await matrix.measure_cases(asker, some, runs=3, seconds=1)
    results = {
        "machine": {"inferences": SIZE, "partitions": 3, "bytes": 1, "processor": "", "cores": 1}
        | {"memory GiB": 1, "postgres": "15", "python": "3", "load before": 0.1},
        "look-ups": [line.as_json() for line in lines],
        "matrix": [line.as_json() for line in measured],
    }
    section = report.format_section(json.loads(json.dumps(results)))
    assert section.count("\n| ") == 1 + len(lines) + len(measured)
    # Nothing is left of what a run wrote.
    with feeding(dsn, 50):
        pass
    count = "SELECT count(*) FROM inference"
    assert Postgres(dsn).ask(count) > SIZE
    await restore(dsn, SIZE)
    assert Postgres(dsn).ask(count) == SIZE


async def test_the_benchmark_beside_peers(loaded: tuple[PostgresServer, str]) -> None:
    class Wrong:
        async def page(self, _put: Put) -> Answer:
            return Answer(0.0, 1, uids=("nobody",))

    async def fill(dsn: str) -> None:
        await jsonb.load(dsn, SIZE, processes=1)

    server, ours = loaded
    theirs = await fill_database(server, jsonb.DATABASE, str(SIZE), fill)
    async with asking(ours) as asker, jsonb.connect(theirs) as peer:
        found = 0
        for question in QUESTIONS:
            put = draw_put(question, 1)
            page = await asker.page(put.body)
            assert page.uids == (await peer.page(put)).uids, put
            assert (await asker.count(put.body)).rows == (await peer.count(put)).rows, put
            found += bool(page.rows)
        assert found >= 3
        question = next(each for each in QUESTIONS if each.name == "label and score")
        lines = await compare(question, asker, peer, kind="page", runs=2, seconds=5)
        assert lines["ours"]["runs"] == lines["theirs"]["runs"] == 2
        with pytest.raises(SystemExit, match="other answers"):
            await compare(question, asker, Wrong(), kind="page", runs=2, seconds=5)


def test_the_benchmark_of_other_proxy_servers_sees_the_case_that_one_does_not_hold() -> None:
    names = (_HALF_CLOSED, "test_lost_caller_cancels_the_upstream")
    cases = run_cases("uvicorn, httptools", [f"{_WIRE}::{name}" for name in names])
    failing = {test for test, reasons in cases.items() if any(reasons.values())}
    assert set(cases) == set(names)
    assert failing == {_HALF_CLOSED}


@pytest.mark.usefixtures("servers")
def test_the_benchmark_of_erasures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.json"
    with tempfile.TemporaryDirectory(dir=SHARED_TEMPORARY) as cache:
        Path(cache).chmod(0o755)  # Postgres' own user comes to it as well
        monkeypatch.setenv(CACHE, cache)
        arguments = [f"--{name}={value}" for name, value in _SMALL.items()]
        measure_erasures([*arguments, f"--results={results}"])
    document = json.loads(results.read_text())
    assert document["rows"]["large"]["inferences"] > 1000
    for part in ("objects", "versioned"):
        large = document[part]["large"]
        assert (large["inferences"], large["objects"]) == (40, 120)
        assert large["steps"]["delete"] > 0
    assert document["whole"][0]["partitions"]
    assert document["beside"][0]["busy"]["asked"] > 0
    section = erasure_report.format_section(document)
    for line in (
        *("one by one", "versioned: the delete step", "40 inferences, 120 objects", "look-up"),
        *("versioned: the whole erasure beside both",),
        *("versioned: 120, the whole erasure beside both",),
    ):
        assert f"| {line}" in section
