"""The names of a stream's inferences, each captured as an exchange of its own."""

from collections.abc import Sequence

from inference_store.grpc_messages import message
from inference_store.proxy.capture import ID_HEADER
from inference_store.proxy.exchange import Headers
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange

from .captured import STREAM, capture

MADE: Headers = [(ID_HEADER, "made")]
GIVEN: Headers = [("x-request-id", "given")]


def capture_names(position: int, name: str, answer: str, headers: Headers) -> Sequence[str]:
    """Return the id and the aliases of the request at a position of a stream."""
    request = message("inference.ModelInferRequest")(id=name, model_name="m").SerializeToString()
    response = message("inference.ModelInferResponse")(id=answer).SerializeToString()
    about = {"position": position, "request_headers": headers, "response_headers": MADE}
    sample = make_grpc_exchange(STREAM, [request], [response], **about)
    (event,) = capture(sample, protocol="v2-grpc").documents
    return [event["inference_id"], *event.get("aliases", ())]


def test_only_the_first_request_is_named_as_if_it_were_alone() -> None:
    for case, position, name, answer, headers, expected in (
        ("the first", 0, "", "", GIVEN, ["given", "made"]),
        ("a later one", 3, "", "", GIVEN, ["given-3", "given", "made"]),
        ("without metadata", 3, "", "", [], ["made-3", "made"]),
        ("with an id", 3, "mine", "mine", GIVEN, ["mine", "given", "made"]),
        ("with the server's id", 3, "", "theirs", [], ["theirs", "made"]),
    ):
        assert capture_names(position, name, answer, headers) == expected, case
