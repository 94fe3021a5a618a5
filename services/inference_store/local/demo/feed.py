"""Feed what is not there yet, and wait until the store has indexed it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from obstore.store import S3Store

from inference_store.local import programs
from inference_store.local.errors import LocalStackError
from inference_store.local.stack import Stack

from .captures import Capture, capture_digits, capture_frames, digit_id, frame_id
from .detectors import FaceDetector, PeopleDetector
from .digits import DigitClassifier
from .models import DEMO_MODELS, DIGITS, FACES, FRAMES, HELD_OUT, PEOPLE, DemoModel
from .producer import publish_all
from .rest import Rest

_INDEXED_SECONDS = 120.0
_POLL_SECONDS = 0.2


@dataclass(slots=True)
class Progress:
    """How far the feed is; `show` gets one line."""

    show: Callable[[str], None]
    wanted: int
    sent: int = 0

    def one_more(self) -> None:
        """Another event is in Kafka."""
        self.sent += 1
        self.show(f"captured and published {self.sent} of {self.wanted}")


def feed_missing(stack: Stack, rest: Rest, show: Callable[[str], None]) -> int:
    """Feed each inference of the registered models that the store does not have; how many.

    Returns when all are indexed. Raises LocalStackError.
    """
    there = {model.model_id: _ids_there(rest, model) for model in DEMO_MODELS}
    wanted = sum(model.inferences - len(there[model.model_id]) for model in DEMO_MODELS)
    if wanted > 0:
        progress = Progress(show, wanted)
        publish_all(
            _streams(there),
            _blobs(stack),
            brokers=stack.servers.kafka.bootstrap_servers,
            topic=programs.TOPIC,
            told=progress.one_more,
        )
        _wait_indexed(stack, rest, show)
    return wanted


def _ids_there(rest: Rest, model: DemoModel) -> frozenset[str]:
    return frozenset(rest.inference_ids(model.model_id))


def _streams(there: dict[str, frozenset[str]]) -> list[Iterator[Capture]]:
    """What is missing of each model. An id that was fed is not fed again: with another time it
    would be another inference."""
    classifier = DigitClassifier(HELD_OUT)
    faces, people, digits = (there[model.model_id] for model in (FACES, PEOPLE, DIGITS))
    samples = frozenset(
        one.sample for one in classifier.held_out if digit_id(one.sample) not in digits
    )
    return [
        capture_frames(FACES.model_id, FaceDetector(), _missing_frames(faces)),
        capture_frames(PEOPLE.model_id, PeopleDetector(), _missing_frames(people)),
        capture_digits(DIGITS.model_id, classifier, samples),
    ]


def _missing_frames(there: frozenset[str]) -> list[int]:
    return [number for number in range(FRAMES) if frame_id(number) not in there]


def _blobs(stack: Stack) -> S3Store:
    s3 = stack.servers.s3
    return S3Store(
        programs.BUCKET,
        endpoint=s3.endpoint,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def _wait_indexed(stack: Stack, rest: Rest, show: Callable[[str], None]) -> None:
    wanted = sum(model.inferences for model in DEMO_MODELS)
    deadline = time.monotonic() + _INDEXED_SECONDS
    while (indexed := sum(rest.count(model.model_id) for model in DEMO_MODELS)) < wanted:
        stack.check()
        if time.monotonic() > deadline:
            raise LocalStackError(
                f"After {_INDEXED_SECONDS:.0f} s only {indexed} of {wanted} inferences are "
                f"indexed; see {stack.services['ingester'].log}"
            )
        show(f"indexed {indexed} of {wanted}")
        time.sleep(_POLL_SECONDS)
