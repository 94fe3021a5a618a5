"""The message that answers a stream: ModelInferResponse of MLServer, ModelStreamInferResponse of
Triton.

Both answer the same method. Triton's has only the fields 1 and 2, a text and a message; in the
other, these are its name and version, both texts, and its content follows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from inference_store.grpc_messages import parsed

from .decoding import DecodedMessage, response_in, stream_response_in

Decode: TypeAlias = Callable[[bytes, str], DecodedMessage]
DIALECTS: Final[Mapping[str, Decode]] = {"mlserver": response_in, "triton": stream_response_in}


def find_dialect(answers: Iterable[bytes]) -> str:
    """Return the dialect of the first answer that shows it; if none does, both read the same."""
    return next((dialect for answer in answers if (dialect := _find_in(answer))), "mlserver")


def _find_in(answer: bytes) -> str | None:
    plain = parsed("inference.ModelInferResponse", answer)
    if plain is not None and (
        plain.id or plain.parameters or plain.outputs or plain.raw_output_contents
    ):
        return "mlserver"
    wrapped = parsed("inference.ModelStreamInferResponse", answer)
    if wrapped is not None and (wrapped.error_message or wrapped.HasField("infer_response")):
        return "triton"
    return None if plain is None or not plain.ByteSize() else "mlserver"
