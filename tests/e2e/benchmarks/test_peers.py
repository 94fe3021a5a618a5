"""The comparison asks everybody the same: peers answer what we answer, from the same inferences."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from benchmarks.peers import jsonb, report, tracking
from benchmarks.peers.comparison import compare, draw_put
from benchmarks.peers.databases import fill_database
from benchmarks.peers.documents import list_chunks, list_inferences
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
from benchmarks.peers.traces import TABLES, Trace, list_traces, uid_of
from benchmarks.query.asker import Answer, Asker, asking
from benchmarks.query.population import END

from .loaded import Loaded

SIZE = 600
DRAWS = 3


async def _fill(dsn: str) -> None:
    await jsonb.load(dsn, SIZE, processes=1)


@pytest.fixture
async def both(loaded: Loaded) -> AsyncIterator[tuple[Asker, jsonb.Jsonb]]:
    theirs = await fill_database(loaded.server, jsonb.DATABASE, str(SIZE), _fill)
    async with asking(loaded.dsn) as asker, jsonb.connect(theirs) as peer:
        yield asker, peer


def _make_questions() -> list[Put]:
    """Make questions whose answers are not empty even for few inferences, and those of a run."""
    metadata = [
        described.metadata
        for chunk in list_chunks(SIZE)
        for _, described in list_inferences(chunk)
        if described.model_number == 0
    ]
    some, dark = metadata[0], next(values for values in metadata if values["night"])
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
    drawn = [draw_put(question, number) for question in QUESTIONS for number in range(DRAWS)]
    for at, put in enumerate([*_make_questions(), *drawn]):
        ours, theirs = await asker.page(put.body), await peer.page(put)
        assert ours.uids == theirs.uids, put
        assert (await asker.count(put.body)).rows == (await peer.count(put)).rows, put
        assert ours.rows or at >= len(_make_questions()), put
        ids = [item["inference_id"] for item in ours.body["items"]]
        assert ids == [document["inference_id"] for document in theirs.body]


async def test_fills_a_database_once_and_again_for_another_version(loaded: Loaded) -> None:
    filled: list[str] = []

    async def fill(dsn: str) -> None:
        filled.append(dsn)

    for what in ("one", "one", "other"):
        dsn = await fill_database(loaded.server, "peer_kept", what, fill)
    assert filled == [dsn, dsn]


async def test_another_answer_ends_the_run(both: tuple[Asker, jsonb.Jsonb]) -> None:
    class Wrong:
        async def page(self, _put: Put) -> Answer:
            return Answer(0.0, 1, uids=("nobody",))

    asker, peer = both
    question = next(candidate for candidate in QUESTIONS if candidate.name == "label and score")
    lines = await compare(question, asker, peer, kind="page", runs=2, seconds=5)
    assert lines["ours"]["runs"] == lines["theirs"]["runs"] == 2
    with pytest.raises(SystemExit, match="other answers"):
        await compare(question, asker, Wrong(), kind="page", runs=2, seconds=5)


def test_a_trace_has_the_values_of_an_inference_as_tags() -> None:
    inferences = {
        uid.hex: described
        for chunk in list_chunks(SIZE)
        for uid, described in list_inferences(chunk)
    }
    traces = list(list_traces(SIZE))
    assert len(traces) == len(inferences) == SIZE
    for trace in traces:
        inference = inferences[uid_of(trace.trace_id)]
        assert trace.tags["segment"] == inference.metadata["segment"]
        assert trace.tags["night"] == str(inference.metadata["night"]).lower()
        assert trace.tags["camera_position.angle"] == str(
            inference.metadata["camera_position"]["angle"]
        )
        assert float(trace.tags["exposure"]) == inference.metadata["exposure"]
        assert (trace.status == "OK") == (inference.predictions is not None)
        # what its columns hold
        assert len(trace.trace_id) <= 50
        assert max(map(len, trace.tags.values())) <= 8000


def test_the_rows_of_a_trace_are_of_its_tables() -> None:
    trace: Trace = next(list_traces(SIZE))
    rows = trace.rows({trace.model: 7})
    assert rows.keys() == TABLES.keys()
    for table, columns in TABLES.items():
        assert all(len(row) == len(columns) and row[0] == trace.trace_id for row in rows[table])
    tagged = {key: value for _, key, value in rows["trace_tags"]}
    assert tagged.items() > trace.tags.items()
    assert f"/7/traces/{trace.trace_id}/" in tagged["mlflow.artifactLocation"]


def test_gives_a_reason_for_each_question_mlflow_is_not_asked() -> None:
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
    results = {
        "machine": machine | {"load before": 0.1},
        "jsonb": part,
        "mlflow": part | {"version": "3", "lines": [*lines, unsaid]},
    }
    section = report.format_section(json.loads(json.dumps(results)))
    assert section.count("| q | page | 50 | 10 | 20 | 25 | 50 | 2.5 |") == 2
    assert "| range | page |  |  |  | cannot: tags are text |  |  |" in section
    assert MODEL not in section
