"""What the bridge answers, whichever way it was asked."""

from typing import Any

from inference_store.proxy.protocols.v2.items import MODEL_VERSION, STATUS_CODE, Run
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse

from .about import PLATFORM, About
from .container import Container, ContainerFailed
from .tensors import NotFiles, answer_of, asks_for, items_of


async def infer(
    container: Container, request: InferRequest, model: str
) -> tuple[InferResponse, Run]:
    """One call. Raises ContainerFailed; 400 where the request is no files of the model."""
    about = await container.about()
    try:
        items = items_of(request, about)
    except NotFiles as exc:
        raise ContainerFailed(400, str(exc)) from None
    outputs, run = await container.run(
        items,
        explain=asks_for(request, "explain"),
        detect_drift=asks_for(request, "detect_drift"),
    )
    answer = answer_of(request, outputs, about, model=model)
    if answer.error is not None:
        raise ContainerFailed(422, answer.error, run=run)
    return answer, run


def headers_of(run: Run | None) -> dict[str, str]:
    """What the container said that has no place in V2."""
    if run is None:
        return {}
    version = run.version or ""
    is_plain = version.isascii() and version.isprintable() and version.strip()
    return {STATUS_CODE: str(max(run.status_code, 0))} | (
        {MODEL_VERSION: version} if is_plain else {}
    )


def server_metadata() -> dict[str, Any]:
    """Of the bridge itself."""
    return {"name": "inference-store-omi-bridge", "version": "1", "extensions": []}


def model_metadata(about: About, model: str) -> dict[str, Any]:
    """Files as tensors of any number of elements."""
    return {
        "name": model,
        "versions": [about.version] if about.version else [],
        "platform": PLATFORM,
        "inputs": [_tensor(each.name) for each in about.inputs],
        "outputs": [_tensor(each.name) for each in about.outputs],
    }


def _tensor(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [-1]}
