"""Each number twice; where the first one is negative, an error."""

from typing import Any

import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        numbers = triton.get_input_tensor_by_name(request, "x").as_numpy()
        if numbers.size and numbers.flat[0] < 0:
            return triton.InferenceResponse(error=triton.TritonError("x is negative"))
        return triton.InferenceResponse(output_tensors=[triton.Tensor("y", numbers * 2)])
