"""Whatever came: any of thirteen inputs, one of each datatype and named for it."""

from typing import Any

import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        said = [triton.Tensor(one.name(), one.as_numpy()) for one in request.inputs()]
        return triton.InferenceResponse(output_tensors=said)
