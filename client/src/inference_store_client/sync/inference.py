"""One inference, and what can be done with it."""

from dataclasses import dataclass, field

from inference_store_client import reading
from inference_store_client.blob import Blob
from inference_store_client.requests import make_request
from inference_store_client.values.erasures import Erasure
from inference_store_client.values.inference import InferenceFields
from inference_store_client.values.retention import Retention

from .transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference(InferenceFields):
    """One datum and what the model answered, and what can be done with them."""

    _transport: Transport = field(repr=False, compare=False)

    def data(self) -> Blob:
        """Read the datum, as it was stored. Raises Gone if it was deleted."""
        return self._transport.run(reading.read_blob(self, "data", self._transport.settings))

    def image(self, *, edge: int | None = None) -> Blob:
        """Read the picture; `edge`: as a JPEG whose longer edge has at most so many pixels."""
        if edge is None:
            return self.data()
        return self._transport.run(reading.read_thumbnail(self, edge, self._transport.settings))

    def response(self) -> Blob:
        """Read the model's response, as it was stored."""
        return self._transport.run(reading.read_blob(self, "response", self._transport.settings))

    def retention(self) -> Retention:
        """Read why it is kept, and until when."""
        request = make_request("GET", reading.inference_path(self, "retention"))
        return self._transport.run(reading.fetch(Retention, request, self._transport.settings))

    def erase(self) -> Erasure:
        """Erase it, with its blobs. Queries stop showing it at once."""
        request = make_request("DELETE", reading.inference_path(self))
        return self._transport.run(reading.fetch(Erasure, request, self._transport.settings))
