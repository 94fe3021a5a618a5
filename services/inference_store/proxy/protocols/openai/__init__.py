"""OpenAI's chat and completions, as OpenAI, vLLM, KServe and many others serve them.

Text in, text out. The datum of a chat is its messages' text; of a chat with one image or sound in
it, that. The answer is `{"generated_text", "index", "finish_reason", …}` for each choice.
"""

import re
from typing import Final

from inference_store.proxy.protocols.protocol import Call, Protocol

from .reading import read

_PATH: Final = re.compile(r"(?:/openai)?/v1/(chat/)?completions/?")


def recognise(protocol: Protocol, method: str, path: str) -> Call | None:
    """The model is in the body, and whether the answer is a stream."""
    found = _PATH.fullmatch(path) if method == "POST" else None
    if found is None:
        return None
    return Call(protocol, "infer", operation="chat" if found[1] else "completion")


OPENAI: Final = Protocol(
    name="openai",
    title="OpenAI chat and completions",
    transport="rest",
    recognise=recognise,
    read=read,
)
