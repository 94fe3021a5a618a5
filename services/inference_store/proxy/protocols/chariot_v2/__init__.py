"""`chariot-v2`: one datum per request, several as JSON Lines, or the datum itself as the body.

- JSON, or no content type: `{"input": "<base64>", "parameters": {…}}` → `{"output": […]}`
- `application/jsonl`: such a request a line → such an answer a line
- any other content type: the body is the datum, its parameters the JSON of a header
"""

import re
from typing import Final

from inference_store.proxy.protocols.protocol import Protocol

from .exchange_reading import read
from .stripping import strip

CHARIOT_V2: Final = Protocol(
    name="chariot-v2",
    transport="rest",
    calls="`POST /infer`",
    datum="the decoded `input`, a line each of JSON Lines, or the body",
    answer="as it came",
    path=re.compile("/infer/?"),
    read=read,
    strip=strip,
)
