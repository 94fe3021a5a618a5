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
from inference_store.local.demo.digits import held_out_digits
from inference_store.local.demo.models import DIGITS, FACES, FRAMES, PEOPLE
from inference_store.local.demo.photographs import PHOTOGRAPHS
from inference_store.local.demo.requests import digit_id, digit_requests, frame_id, frame_requests
from inference_store.local.demo.sending import grpc_message, rest_body


def test_the_wheels_carry_every_photograph_and_frames_repeat() -> None:
    for photograph in PHOTOGRAPHS:
        image = photograph.read()
        assert image.dtype == np.uint8, photograph
        assert image.ndim == 3, photograph
    frames = [take_frame(number) for number in range(0, FRAMES, 3)]
    assert {frame.photograph for frame in frames} == {photograph.name for photograph in PHOTOGRAPHS}
    assert all(frame.image.shape == (HEIGHT, WIDTH, 3) for frame in frames)
    assert np.array_equal(take_frame(17).image, take_frame(17).image)


def list_frames(photograph: str) -> list[Frame]:
    return [frame for frame in map(take_frame, range(FRAMES)) if frame.photograph == photograph]


def test_a_face_and_a_person_are_found_inside_the_frame() -> None:
    detector = FaceDetector()
    faces = [face for frame in list_frames("astronaut") for face in detector.detect(frame.image)]
    assert max(face["score"] for face in faces) > 0.9
    assert all(0 <= face["xmin"] < face["xmax"] <= WIDTH for face in faces)
    assert all(0 <= face["ymin"] < face["ymax"] <= HEIGHT for face in faces)
    people = PeopleDetector()
    assert any(people.detect(frame.image) for frame in list_frames("rocket"))


def test_a_score_is_the_logistic_of_the_weight() -> None:
    assert FACE_SCORE.score(2.0) == 0.5
    assert FACE_SCORE.score(3.0) == pytest.approx(1 / (1 + math.exp(-1)))


def test_a_frame_has_the_metadata_of_its_camera_and_its_id() -> None:
    assert frame_id(0).startswith(FACES.prefix)
    assert frame_id(0).startswith(PEOPLE.prefix)
    assert digit_id(0).startswith(DIGITS.prefix)
    (request,) = frame_requests("face-detector", [7])
    assert (request.model_id, request.request_id) == ("face-detector", "frame-00007")
    assert request.picture.startswith(b"\xff\xd8")
    metadata = {entry["key"]: entry for entry in orjson.loads(request.metadata)}
    assert metadata["frame_number"] == {"key": "frame_number", "type": "int", "value": "7"}
    assert all(isinstance(entry["value"], str) for entry in metadata.values())


def test_a_digit_has_its_true_label_as_metadata() -> None:
    digit, *_ = held_out_digits()
    (request,) = digit_requests("digit-classifier", [digit])
    assert request.picture.startswith(b"\x89PNG")
    metadata = {entry["key"]: entry["value"] for entry in orjson.loads(request.metadata)}
    assert metadata == {"true_label": digit.true_label, "sample": str(digit.sample)}


def test_both_transports_carry_the_same() -> None:
    (request,) = frame_requests("face-detector", [0])
    body, sent = rest_body(request), grpc_message(request)
    (image,), (tensor,) = body["inputs"], sent.inputs
    assert body["id"] == sent.id == request.request_id
    assert base64.b64decode(image["data"][0]) == tensor.contents.bytes_contents[0]
    assert image["parameters"]["metadata"] == tensor.parameters["metadata"].string_param
