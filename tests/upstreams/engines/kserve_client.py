"""KServe's own clients: one question on standard input, one answer on standard output, JSON."""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig


async def main() -> None:
    asked = json.load(sys.stdin)
    ask = {"v1": _v1, "v2": _v2, "grpc": _grpc}[asked["protocol"]]
    print(json.dumps(await ask(asked)))


async def _v1(asked: dict[str, Any]) -> Any:
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        url, said = f"http://{asked['address']}", {"instances": asked["rows"]}
        answer = await client.infer(url, said, model_name=asked["model"])
        return {"id": None, "values": answer["predictions"]}


async def _v2(asked: dict[str, Any]) -> Any:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        url = f"http://{asked['address']}"
        return _said(await client.infer(url, _request(asked), model_name=asked["model"]))


async def _grpc(asked: dict[str, Any]) -> Any:
    async with InferenceGRPCClient(asked["address"]) as client:
        return _said(await client.infer(_request(asked)))


def _request(asked: dict[str, Any]) -> InferRequest:
    rows = np.array(asked["rows"], dtype=np.float64)
    tensor = InferInput("rows", list(rows.shape), "FP64")
    tensor.set_data_from_numpy(rows, binary_data=asked["binary"])
    parameters = {"binary_data_output": True} if asked["binary"] else {}
    return InferRequest(asked["model"], [tensor], request_id=asked["id"], parameters=parameters)


def _said(answer: Any) -> Any:
    return {"id": answer.id, "values": answer.outputs[0].as_numpy().tolist()}


if __name__ == "__main__":
    asyncio.run(main())
