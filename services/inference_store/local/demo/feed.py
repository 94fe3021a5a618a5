"""Feeds missing inferences, and waits until the store has indexed them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inference_store.local.errors import LocalStackError
from inference_store.local.stack import Stack

from .digits import held_out_digits
from .models import DEMO_MODELS, DIGITS, FACES, FRAMES, PEOPLE, DemoModel
from .requests import Request, digit_id, digit_requests, frame_id, frame_requests
from .rest import Rest
from .sending import send_all

_INDEXED_SECONDS = 300.0
_POLL_SECONDS = 0.2


@dataclass(slots=True)
class Progress:
    """The progress of the feed; `show` receives a line."""

    show: Callable[[str], None]
    total: int
    sent: int = 0

    def count_answer(self) -> None:
        """Count another answer, and show the progress."""
        self.sent += 1
        self.show(f"{self.sent} of {self.total} pictures answered")


def feed_missing(stack: Stack, rest: Rest, show: Callable[[str], None]) -> int:
    """Send a request for each missing inference to the models, through the proxy; return how many.

    Returns when all are indexed. Raises LocalStackError.
    """
    there = {model.model_id: _ids_there(rest, model) for model in DEMO_MODELS}
    total = sum(model.inferences - len(there[model.model_id]) for model in DEMO_MODELS)
    if total > 0:
        progress = Progress(show, total)
        send_all(
            _streams(there),
            rest=stack.proxy,
            grpc_target=stack.proxy_grpc,
            on_answer=progress.count_answer,
        )
        _wait_indexed(stack, rest, show)
    return total


def _ids_there(rest: Rest, model: DemoModel) -> frozenset[str]:
    """Return the ids of the demo's inferences; others (a user's own pictures) do not count."""
    ids = rest.inference_ids(model.model_id)
    return frozenset(id for id in ids if id.startswith(model.prefix))


def _streams(there: dict[str, frozenset[str]]) -> list[Iterator[Request]]:
    """Return the missing requests of each model.

    An id that was fed is not fed again: with another time it would be another inference.
    """
    faces, people, digits = (there[model.model_id] for model in (FACES, PEOPLE, DIGITS))
    samples = [digit for digit in held_out_digits() if digit_id(digit.sample) not in digits]
    return [
        frame_requests(FACES.model_id, _missing_frames(faces)),
        frame_requests(PEOPLE.model_id, _missing_frames(people)),
        digit_requests(DIGITS.model_id, samples),
    ]


def _missing_frames(there: frozenset[str]) -> list[int]:
    return [number for number in range(FRAMES) if frame_id(number) not in there]


def _wait_indexed(stack: Stack, rest: Rest, show: Callable[[str], None]) -> None:
    total = sum(model.inferences for model in DEMO_MODELS)
    deadline = time.monotonic() + _INDEXED_SECONDS
    while (indexed := sum(model.count(rest) for model in DEMO_MODELS)) < total:
        stack.check()
        if time.monotonic() > deadline:
            raise LocalStackError(
                f"After {_INDEXED_SECONDS:.0f} s only {indexed} of {total} inferences are "
                f"indexed; see {stack.services['ingester'].log}"
            )
        show(f"indexed {indexed} of {total}")
        time.sleep(_POLL_SECONDS)
