"""A benchmark that no other run starts: it works on next to nothing and has something to say."""

import json
import tempfile
from pathlib import Path

import pytest
from benchmarks.erasure.__main__ import PARTS
from benchmarks.erasure.__main__ import main as measure_erasures
from benchmarks.query.dataset import CACHE

from tests.servers.minio import find_minio
from tests.servers.missing import demand
from tests.servers.postgres import find_postgres
from tests.servers.server import SHARED_TEMPORARY

_SMALL = "rows=1400 inferences=40 rounds=1 row-sample=40 sample=20 events=20"


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
    assert "  40 inferences, 120 objects: " in printed
    assert "| versioned: the whole erasure beside both" in printed
