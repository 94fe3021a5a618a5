"""The served models, and the steps that both transports share: find a model, and call it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

NAME = "inference-store-demo"
VERSION = "1"
"""The version of the server and of every model."""
MOST_BYTES = 16 << 20
"""The most bytes of a request."""
DATATYPE = "BYTES"

Finding: TypeAlias = Mapping[str, Any]
Model: TypeAlias = Callable[[bytes], Sequence[Finding]]
"""Finds objects in an encoded picture. Raises NoPicture."""


class NoSuchModel(Exception):
    """The name, or the version, is not served here."""


class NoPicture(Exception):
    """A model cannot read its input."""


class BadRequest(Exception):
    """The request cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """One picture of a request."""

    name: str
    encoded: bytes = field(repr=False)
    """A PNG, or another format that the model reads."""


@dataclass(frozen=True, slots=True)
class Output:
    """The objects found in the input of the same name."""

    name: str
    findings: Sequence[Finding]


class Serving:
    """Loaded models. Each runs in a thread of its own: no two threads may call it at once."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._threads = {name: ThreadPoolExecutor(1, name) for name in models}

    def check(self, model: str, version: str) -> None:
        """Raise NoSuchModel if a model or its version is not served. `version`: empty for any."""
        if model not in self._models:
            raise NoSuchModel(f"no model {model!r}; served are {', '.join(self._models)}")
        if version not in {"", VERSION}:
            raise NoSuchModel(f"model {model!r} has no version {version!r}, only {VERSION!r}")

    async def answer(self, model: str, version: str, inputs: Sequence[Input]) -> Sequence[Output]:
        """Return an output for each input, in order. Raises NoSuchModel, BadRequest."""
        self.check(model, version)
        if not inputs:
            raise BadRequest("there are no inputs")
        loop, thread = asyncio.get_running_loop(), self._threads[model]
        return [
            await loop.run_in_executor(thread, self._call, self._models[model], picture)
            for picture in inputs
        ]

    @staticmethod
    def _call(model: Model, picture: Input) -> Output:
        try:
            return Output(picture.name, model(picture.encoded))
        except NoPicture as error:
            why = f": {error}" if str(error) else ""
            raise BadRequest(
                f"input {picture.name!r} is no picture that can be read{why}"
            ) from error
