"""Benchmarks that no other run starts: each works on next to nothing and has something to say."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from benchmarks.erasure.__main__ import PARTS
from benchmarks.erasure.__main__ import main as measure_erasures
from benchmarks.peers import KINDS, QUESTIONS, compare, connect, draw_put, fill_documents
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
    theirs = await fill_documents(server, _SIZE, processes=1)
    async with asking(ours) as asker, connect(theirs) as peer:
        for question in QUESTIONS:
            put = draw_put(question, 1)
            assert (await asker.page(put.body)).uids == (await peer.page(put)).uids, put
            assert (await asker.count(put.body)).rows == (await peer.count(put)).rows, put
        name = next(iter(QUESTIONS))
        lines = await compare(name, asker, peer, KINDS[0], runs=2, seconds=5)
    assert lines["ours"]["runs"] == lines["theirs"]["runs"] == 2


def test_erasures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demand("postgres", find_postgres)
    demand("minio", find_minio)
    results = tmp_path / "benchmarks" / "erasure.json"
    with tempfile.TemporaryDirectory(dir=SHARED_TEMPORARY) as cache:
        Path(cache).chmod(0o755)  # Postgres' own user comes to it as well
        monkeypatch.setenv(CACHE, cache)
        measure_erasures([*(f"--{size}" for size in _SMALL.split()), f"--results={results}"])
    assert json.loads(results.read_text()).keys() >= {"machine", *PARTS}
    printed = capsys.readouterr().out
    assert "| questions during an erasure, p99 (page), times of without | < 2 | " in printed
    assert "| 40 inferences, 120 objects" in printed
    assert "| versioned: the whole erasure beside both" in printed
