"""A model for KServe's own server: the sum of each row. kserve_server.py HTTP_PORT GRPC_PORT.

V1 over REST; V2 over REST, with or without the binary data extension, and over gRPC.
"""

import sys
from typing import Any

import numpy as np
from kserve import InferRequest, Model, ModelServer
from kserve.errors import InvalidInput
from kserve.utils.utils import get_predict_response


class Sums(Model):
    def __init__(self) -> None:
        super().__init__("sums")
        self.load()

    def load(self) -> bool:
        self.ready = True
        return self.ready

    async def predict(self, payload: dict[str, Any] | InferRequest, *_: Any, **__: Any) -> Any:
        if isinstance(payload, InferRequest):
            rows = payload.inputs[0].as_numpy()
        else:
            rows = payload["instances"]
        try:
            sums = np.asarray(rows, dtype=np.float64).sum(axis=1)
        except ValueError as exc:
            raise InvalidInput(f"no rows of numbers: {exc}") from exc
        return get_predict_response(payload, sums, self.name)


if __name__ == "__main__":
    ModelServer(http_port=int(sys.argv[1]), grpc_port=int(sys.argv[2])).start([Sums()])
