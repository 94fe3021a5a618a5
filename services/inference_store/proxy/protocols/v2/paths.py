"""The paths of V2's calls."""

import re
from typing import Final
from urllib.parse import unquote

from inference_store.proxy.protocols.protocol import Call, Kind, Protocol

_CALLS: Final[dict[str, Kind]] = {
    "infer": "infer",
    "generate": "infer",
    "infer_stream": "stream",
    "generate_stream": "stream",
}
_PATH: Final = re.compile(
    rf"/v2/models/([^/]+)(?:/versions/([^/]+))?/({'|'.join(_CALLS)})/?", re.ASCII
)


def recognise(protocol: Protocol, method: str, path: str) -> Call | None:
    """Recognise the calls of `_CALLS`; return None for health, metadata, the repository and all
    others."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    model, version, call = match.groups()
    version = unquote(version) if version else None
    return Call(protocol, _CALLS[call], unquote(model), version, operation=call)


def is_flat(call: Call) -> bool:
    """Return whether the call is `generate` or its stream: bodies may be `{"text_input": …}`."""
    return call.operation.startswith("generate")
