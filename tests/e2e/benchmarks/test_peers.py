"""The comparison asks everybody the same: peers answer what we answer, from the same inferences."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from benchmarks.peers import jsonb, report, tracking
from benchmarks.peers.comparing import compared, put_of
from benchmarks.peers.documents import chunks, inferences
from benchmarks.peers.kept import kept
from benchmarks.peers.questions import (
    MODEL,
    QUESTIONS,
    Put,
    at_night,
    at_path,
    between,
    detected,
    equal,
)
from benchmarks.peers.traces import TABLES, Trace, traces, uid_of
from benchmarks.query.asking import Asked, Asker, asking
from benchmarks.query.population import END

from .loaded import Loaded

SIZE = 600
DRAWS = 3


async def _fill(dsn: str) -> None:
    await jsonb.load(dsn, SIZE, processes=1)


@pytest.fixture
async def both(loaded: Loaded) -> AsyncIterator[tuple[Asker, jsonb.Jsonb]]:
    theirs = await kept(loaded.server, jsonb.DATABASE, str(SIZE), _fill)
    async with asking(loaded.dsn) as asker, jsonb.connected(theirs) as peer:
        yield asker, peer


def _found() -> list[Put]:
    """Questions whose answers are not empty even of few inferences, and those of a run."""
    metadata = [
        each.metadata for chunk in chunks(SIZE) for _, each in inferences(chunk) if each.place == 0
    ]
    some, dark = metadata[0], next(one for one in metadata if one["night"])
    return [
        equal("data_source", "camera-0000", END),
        equal("segment", some["segment"]),
        between(some["frame_number"], some["frame_number"]),
        between(250_000, 750_000),
        at_path(90),
        detected("person", 0.9),
        at_night(dark["segment"][:12]),
    ]


async def test_jsonb_answers_what_we_answer(both: tuple[Asker, jsonb.Jsonb]) -> None:
    asker, peer = both
    drawn = [put_of(question, number) for question in QUESTIONS for number in range(DRAWS)]
    for at, put in enumerate([*_found(), *drawn]):
        ours, theirs = await asker.page(put.body), await peer.page(put)
        assert ours.uids == theirs.uids, put
        assert (await asker.count(put.body)).rows == (await peer.count(put)).rows, put
        assert ours.rows or at >= len(_found()), put
        ids = [item["inference_id"] for item in ours.said["items"]]
        assert ids == [document["inference_id"] for document in theirs.said]


async def test_a_database_is_filled_once_and_anew_for_another_version(loaded: Loaded) -> None:
    filled: list[str] = []

    async def fill(dsn: str) -> None:
        filled.append(dsn)

    for what in ("one", "one", "other"):
        dsn = await kept(loaded.server, "peer_kept", what, fill)
    assert filled == [dsn, dsn]


async def test_another_answer_ends_the_run(both: tuple[Asker, jsonb.Jsonb]) -> None:
    class Wrong:
        async def page(self, _put: Put) -> Asked:
            return Asked(0.0, 1, uids=("nobody",))

    asker, peer = both
    question = next(each for each in QUESTIONS if each.name == "label and score")
    lines = await compared(question, asker, peer, kind="page", runs=2, seconds=5)
    assert lines["ours"]["runs"] == lines["theirs"]["runs"] == 2
    with pytest.raises(SystemExit, match="other answers"):
        await compared(question, asker, Wrong(), kind="page", runs=2, seconds=5)


def test_a_trace_has_the_values_of_an_inference_as_tags() -> None:
    known = {uid.hex: each for chunk in chunks(SIZE) for uid, each in inferences(chunk)}
    found = list(traces(SIZE))
    assert len(found) == len(known) == SIZE
    for trace in found:
        each = known[uid_of(trace.trace_id)]
        assert trace.tags["segment"] == each.metadata["segment"]
        assert trace.tags["night"] == str(each.metadata["night"]).lower()
        assert trace.tags["camera_position.angle"] == str(each.metadata["camera_position"]["angle"])
        assert float(trace.tags["exposure"]) == each.metadata["exposure"]
        assert (trace.status == "OK") == (each.predictions is not None)
        # what its columns hold
        assert len(trace.trace_id) <= 50
        assert max(map(len, trace.tags.values())) <= 8000


def test_the_rows_of_a_trace_are_of_its_tables() -> None:
    trace: Trace = next(traces(SIZE))
    rows = trace.rows({trace.model: 7})
    assert rows.keys() == TABLES.keys()
    for table, columns in TABLES.items():
        assert all(len(row) == len(columns) and row[0] == trace.trace_id for row in rows[table])
    tagged = {key: value for _, key, value in rows["trace_tags"]}
    assert tagged.items() > trace.tags.items()
    assert f"/7/traces/{trace.trace_id}/" in tagged["mlflow.artifactLocation"]


def test_what_mlflow_is_not_asked_has_its_reason() -> None:
    for question in QUESTIONS:
        put = question.make(Random(1))
        assert (put.filter_string is None) == (question.cannot is not None)
    assert equal("segment", "a", END).filter_string == (
        f"tag.`segment` = 'a' AND trace.timestamp_ms < {int(END.timestamp()) * 1000}"
    )


def test_mlflow_is_locked_with_hashes() -> None:
    lock = Path(tracking.__file__).with_name("requirements.lock").read_text()
    assert tracking.version().split(".")[0].isdigit()
    assert lock.count("==") <= lock.count("--hash=sha256:")
    assert "://" not in lock


def test_the_tables_say_ratios_and_reasons() -> None:
    def figures(median: float) -> dict[str, float]:
        return {"median": median, "p99": 2 * median, "rows": 50}

    lines = [{"question": "q", "kind": "page", "ours": figures(10), "theirs": figures(25)}]
    part = {"inferences": SIZE, "bytes": 2**30, "bytes of the peer": 2**31, "lines": lines}
    unsaid = {"question": "range", "kind": "page", "cannot": "tags are text"}
    machine = {"processor": "p", "cores": 2, "memory GiB": 8, "postgres": "15", "python": "3"}
    found = {
        "machine": machine | {"load before": 0.1},
        "jsonb": part,
        "mlflow": part | {"version": "3", "lines": [*lines, unsaid]},
    }
    said = report.section(json.loads(json.dumps(found)))
    assert said.count("| q | page | 50 | 10 | 20 | 25 | 50 | 2.5 |") == 2
    assert "| range | page |  |  |  | cannot: tags are text |  |  |" in said
    assert MODEL not in said
