"""Inferences as our own proxy writes them to the bucket, with its documents and layout."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from uuid import UUID, uuid4

from inference_store.inference.layout import Kind, key_of
from inference_store.proxy.capture.documents import event_bytes, metadata_blob, metadata_text
from tests.producer import START

_KEYS: Final[dict[str, Kind]] = {
    "data_storage_key": "data",
    "inference_storage_key": "response",
    "metadata_storage_key": "metadata",
}
_REQUEST = {"method": "POST", "path": "/v2/models/m/infer", "messages": [["the request"]]}


@dataclass(frozen=True)
class CapturedInference:
    """A captured inference; `inline`: the event also has its metadata and response."""

    number: int
    model_id: str = "cameras/hall"
    inline: bool = True
    received_at: datetime = START
    capture_id: UUID = field(default_factory=uuid4)

    def key(self, kind: Kind) -> str:
        return key_of("captures", self.model_id, self.received_at, self.capture_id, kind)

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "inference_id": f"i-{self.number % 7}",
            "received_at": self.received_at,
            "responded_at": self.received_at,
            "published_at": self.received_at,
            **{name: self.key(kind) for name, kind in _KEYS.items()},
            "capture_id": str(self.capture_id),
            "task_type": "Image-Text-to-Text",
            "ok": True,
            "aliases": [f"alias-{self.number}"],
            "batch_index": 0,
            "data_size": 5,
        }

    @property
    def _envelope(self) -> bytes:
        items = [
            {"key": "frame_number", "type": "int", "value": str(self.number)},
            {"key": "camera_position", "type": "json", "value": '{"angle": "10.5"}'},
        ]
        return json.dumps(items).encode()

    @property
    def response(self) -> bytes:
        answers = [{"prompt": "what?", "answer": f"a cat, {self.number}"}]
        output = {"name": "o", "shape": [1], "datatype": "BYTES", "data": [json.dumps(answers)]}
        return json.dumps({"outputs": [output]}).encode()

    @property
    def blobs(self) -> dict[str, bytes]:
        metadata = metadata_blob(
            {"http_version": "1.1"},
            [self._envelope],
            event=event_bytes(self._fields),
            request=_REQUEST,
            capture={"transport": "rest"},
        )
        return {
            self.key("data"): b"datum",
            self.key("metadata"): metadata,
            self.key("response"): self.response,
        }

    @property
    def event(self) -> bytes:
        inline: dict[str, Any] = {}
        if self.inline:
            text = metadata_text({"http_version": "1.1"}, [self._envelope])
            inline = {"metadata": text.decode(), "response": self.response.decode()}
        return event_bytes(self._fields | inline)
