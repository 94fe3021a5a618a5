"""One model of the store."""

from collections.abc import Iterator
from typing import Unpack

from inference_store_client import reading
from inference_store_client.decoding import decode
from inference_store_client.filters import Filter
from inference_store_client.question import Question, QuestionOptions
from inference_store_client.requests import make_path, make_request
from inference_store_client.values.models import KeyPage, MetadataKey, Registration

from .inference import Inference
from .inferences import Inferences
from .transport import Transport


class Model:
    """One model of the store. Making one asks nothing."""

    def __init__(self, transport: Transport, model_id: str) -> None:
        self._transport, self.model_id = transport, model_id

    def inferences(
        self, filter: Filter | None = None, **options: Unpack[QuestionOptions]
    ) -> Inferences:
        """Return the inferences that match a filter; nothing is asked yet."""
        path = make_path("models", self.model_id, "inferences")
        return Inferences(self._transport, Question(path=path, filter=filter, **options))

    def inference(self, inference_id: str) -> Inference:
        """Read an inference by its id, an alias, or `uid:<uuid>`: the newest one that has it."""
        request = make_request(
            "GET", make_path("models", self.model_id, "inferences", inference_id)
        )
        steps = reading.fetch_plain(request, self._transport.settings)
        return decode(Inference, self._transport.run(steps), _transport=self._transport)

    def registration(self) -> Registration:
        """Read the model's entry."""
        request = make_request("GET", make_path("models", self.model_id))
        return self._transport.run(reading.fetch(Registration, request, self._transport.settings))

    def metadata_keys(self) -> Iterator[MetadataKey]:
        """Yield the model's metadata keys, with the types under which they came."""
        path = make_path("models", self.model_id, "metadata-keys")
        steps = reading.read_list(path, KeyPage, self._transport.settings, {})
        return self._transport.iterate(steps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r})"
