"""The models that are served, and what both transports do alike: look one up, ask it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import cv2
import numpy as np

from inference_store.local.demo.detectors import FaceDetector, PeopleDetector
from inference_store.local.demo.digits import DigitClassifier
from inference_store.local.demo.models import DIGITS, FACES, PEOPLE
from inference_store.local.demo.photographs import Image

NAME = "inference-store-demo"
VERSION = "1"
"""Of the server and of every model."""
MOST_BYTES = 16 << 20
"""A request may have."""
DATATYPE = "BYTES"

Finding: TypeAlias = Mapping[str, Any]


class NoSuchModel(Exception):
    """The name, or the version, is not served here."""


class BadRequest(Exception):
    """The request cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """One picture of a request."""

    name: str
    encoded: bytes = field(repr=False)
    """A JPEG, a PNG, or what else OpenCV reads."""


@dataclass(frozen=True, slots=True)
class Output:
    """What was found in the input of the same name."""

    name: str
    findings: Sequence[Finding]


class Serving:
    """Every model, loaded. Each runs in a thread of its own: none may be called by two at once."""

    def __init__(self) -> None:
        classifier = DigitClassifier()
        self._models: Mapping[str, Callable[[Image], Sequence[Finding]]] = {
            FACES.model_id: FaceDetector().detect,
            PEOPLE.model_id: PeopleDetector().detect,
            DIGITS.model_id: classifier.classify,
        }
        self._threads = {name: ThreadPoolExecutor(1, name) for name in self._models}

    def check(self, model: str, version: str) -> None:
        """`version` empty: any. Raises NoSuchModel."""
        if model not in self._models:
            raise NoSuchModel(f"no model {model!r}; served are {', '.join(self._models)}")
        if version not in {"", VERSION}:
            raise NoSuchModel(f"model {model!r} has no version {version!r}, only {VERSION!r}")

    async def answer(self, model: str, version: str, inputs: Sequence[Input]) -> Sequence[Output]:
        """An output for each input, in their order. Raises NoSuchModel, BadRequest."""
        self.check(model, version)
        if not inputs:
            raise BadRequest("there are no inputs")
        loop, thread = asyncio.get_running_loop(), self._threads[model]
        return [
            await loop.run_in_executor(thread, self._found, self._models[model], one)
            for one in inputs
        ]

    @staticmethod
    def _found(model: Callable[[Image], Sequence[Finding]], one: Input) -> Output:
        return Output(one.name, model(_decoded(one)))


def _decoded(one: Input) -> Image:
    try:
        image = cv2.imdecode(np.frombuffer(one.encoded, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:  # of an empty buffer, or one that promises too many pixels
        image = None
    if image is None:
        raise BadRequest(f"input {one.name!r} is no picture that can be read")
    return np.asarray(image, dtype=np.uint8)
