"""OpenAI's chat and completions, as OpenAI, vLLM, KServe and many others serve them.

Text in, text out. The datum of a chat is the text of its messages; if the chat has one image or
sound, that is the datum. The answer is `{"generated_text", "index", "finish_reason", …}` for each
choice.
"""

import re
from typing import Final

from inference_store.proxy.protocols.protocol import Call, Protocol

from .exchange_reading import read

_PATH: Final = re.compile(r"(?:/openai)?/v1/(chat/)?completions/?")


def recognise(protocol: Protocol, method: str, path: str) -> Call | None:
    """Recognise chat and completions; the body names the model, and says whether the answer is a
    stream."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    return Call(protocol, "infer", operation="chat" if match[1] else "completion")


OPENAI: Final = Protocol(
    name="openai",
    title="OpenAI chat and completions",
    transport="rest",
    recognise=recognise,
    read=read,
)
