"""Names are found in a message as its parser would find them, whatever else is in it."""

from hypothesis import given
from hypothesis import strategies as st

from inference_store.grpc_messages import message, parsed
from inference_store.proxy.grpc.captured_call import METHODS, MOST_FIELDS, read_names, read_texts

REQUEST = message("inference.ModelInferRequest")
INFER = METHODS["/inference.GRPCInferenceService/ModelInfer"]


@given(
    st.text(),
    st.text(),
    st.text(),
    st.lists(st.binary(max_size=300), max_size=5),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5),
)
def test_a_request_is_found_as_it_was_written(
    model: str, version: str, own: str, raw: list[bytes], shape: list[int]
) -> None:
    request = REQUEST(model_name=model, model_version=version, id=own, raw_input_contents=raw)
    request.inputs.add(name="model_name", shape=shape).parameters["a"].double_param = 0.5
    assert read_names(INFER, request.SerializeToString()) == (model or None, version or None)


@given(st.binary(max_size=200))
def test_any_bytes_are_looked_through(written: bytes) -> None:
    result = read_texts(written, {1, 2})
    read = parsed("inference.ModelInferRequest", written)
    if read is not None and len(written) < 2 * MOST_FIELDS and not _has_groups(written):
        assert (result.get(1, ""), result.get(2, "")) == (read.model_name, read.model_version)


def _has_groups(written: bytes) -> bool:
    """Groups are from before proto3: some parsers step over them, nobody writes them."""
    return any(byte & 7 in {3, 4} for byte in written)


def test_the_wire() -> None:
    for case, written, expected in (
        ("empty", b"", {}),
        ("the last of a field that repeats", b"\x0a\x01a\x0a\x01b", {1: "b"}),
        ("in any order", b"\x12\x01v\x0a\x01m", {1: "m", 2: "v"}),
        ("an empty text", b"\x0a\x00", {}),
        ("no text", b"\x0a\x02\xff\xfe", {}),
        ("broken off", b"\x0a\x05ab", {}),
        ("broken off later", b"\x0a\x01a\x12\x7f", {1: "a"}),
        ("an endless length", b"\x0a" + b"\xff" * 20, {}),
        ("a length of 64 bits", b"\x0a" + b"\xff" * 9 + b"\x01", {}),
        ("a number under the same field", b"\x08\x96\x01\x0a\x01a", {1: "a"}),
        ("behind eight bytes", b"\x49" + b"\0" * 8 + b"\x0a\x01a", {1: "a"}),
        ("behind four bytes", b"\x4d" + b"\0" * 4 + b"\x0a\x01a", {1: "a"}),
        ("a group", b"\x0b\x0a\x01a", {}),
    ):
        assert read_texts(written, {1, 2}) == expected, case


def test_a_message_of_very_many_fields_is_looked_at_for_so_long() -> None:
    many = b"\x3a\x00" * MOST_FIELDS
    assert read_names(INFER, b"\x0a\x01a" + many) == ("a", None)
    assert read_names(INFER, many + b"\x0a\x01a") == (None, None)


def test_each_method_names_its_model() -> None:
    for path, request_name, field in (
        ("/inference.GRPCInferenceService/ModelReady", "ModelReadyRequest", "name"),
        ("/inference.GRPCInferenceService/ModelMetadata", "ModelMetadataRequest", "name"),
        ("/inference.GRPCInferenceService/ModelStreamInfer", "ModelInferRequest", "model_name"),
        (
            "/inference.GRPCInferenceService/RepositoryModelUnload",
            "RepositoryModelUnloadRequest",
            "model_name",
        ),
        (
            "/inference.model_repository.ModelRepositoryService/RepositoryModelLoad",
            "RepositoryModelLoadRequest",
            "model_name",
        ),
    ):
        written = message(f"inference.{request_name}")(**{field: "m"}).SerializeToString()
        assert read_names(METHODS[path], written) == ("m", None)
