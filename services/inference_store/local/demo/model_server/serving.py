"""The models that are served, and what both transports do alike: look one up, ask it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

NAME = "inference-store-demo"
VERSION = "1"
"""Of the server and of every model."""
MOST_BYTES = 16 << 20
"""A request may have."""
DATATYPE = "BYTES"

Finding: TypeAlias = Mapping[str, Any]
Model: TypeAlias = Callable[[bytes], Sequence[Finding]]
"""What a model finds in an encoded picture. Raises NoPicture."""


class NoSuchModel(Exception):
    """The name, or the version, is not served here."""


class NoPicture(Exception):
    """A model cannot read what it was given."""


class BadRequest(Exception):
    """The request cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """One picture of a request."""

    name: str
    encoded: bytes = field(repr=False)
    """A PNG, or what else the model reads."""


@dataclass(frozen=True, slots=True)
class Output:
    """What was found in the input of the same name."""

    name: str
    findings: Sequence[Finding]


class Serving:
    """Models, loaded. Each runs in a thread of its own: none may be called by two at once."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._threads = {name: ThreadPoolExecutor(1, name) for name in models}

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
    def _found(model: Model, one: Input) -> Output:
        try:
            return Output(one.name, model(one.encoded))
        except NoPicture as error:
            why = f": {error}" if str(error) else ""
            raise BadRequest(f"input {one.name!r} is no picture that can be read{why}") from error
