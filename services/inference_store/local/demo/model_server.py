"""A model server that infers by the Open Inference Protocol, version 2, over REST and gRPC.

`python -m inference_store.local.demo.model_server <REST port> <gRPC port>`; with `--small` it
serves a classifier of digits alone, which needs no package beside the services' own.

It knows nothing of the store, like any model server behind the proxy: each input is an encoded
picture (BYTES; base64 in JSON) or a text, each output the list of the model's findings in it. A
chat comes as OpenAI's servers read it.
"""

import argparse
import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import grpc
import orjson

from inference_store.grpc_messages import message
from inference_store.local.demo.served_models import (
    DATATYPE,
    MOST_BYTES,
    VERSION,
    Input,
    Model,
    NoSuchModel,
    Output,
    Refusal,
    Serving,
    serve_rest,
)
from inference_store.local.folder import HOST

_STOP_SECONDS = 5.0


async def serve(models: Mapping[str, Model], host: str, rest_port: int, grpc_port: int) -> None:
    """Serve until SIGTERM or SIGINT; the calls that run then are answered."""
    ended = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, ended.set)
    serving = Serving(models)
    server = await serve_grpc(serving, grpc_port, host)
    # Last: it answers "ready" for both.
    runner = await serve_rest(serving, rest_port, host)
    await ended.wait()
    await server.stop(_STOP_SECONDS)
    await runner.cleanup()


def main() -> None:
    """Read the command line, load the models, serve."""
    parser = argparse.ArgumentParser(prog="python -m inference_store.local.demo.model_server")
    parser.add_argument("rest_port", type=int)
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("--host", default=HOST, help="address to bind (default: %(default)s)")
    parser.add_argument(
        "--small", action="store_true", help="the digits alone: needs nothing of the extra `demo`"
    )
    arguments = parser.parse_args()
    asyncio.run(
        serve(
            _models(small=arguments.small), arguments.host, arguments.rest_port, arguments.grpc_port
        )
    )


def _models(*, small: bool) -> Mapping[str, Model]:
    # Unused models may not be installed.
    if small:
        from inference_store.local.demo.served_models import small_models  # noqa: PLC0415

        return small_models()
    from inference_store.local.demo.detectors import demo_models  # noqa: PLC0415

    return demo_models()


SERVICE = "inference.GRPCInferenceService"
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


async def serve_grpc(serving: Serving, port: int, host: str = HOST) -> grpc.aio.Server:
    """Listen on `port` until the server is stopped."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES)])
    handlers = {"ModelInfer": _handler(serving)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"{host}:{port}")
    await server.start()
    return server


def _handler(serving: Serving) -> Any:
    make_answer = message("inference.ModelInferResponse")

    async def infer(request: Any, context: _Context) -> Any:
        try:
            outputs = await serving.answer(request.model_name, _inputs(request))
        except NoSuchModel as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except Refusal as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return make_answer(
            model_name=request.model_name,
            model_version=VERSION,
            id=request.id,
            outputs=[*map(_output, outputs)],
        )

    return grpc.unary_unary_rpc_method_handler(
        infer,
        request_deserializer=message("inference.ModelInferRequest").FromString,
        response_serializer=lambda written: written.SerializeToString(),
    )


def _inputs(request: Any) -> Sequence[Input]:
    if request.raw_input_contents:
        raise Refusal("raw contents are not read here: send the contents of each tensor")
    for tensor in request.inputs:
        if tensor.datatype != DATATYPE or len(tensor.contents.bytes_contents) != 1:
            raise Refusal(f"input {tensor.name!r}: expected datatype BYTES and one element")
    return [Input(tensor.name, tensor.contents.bytes_contents[0]) for tensor in request.inputs]


def _output(output: Output) -> dict[str, Any]:
    findings = [orjson.dumps(finding) for finding in output.findings]
    contents, shape = {"bytes_contents": findings}, [len(findings)]
    return {"name": output.name, "datatype": DATATYPE, "shape": shape, "contents": contents}


if __name__ == "__main__":
    main()
