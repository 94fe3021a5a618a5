"""What answers a stream: MLServer sends ModelInferResponse, Triton ModelStreamInferResponse.

Both under one name. Triton's has the fields 1 and 2 alone, a text and a message; the other has its
name and version there, both texts, and what it is about behind them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from inference_store.grpc_messages import parsed

from .decoding import Decoded, response_in, stream_response_in

Decode: TypeAlias = Callable[[bytes, str], Decoded]
DIALECTS: Final[Mapping[str, Decode]] = {"mlserver": response_in, "triton": stream_response_in}


def dialect_of(answers: Iterable[bytes]) -> str:
    """Told by the first answer that tells; where none does they read the same."""
    return next((found for each in answers if (found := _told(each))), "mlserver")


def _told(answer: bytes) -> str | None:
    plain = parsed("inference.ModelInferResponse", answer)
    if plain is not None and (
        plain.id or plain.parameters or plain.outputs or plain.raw_output_contents
    ):
        return "mlserver"
    wrapped = parsed("inference.ModelStreamInferResponse", answer)
    if wrapped is not None and (wrapped.error_message or wrapped.HasField("infer_response")):
        return "triton"
    return None if plain is None or not plain.ByteSize() else "mlserver"
