"""The benchmark of erasures runs from end to end, on next to nothing, and its report says it."""

import json
import tempfile
from pathlib import Path

import pytest
from benchmarks.erasure import report
from benchmarks.erasure.__main__ import main
from benchmarks.query.dataset import CACHE

from tests.servers.minio import find_minio
from tests.servers.missing import demand
from tests.servers.postgres import find_postgres
from tests.servers.server import SHARED_TEMPORARY

_SMALL = {
    "rows": "1400", "inferences": "40", "rounds": "1", "row-sample": "40", "sample": "20",
    "events": "20",
}  # fmt: skip


def test_measures_and_reports_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demand("postgres", find_postgres)
    demand("minio", find_minio)
    results = tmp_path / "results.json"
    with tempfile.TemporaryDirectory(dir=SHARED_TEMPORARY) as cache:
        Path(cache).chmod(0o755)  # Postgres' own user comes to it as well
        monkeypatch.setenv(CACHE, cache)
        main([*(f"--{name}={value}" for name, value in _SMALL.items()), f"--results={results}"])
    document = json.loads(results.read_text())
    assert document["rows"]["large"]["inferences"] > 1000
    for part in ("objects", "versioned"):
        large = document[part]["large"]
        assert (large["inferences"], large["objects"]) == (40, 120)
        assert large["steps"]["delete"] > 0
        assert min(large["resident"]) > 10
    assert document["whole"][0]["partitions"]
    assert document["beside"][0]["busy"]["asked"] > 0
    section = report.format_section(document)
    for line in (
        "one by one",
        "versioned: the delete step",
        "versioned: the whole erasure beside both",
        "versioned: 120, the whole erasure beside both",
        "40 inferences, 120 objects",
        "look-up",
    ):
        assert f"| {line}" in section
