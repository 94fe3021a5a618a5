"""Whatever is asked: items of files, or a sentence that says what to send."""

from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.proxy.omi_bridge.container_status import ContainerStatus, File
from inference_store.proxy.omi_bridge.tensors import InputsNotFiles, read_items
from inference_store.proxy.protocols.v2.tensors import InferRequest, Tensor

_NAME = st.sampled_from(["a", "b", "c"])
_DATA = st.sampled_from(
    [b'["x"]', b'["x", "aGk="]', b"[]", b"[1]", b'[["x"], ["y"]]', b"null", b'["\\ud800"]', b"{}"]
)
_TENSOR = st.builds(
    Tensor,
    name=_NAME,
    datatype=st.sampled_from(["BYTES", "BYTES", "FP32"]),
    parameters=st.sampled_from([{}, {"content_type": b'"base64"'}]),
    data=_DATA,
) | st.builds(
    Tensor,
    name=_NAME,
    datatype=st.just("BYTES"),
    raw=st.none() | st.binary(max_size=9) | st.just(b"\1\0\0\0x"),
    values=st.none(),
)
_FILE = st.builds(File, name=_NAME, media_types=st.sampled_from([[], ["image/png"]]))
_ABOUT = st.lists(_FILE, max_size=2, unique_by=lambda file: file.name).map(
    lambda files: ContainerStatus(name="m", version="1", inputs=files, outputs=[])
)


@given(st.lists(_TENSOR, max_size=3), _ABOUT)
@example(
    [Tensor(name="a", datatype="BYTES", raw=b"\1")],
    ContainerStatus(name="m", version="1", inputs=[], outputs=[]),
)
def test_items_or_a_sentence(tensors: list[Tensor], about: ContainerStatus) -> None:
    try:
        items = read_items(InferRequest(inputs=tensors), about)
    except InputsNotFiles as exc:
        assert str(exc)
        return
    assert items
    file_names = {tensor.name for tensor in about.inputs}
    for item in items:
        assert item
        assert not file_names or item.keys() <= file_names
        assert all(type(content) is bytes for content in item.values())
