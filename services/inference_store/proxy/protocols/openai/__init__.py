"""Language models: OpenAI's chat, completions, responses and embeddings, as OpenAI, Azure, vLLM,
KServe and many others serve them, and Anthropic's messages.

Text in, text out. The datum of a chat is the text of its messages; if the chat has one image or
sound, that is the datum. The answer is `{"generated_text", "index", "finish_reason", …}` for each
choice.
"""

import re
from functools import partial
from typing import Final

from inference_store.proxy.protocols.protocol import Protocol

from .exchange_reading import read

# Azure's paths name the deployment.
_BASE: Final = r"(?:(?:/openai)?/v1|/openai/deployments/(?P<model>[^/]+))"
_entry = partial(Protocol, transport="rest", read=read)
_MESSAGES: Final = (
    "the messages' text, each after its role where there are several; the only image, sound or "
    "file in them, of several the messages as JSON"
)
_GENERATED: Final = (
    "`{generated_text}` a choice (`{answer}` about an image, whose `prompts` are standard "
    "metadata), and all of it as it came: `answer`, or `chunks` in order"
)

OPENAI: Final = _entry(
    name="openai",
    calls="`POST /v1/chat/completions`, `/v1/completions`, also under `/openai` and under Azure's "
    "`/openai/deployments/…`",
    datum=f"{_MESSAGES}; each prompt of a list",
    answer=_GENERATED,
    path=re.compile(rf"{_BASE}/(?:(?P<operation>chat)/)?completions/?"),
)
RESPONSES: Final = _entry(
    name="openai-responses",
    calls="`POST /v1/responses`, also under `/openai`",
    datum="the same of `input`",
    answer="the same",
    path=re.compile(r"(?:/openai|(?:/openai)?/v1)/(?P<operation>response)s/?"),
)
EMBEDDINGS: Final = _entry(
    name="openai-embeddings",
    calls="`POST /v1/embeddings`, as for `openai`",
    datum="each `input` of a list",
    answer="to one input: as it came; to several: the `embedding` of each as V2's JSON",
    path=re.compile(rf"{_BASE}/(?P<operation>embedding)s/?"),
)
ANTHROPIC: Final = _entry(
    name="anthropic",
    calls="`POST /v1/messages`, also under `/anthropic`",
    datum="as for `openai`",
    answer="the same",
    path=re.compile(r"(?:/anthropic)?/v1/(?P<operation>message)s/?"),
)
