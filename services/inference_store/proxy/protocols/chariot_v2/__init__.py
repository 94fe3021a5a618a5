"""`chariot-v2`: one datum per request, several as JSON Lines, or the datum itself as the body.

- JSON, or no content type: `{"input": "<base64>", "parameters": {…}}` → `{"output": […]}`
- `application/jsonl`: such a request a line → such an answer a line
- any other content type: the body is the datum, its parameters the JSON of a header
"""

from typing import Final

from inference_store.proxy.protocols.protocol import Call, Protocol

from .exchange_reading import read
from .stripping import strip


def recognise(protocol: Protocol, method: str, path: str) -> Call | None:
    """Recognise `POST /infer`; `GET /ready` passes through."""
    return Call(protocol, "infer") if method == "POST" and path in {"/infer", "/infer/"} else None


CHARIOT_V2: Final = Protocol(
    name="chariot-v2",
    title="chariot-v2",
    transport="rest",
    recognise=recognise,
    read=read,
    strip=strip,
)
