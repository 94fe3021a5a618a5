"""One inference of a model that does not exist, as a producer would capture it."""

from datetime import UTC, datetime
from uuid import uuid4

import orjson

from inference_store.inference.events import encode

MODEL = "inference-store-smoke"
LABEL = "smoke"


class Capture:
    """Three blobs below `folder` and an event, new each time."""

    def __init__(self) -> None:
        self.inference_id = str(uuid4())
        self._received = datetime.now(UTC)
        self.folder = f"smoke/{self.inference_id}"

    @property
    def data(self) -> bytes:
        """The datum."""
        return f"Is anybody there? {self.inference_id}".encode()

    @property
    def blobs(self) -> dict[str, bytes]:
        """The three objects, by key."""
        metadata = [{"key": "smoke_run", "type": "string", "value": self.inference_id}]
        prediction = orjson.dumps([{"label": LABEL, "score": 0.25}]).decode()
        output = {"name": "predictions", "shape": [1], "datatype": "BYTES", "data": [prediction]}
        return {
            self._key("data"): self.data,
            self._key("metadata"): orjson.dumps(metadata),
            self._key("response"): orjson.dumps({"outputs": [output]}),
        }

    @property
    def event(self) -> bytes:
        """The message."""
        return encode(
            model_id=MODEL,
            inference_id=self.inference_id,
            received_at=self._received,
            responded_at=self._received,
            published_at=datetime.now(UTC),
            data_storage_key=self._key("data"),
            inference_storage_key=self._key("response"),
            metadata_storage_key=self._key("metadata"),
        )

    @property
    def question(self) -> dict[str, object]:
        """A query that this inference alone answers."""
        condition = {"key": "smoke_run", "operator": "eq", "value": self.inference_id}
        below = {"label": LABEL, "score": {"lt": 0.3}}
        return {"metadata_filter": [condition], "prediction": below, "unknown_keys": "empty"}

    def _key(self, kind: str) -> str:
        return f"{self.folder}/{kind}"
