"""Answers show what came, whatever it was."""

import json
from datetime import UTC, datetime
from decimal import Decimal

from inference_store.api.answer import Answer, text


def test_times_numbers_and_odd_text() -> None:
    answer = Answer(
        {
            "at": datetime(2026, 11, 1, tzinfo=UTC),
            "number": Decimal("1E+400"),
            "text": text("\ud800\0"),
        }
    )
    body = bytes(answer.body)
    assert b'"at":"2026-11-01T00:00:00.000000Z"' in body
    assert b'"number":1E+400' in body
    assert json.loads(body)["text"] == "\ud800\0"
