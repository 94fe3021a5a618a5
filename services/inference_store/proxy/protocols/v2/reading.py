"""What an exchange was about, from its tensors: the same for REST and gRPC."""

from collections.abc import Sequence

from inference_store.proxy.protocols.protocol import Inference, Model, Reading

from .tensors import InferRequest, InferResponse


def reading_of(
    request: InferRequest | None,
    response: InferResponse | None,
    model: Model,
    *,
    split: bool = True,
    whole: bytes | None = None,
    problems: Sequence[str] = (),
) -> Reading:
    """The reading of one request and its answer.

    `request` None: it could not be read, and `whole`, its bytes, is the datum. `response` None:
    there is none (the call failed: by its status), or it could not be read. `split` False: one
    inference, whatever the request holds (streams). `problems`: sentences on what was not read
    before this. A stream of answers: `merged` makes them one.
    """
    raise NotImplementedError
