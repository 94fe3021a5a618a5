"""Benchmarks that no other run starts: each works on next to nothing and has something to say."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from benchmarks.erasure import report as erasure_report
from benchmarks.erasure.__main__ import main as measure_erasures
from benchmarks.peers import jsonb
from benchmarks.peers.comparison import compare, draw_put
from benchmarks.peers.databases import fill_database
from benchmarks.peers.questions import QUESTIONS
from benchmarks.proxy_servers.cases import run_cases
from benchmarks.query.asker import asking
from benchmarks.query.dataset import CACHE, scratch

from tests.servers.minio import find_minio
from tests.servers.missing import demand
from tests.servers.postgres import PostgresServer, find_postgres
from tests.servers.server import SHARED_TEMPORARY

_SIZE = 3_000
_SMALL = "rows=1400 inferences=40 rounds=1 row-sample=40 sample=20 events=20"


def test_peers() -> None:
    demand("postgres", find_postgres)
    with scratch(_SIZE) as (server, ours):
        asyncio.run(_compare(server, ours))


async def _compare(server: PostgresServer, ours: str) -> None:
    theirs = await fill_database(
        server, jsonb.DATABASE, str(_SIZE), lambda dsn: jsonb.load(dsn, _SIZE, processes=1)
    )
    async with asking(ours) as asker, jsonb.connect(theirs) as peer:
        for question in QUESTIONS:
            put = draw_put(question, 1)
            assert (await asker.page(put.body)).uids == (await peer.page(put)).uids, put
            assert (await asker.count(put.body)).rows == (await peer.count(put)).rows, put
        lines = await compare(QUESTIONS[0], asker, peer, kind="page", runs=2, seconds=5)
    assert lines["ours"]["runs"] == lines["theirs"]["runs"] == 2


def test_proxy_servers() -> None:
    wire = "tests/integration/proxy/test_rest_forwarding.py"
    expected = {
        "test_lost_caller_cancels_the_upstream": False,
        "test_half_closed_caller_gets_its_answer": True,  # it does not hold that case
    }
    cases = run_cases("uvicorn, httptools", [f"{wire}::{name}" for name in expected])
    assert {test: any(reasons.values()) for test, reasons in cases.items()} == expected


def test_erasures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demand("postgres", find_postgres)
    demand("minio", find_minio)
    results = tmp_path / "results.json"
    with tempfile.TemporaryDirectory(dir=SHARED_TEMPORARY) as cache:
        Path(cache).chmod(0o755)  # Postgres' own user comes to it as well
        monkeypatch.setenv(CACHE, cache)
        measure_erasures([*(f"--{size}" for size in _SMALL.split()), f"--results={results}"])
    section = erasure_report.format_section(json.loads(results.read_text()))
    assert "| 40 inferences, 120 objects" in section
    assert "| versioned: the whole erasure beside both" in section
