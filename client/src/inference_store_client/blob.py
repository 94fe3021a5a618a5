"""A blob of an inference: its datum, its response, or a thumbnail."""

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

from .json_text import Json, read_json


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes as they were stored. A notebook shows pictures."""

    content: bytes = field(repr=False)
    content_type: str

    def json(self) -> Json:
        """Return the content as JSON, with exact numbers. Raises ValueError."""
        return read_json(self.content)

    def text(self) -> str:
        """Return the content as text in UTF-8. Raises UnicodeDecodeError."""
        return self.content.decode()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind in {"image/png", "image/jpeg", "image/gif"}:
            return {kind: b64encode(self.content).decode()}
        return {"text/plain": repr(self)}
