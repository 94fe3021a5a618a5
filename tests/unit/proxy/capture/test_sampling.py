"""Which exchanges are kept."""

import random
from typing import Any

import orjson
import pytest

from inference_store.proxy.capture.prepare import is_sampled
from inference_store.proxy.configuration import Sampling
from inference_store.proxy.protocols.protocol import Inference
from tests.exchanges import response_body

CHANCE = random.Random(7)


def decide(sampling: Sampling, *, camera: str | None = None, **changes: Any) -> bool:
    envelope = orjson.dumps([{"key": "camera", "type": "string", "value": camera}])
    inference = Inference(
        metadata=() if camera is None else (envelope,), response=changes.pop("response", None)
    )
    arguments: dict[str, Any] = {
        "model_id": "m",
        "task_type": "object_detection",
        "inferences": [inference],
        "standard": {},
        "ok": True,
        "chance": CHANCE.randbytes(16),
    }
    return is_sampled(sampling, **(arguments | changes))


def test_a_share_is_kept() -> None:
    result = sum(decide(Sampling(share=0.3)) for _ in range(2000))
    assert 450 < result < 750
    assert all(decide(Sampling()) for _ in range(100))
    assert not any(decide(Sampling(share=0)) for _ in range(100))


def test_the_same_camera_is_always_in_or_always_out() -> None:
    sampling = Sampling(share=0.5, key="camera")
    first = {str(n): decide(sampling, camera=str(n)) for n in range(200)}
    assert first == {str(n): decide(sampling, camera=str(n)) for n in range(200)}
    assert 60 < sum(first.values()) < 140
    # a larger share has the smaller one in it
    larger = Sampling(share=0.8, key="camera")
    assert all(decide(larger, camera=name) for name, is_in in first.items() if is_in)
    # and another model draws again
    assert first != {n: decide(sampling, camera=n, model_id="other") for n in first}


def test_a_key_may_come_by_a_header() -> None:
    sampling = Sampling(share=0.5, key="x-camera")
    collected = {decide(sampling, standard={"x-camera": "north"}) for _ in range(50)}
    assert len(collected) == 1


def test_without_the_key_each_is_drawn_by_itself() -> None:
    collected = {decide(Sampling(share=0.5, key="camera")) for _ in range(100)}
    assert collected == {True, False}


def test_keeps_errors_if_configured() -> None:
    assert decide(Sampling(share=0, always_errors=True), ok=False)
    assert not decide(Sampling(share=0, always_errors=True), ok=True)
    assert not decide(Sampling(share=0), ok=False)


@pytest.mark.parametrize("task_type", ["object_detection", None])
def test_keeps_low_scores_if_configured(task_type: str | None) -> None:
    sampling = Sampling(share=0, always_below=0.4)
    assert decide(sampling, response=response_body(0.39), task_type=task_type)
    assert not decide(sampling, response=response_body(0.41), task_type=task_type)
    assert not decide(sampling, response=response_body(0.1, 0.9), task_type=task_type)
    assert not decide(sampling, response=b"no json", task_type=task_type)
    assert not decide(sampling, task_type=task_type)
