"""A text's words, one an answer: a decoupled model, for streams."""

from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            (text,) = triton.get_input_tensor_by_name(request, "text").as_numpy()
            for word in text.split():
                said = triton.Tensor("word", np.array([word], dtype=object))
                sender.send(triton.InferenceResponse(output_tensors=[said]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
