"""The demo's input is real, the same at every start, and what a producer would send."""

import math
from datetime import UTC, datetime

import numpy as np
import orjson
import pytest

pytest.importorskip("cv2", reason="the demo's packages are not installed")
pytest.importorskip("sklearn", reason="the demo's packages are not installed")

from inference_store.local.demo.camera import HEIGHT, WIDTH, Frame, take_frame
from inference_store.local.demo.captures import capture_digits, capture_frames
from inference_store.local.demo.detectors import FACE_SCORE, FaceDetector, PeopleDetector
from inference_store.local.demo.digits import DigitClassifier
from inference_store.local.demo.models import FRAMES, LABELS
from inference_store.local.demo.photographs import PHOTOGRAPHS, Photograph
from inference_store.local.demo.producer import _time_text


@pytest.mark.parametrize("photograph", PHOTOGRAPHS, ids=lambda one: one.name)
def test_the_wheels_carry_every_photograph(photograph: Photograph) -> None:
    image = photograph.read()
    assert image.dtype == np.uint8
    assert image.ndim == 3


def test_every_photograph_is_seen_and_frames_repeat() -> None:
    seen = [take_frame(number) for number in range(0, FRAMES, 3)]
    assert {frame.photograph for frame in seen} == {one.name for one in PHOTOGRAPHS}
    assert all(frame.image.shape == (HEIGHT, WIDTH, 3) for frame in seen)
    assert np.array_equal(take_frame(17).image, take_frame(17).image)


def frames_of(photograph: str) -> list[Frame]:
    return [one for one in map(take_frame, range(FRAMES)) if one.photograph == photograph]


def test_the_face_of_the_astronaut_is_found_inside_the_frame() -> None:
    detector = FaceDetector()
    found = [one for frame in frames_of("astronaut") for one in detector.detect(frame.image)]
    assert max(one["score"] for one in found) > 0.9
    assert all(0 <= one["xmin"] < one["xmax"] <= WIDTH for one in found)
    assert all(0 <= one["ymin"] < one["ymax"] <= HEIGHT for one in found)


def test_the_people_detector_sees_somebody_in_the_rocket() -> None:
    detector = PeopleDetector()
    assert any(detector.detect(frame.image) for frame in frames_of("rocket"))


def test_a_score_is_the_logistic_of_the_weight() -> None:
    assert FACE_SCORE.score(2.0) == 0.5
    assert FACE_SCORE.score(3.0) == pytest.approx(1 / (1 + math.exp(-1)))


def test_most_held_out_digits_are_classified_right() -> None:
    classifier = DigitClassifier(100)
    answers = [(one.true_label, classifier.classify(one)) for one in classifier.held_out]
    assert sum(label == found[0]["label"] for label, found in answers) > 85
    assert all({one["label"] for one in found} == set(LABELS) for _, found in answers)


def test_a_frame_is_captured_as_three_blobs() -> None:
    (capture,) = capture_frames("face-detector", FaceDetector(), [0])
    assert capture.data.content.startswith(b"\xff\xd8")
    metadata = {one["key"]: one for one in orjson.loads(capture.metadata.content)}
    assert metadata["frame_number"] == {"key": "frame_number", "type": "int", "value": "0"}
    assert all(isinstance(one["value"], str) for one in metadata.values())
    (output,) = orjson.loads(capture.response.content)["outputs"]
    assert output["shape"] == [len(output["data"])]
    assert capture.received_ns <= capture.forwarded_ns <= capture.responded_ns


def test_only_the_samples_asked_for_are_captured() -> None:
    classifier = DigitClassifier(20)
    wanted = frozenset(one.sample for one in classifier.held_out[:3])
    captures = list(capture_digits("digit-classifier", classifier, wanted))
    assert len(captures) == 3
    assert captures[0].data.content.startswith(b"\x89PNG")


def test_times_carry_nine_digits() -> None:
    second = int(datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp())
    assert _time_text(second * 10**9 + 7) == "2026-11-01T12:00:00.000000007Z"
