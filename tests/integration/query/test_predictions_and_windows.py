"""The conditions on predictions and time agree with their meaning in Python."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.count import count
from inference_store.query.deadline import Deadline
from inference_store.query.matching import match_by_index, match_by_scan
from inference_store.query.operators import OPERATORS
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.stored_inferences import START, NewInference, store
from tests.properties import examples

_Prediction = tuple[str | None, float | None]
# Close to each other: they show a comparison that rounds, or leaves out its bound.
_SCORES = st.sampled_from([0.0, 0.1, 0.1 + 2**-50, 0.5, 0.5, 1.0])
_PREDICTIONS = st.lists(
    st.tuples(st.sampled_from(["person", "car", None]), st.one_of(_SCORES, st.none())), max_size=3
)
# Neighbours by a microsecond, at the edges of milliseconds and of days, which are partitions.
_INSTANTS = st.builds(
    lambda days, micros: START + timedelta(days=days, microseconds=micros),
    st.integers(0, 2),
    st.sampled_from([-1, 0, 1, 998, 999, 1000, 1001]),
)
_INFERENCES = st.lists(st.tuples(_INSTANTS, _PREDICTIONS), min_size=1, max_size=8)
_LABELS = st.lists(st.sampled_from(["person", "car", "nobody"]), min_size=1, max_size=2)
_QUESTIONS = st.builds(
    QueryRequest,
    since=st.one_of(st.none(), _INSTANTS),
    until=st.one_of(st.none(), _INSTANTS),
    predicted=st.booleans(),
    labels=st.one_of(st.none(), _LABELS),
    scores=st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte", "eq"]), _SCORES, max_size=2),
    newest_first=st.booleans(),
)


def is_in_window(question: QueryRequest, at: datetime) -> bool:
    """Check whether an instant is in the window, whose end is not part of it."""
    return (question.since is None or question.since <= at) and (
        question.until is None or at < question.until
    )


def has_prediction(question: QueryRequest, predictions: Sequence[_Prediction]) -> bool:
    """Check whether one prediction has both a requested label and a score within the bounds."""
    if not question.predicted:
        return True
    return any(
        (question.labels is None or label in question.labels) and is_within(question.scores, score)
        for label, score in predictions
    )


def is_within(bounds: Mapping[str, float], score: float | None) -> bool:
    """Check whether a score is within the bounds; an unknown one never is."""
    return not bounds or (
        score is not None
        and all(OPERATORS[name].test(score, bound) for name, bound in bounds.items())
    )


@pytest.mark.long
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=_INFERENCES, questions=st.lists(_QUESTIONS, min_size=8, max_size=8))
async def test_sql_agrees_with_python(
    engine: AsyncEngine,
    rows: Sequence[tuple[datetime, Sequence[_Prediction]]],
    questions: Sequence[QueryRequest],
) -> None:
    mine, other = str(uuid.uuid4()), str(uuid.uuid4())
    inferences = [
        NewInference(str(n), at, predictions=predictions, model_id=mine)
        for n, (at, predictions) in enumerate(rows)
    ]
    model = await store(engine, *inferences)
    # Another model has inferences at the same times, which no answer may show.
    everything = [("person", 0.1), ("car", 0.5)]
    others = [
        replace(inference, model_id=other, predictions=everything, inference_id=f"other-{n}")
        for n, inference in enumerate(inferences)
    ]
    await store(engine, *others)
    for question in questions:
        expected = sorted(
            (
                inference.uid
                for inference in inferences
                if is_in_window(question, inference.received_at)
                and has_prediction(
                    question,
                    [
                        (prediction.label, prediction.score)
                        for prediction in inference.predicted or ()
                    ],
                )
            ),
            reverse=question.newest_first,
        )
        event(f"matches: {'some' if expected else 'none'}")
        async with engine.connect() as connection:
            query = (await prepare(connection, model, question)).query
            deadline = Deadline.after(180)
            by_walk = await connection.execute(match_by_scan(query, query.scan_range))
            assert sorted(by_walk.scalars(), reverse=question.newest_first) == expected
            by_index = await connection.execute(match_by_index(query, query.scan_range)[0])
            assert set(by_index.scalars()) == set(expected)
            assert await count(connection, query, deadline=deadline) == len(expected)
            for scan in (1, 4_000):
                page = await find_page(connection, query, limit=100, deadline=deadline, scan=scan)
                assert page.uids == expected
