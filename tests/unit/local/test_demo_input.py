"""The demo's input is real, the same at every start, and what a client of the models would send."""

import base64
import math

import numpy as np
import orjson
import pytest

pytest.importorskip("cv2", reason="the demo's packages are not installed")
pytest.importorskip("sklearn", reason="the demo's packages are not installed")

from inference_store.local.demo.camera import HEIGHT, WIDTH, Frame, take_frame
from inference_store.local.demo.detectors import FACE_SCORE, FaceDetector, PeopleDetector
from inference_store.local.demo.digits import DigitClassifier, held_out_digits
from inference_store.local.demo.models import DIGITS, FACES, FRAMES, HELD_OUT, LABELS, PEOPLE
from inference_store.local.demo.photographs import PHOTOGRAPHS, Photograph
from inference_store.local.demo.requests import (
    digit_id,
    digit_requests,
    frame_id,
    frame_requests,
)
from inference_store.local.demo.sending import grpc_message, rest_body


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


def test_most_held_out_digits_are_classified_right_from_their_pictures() -> None:
    classifier = DigitClassifier()
    answers = [(one.true_label, classifier.classify(one.image)) for one in held_out_digits()]
    assert len(answers) == HELD_OUT
    assert sum(label == found[0]["label"] for label, found in answers) > 0.9 * HELD_OUT
    assert all({one["label"] for one in found} == set(LABELS) for _, found in answers)


def test_a_frame_is_asked_about_with_what_the_camera_knows() -> None:
    (request,) = frame_requests("face-detector", [7])
    assert (request.model_id, request.request_id) == ("face-detector", "frame-00007")
    assert request.picture.startswith(b"\xff\xd8")
    metadata = {one["key"]: one for one in orjson.loads(request.metadata)}
    assert metadata["frame_number"] == {"key": "frame_number", "type": "int", "value": "7"}
    assert all(isinstance(one["value"], str) for one in metadata.values())


def test_a_digit_is_asked_about_with_its_true_label() -> None:
    digit, *_ = held_out_digits()
    (request,) = digit_requests("digit-classifier", [digit])
    assert request.picture.startswith(b"\x89PNG")
    assert {one["key"]: one["value"] for one in orjson.loads(request.metadata)} == {
        "true_label": digit.true_label,
        "sample": str(digit.sample),
    }


def test_the_demo_knows_its_own_inferences_by_their_ids() -> None:
    assert frame_id(0).startswith(FACES.prefix)
    assert frame_id(0).startswith(PEOPLE.prefix)
    assert digit_id(0).startswith(DIGITS.prefix)


def test_both_transports_carry_the_same() -> None:
    (request,) = frame_requests("face-detector", [0])
    body, sent = rest_body(request), grpc_message(request)
    (image,), (tensor,) = body["inputs"], sent.inputs
    assert body["id"] == sent.id == request.request_id
    assert base64.b64decode(image["data"][0]) == tensor.contents.bytes_contents[0]
    assert image["parameters"]["metadata"] == tensor.parameters["metadata"].string_param
