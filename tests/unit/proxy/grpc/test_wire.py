"""Names are found in a message as its parser would find them, whatever else is in it."""

from hypothesis import given
from hypothesis import strategies as st

from inference_store.grpc_messages import message, parsed
from inference_store.proxy.grpc.captured_call import read_names, read_request

REQUEST = message("inference.ModelInferRequest")
INFER = "/inference.GRPCInferenceService/ModelInfer"


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
    read, found = parsed("inference.ModelInferRequest", written), read_names(INFER, written)
    assert read is None or found == (read.model_name or None, read.model_version or None)


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
        assert read_names(path, written) == ("m", None)


def test_tensors_are_skipped_and_what_follows_a_break_too() -> None:
    asks = REQUEST(id="7")
    asks.parameters["triton_enable_empty_final_response"].bool_param = True
    head = asks.SerializeToString()
    contents = REQUEST(raw_input_contents=[b"x" * 300, b"\xff"]).SerializeToString()
    for case, written, expected in (
        ("before tensors", head + contents, ("7", True)),
        ("behind tensors", contents + head, ("7", True)),
        ("behind numbers", b"\x50\x96\x01\x49" + bytes(8) + b"\x4d" + bytes(4) + head, ("7", True)),
        ("behind very many fields", b"\x3a\x00" * 1_000 + head, ("", False)),
        ("broken off", head + b"\x3a\x7f", ("7", True)),
        ("an endless length", head + b"\x3a" + b"\xff" * 20, ("7", True)),
        ("a length of 64 bits", head + b"\x3a" + b"\xff" * 9 + b"\x01", ("7", True)),
        ("a group", b"\x0b" + head, ("", False)),
        ("no text", b"\x1a\x02\xff\xfe", ("", False)),
    ):
        assert read_request(written) == expected, case
