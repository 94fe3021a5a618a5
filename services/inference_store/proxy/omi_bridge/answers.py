"""The answers of the bridge, the same for REST and gRPC."""

from typing import Any

from inference_store.proxy.protocols.v2.items import MODEL_VERSION, STATUS_CODE, Run
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse

from .container import LEAST_FAILED, Container, ContainerFailed
from .container_status import PLATFORM, ContainerStatus
from .tensors import InputsNotFiles, build_answer, has_true_parameter, read_items


async def infer(
    container: Container, request: InferRequest, model: str
) -> tuple[InferResponse, Run]:
    """Answer one inference call. Raises ContainerFailed; 400 if the request is not files of the
    model."""
    status = await container.status()
    try:
        items = read_items(request, status)
    except InputsNotFiles as exc:
        raise ContainerFailed(400, str(exc)) from None
    outputs, run = await container.run(
        items,
        explain=has_true_parameter(request, "explain"),
        detect_drift=has_true_parameter(request, "detect_drift"),
    )
    answer = build_answer(request, outputs, status, model=model)
    if answer.error is not None:
        failed = run.status_code >= LEAST_FAILED
        raise ContainerFailed(run.status_code if failed else 422, answer.error, run=run)
    return answer, run


def headers_of(run: Run | None) -> dict[str, str]:
    """Return as headers what V2 has no field for."""
    if run is None:
        return {}
    version = run.version or ""
    is_plain = version.isascii() and version.isprintable() and version.strip()
    return {STATUS_CODE: str(max(run.status_code, 0))} | (
        {MODEL_VERSION: version} if is_plain else {}
    )


def server_metadata() -> dict[str, Any]:
    """Return the metadata of the bridge itself."""
    return {"name": "inference-store-omi-bridge", "version": "1", "extensions": []}


def model_metadata(status: ContainerStatus, model: str) -> dict[str, Any]:
    """Return the model's metadata: its files as tensors of any number of elements."""
    return {
        "name": model,
        "versions": [status.version] if status.version else [],
        "platform": PLATFORM,
        "inputs": [_describe_file(file.name) for file in status.inputs],
        "outputs": [_describe_file(file.name) for file in status.outputs],
    }


def _describe_file(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [-1]}
