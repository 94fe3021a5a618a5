"""Signatures of messages: the vectors of Standard Webhooks' own libraries."""

import base64
import json
import random
from datetime import UTC, datetime
from uuid import UUID

from inference_store.export.webhooks.attempts import DELAYS, compute_delay
from inference_store.export.webhooks.event import ErasedEvent
from inference_store.export.webhooks.signature import make_headers
from inference_store.platform.settings.export_webhooks import read_webhook_secrets

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, TIMESTAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_vector_of_the_specification() -> None:
    assert make_headers(read_webhook_secrets(SECRET), ID, TIMESTAMP, BODY) == {
        "webhook-id": ID,
        "webhook-timestamp": str(TIMESTAMP),
        "webhook-signature": SIGNATURE,
    }


def test_each_secret_signs_so_that_a_receiver_may_have_the_old_or_the_new_one() -> None:
    other = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    headers = make_headers(read_webhook_secrets(f"{other} {SECRET}"), ID, TIMESTAMP, BODY)
    first, second = headers["webhook-signature"].split(" ")
    assert second == SIGNATURE
    alone = make_headers(read_webhook_secrets(other), ID, TIMESTAMP, BODY)["webhook-signature"]
    assert first == alone != SIGNATURE
    # all of it is signed
    for changed in ((ID + "x", TIMESTAMP, BODY), (ID, TIMESTAMP + 1, BODY), (ID, TIMESTAMP, b"")):
        headers = make_headers(read_webhook_secrets(SECRET), *changed)
        assert headers["webhook-signature"] != SIGNATURE, changed


def make_event(**changes: object) -> ErasedEvent:
    values = {
        "export": UUID(int=1),
        "model_id": "hallway/detector",
        "erasure": UUID(int=2),
        "inferences": 3,
        "first": 7,
        "last": 9,
        "erased_at": datetime(2026, 11, 26, 14, 0, 0, 123456, tzinfo=UTC),
    }
    return ErasedEvent(**(values | changes))  # type: ignore[arg-type]


def test_the_id_is_that_of_the_rows_and_holds_no_dot() -> None:
    event = make_event()
    assert event.id == make_event().id
    others = [make_event(last=10), make_event(erasure=UUID(int=3)), make_event(export=UUID(int=4))]
    assert event.id not in {other.id for other in others}
    assert "." not in event.id


def test_the_body_says_where_to_ask() -> None:
    assert json.loads(make_event().make_body()) == {
        "type": "export.erased",
        "timestamp": "2026-11-26T14:00:00.123456Z",
        "data": {
            "export": str(UUID(int=1)),
            "model_id": "hallway/detector",
            "erasure": str(UUID(int=2)),
            "inferences": 3,
            "erased": f"/v1/exports/{UUID(int=1)}/erased?cursor=WzcsMF0",
        },
    }


def test_delays_grow_to_a_day_and_end_after_three() -> None:
    random.seed(0)
    delays = [compute_delay(failed) for failed in range(1, len(DELAYS) + 2)]
    assert delays[-1] is None
    for delay, planned in zip(delays[:-1], DELAYS, strict=True):
        assert delay is not None
        assert planned * 0.9 <= delay <= planned * 1.1
    assert list(DELAYS) == sorted(DELAYS)
    assert max(DELAYS) == 24 * 3600
    assert 3 * 24 * 3600 < sum(DELAYS) < 4 * 24 * 3600
    # what the receiver asks for counts up to a day
    for asked, least, most in ((60.0, 60, 60), (1.0, 4.5, 5.5), (1e9, 86_400, 86_400)):
        assert least <= (compute_delay(1, asked=asked) or 0) <= most, asked
