"""The names of a stream's inferences, each captured as an exchange of its own."""

from typing import Any

from inference_store.proxy.capture import ID_HEADER
from inference_store.proxy.exchange import Headers
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange
from tests.unit.proxy.protocols.v2_grpc.calls import make_request, make_response

from .captured import STREAM, capture

MADE: Headers = [(ID_HEADER, "made")]
GIVEN: Headers = [("x-request-id", "given")]


def test_only_the_first_request_is_named_as_if_it_were_alone() -> None:
    for case, position, name, answer, headers, expected in (
        ("the first", 0, "", "", GIVEN, ["given", "made"]),
        ("a later one", 3, "", "", GIVEN, ["given-3", "given", "made"]),
        ("without metadata", 3, "", "", [], ["made-3", "made"]),
        ("with an id", 3, "mine", "mine", GIVEN, ["mine", "given", "made"]),
        ("with the server's id", 3, "", "theirs", [], ["theirs", "made"]),
    ):
        request = make_request(id=name, name="m").SerializeToString()
        response = make_response(id=answer, name="").SerializeToString()
        both: dict[str, Any] = {"request_headers": headers, "response_headers": MADE}
        sample = make_grpc_exchange(STREAM, [request], [response], position=position, **both)
        (event,) = capture(sample, protocol="v2-grpc").documents
        assert [event["inference_id"], *event.get("aliases", ())] == expected, case
