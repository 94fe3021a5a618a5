"""The process: loads the models, and serves both transports until a signal."""

import argparse
import asyncio
import signal
from collections.abc import Mapping

from inference_store.local.ports import HOST

from .grpc import serve_grpc
from .rest import serve_rest
from .serving import Model, Serving

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
        from .small_models import small_models  # noqa: PLC0415

        return small_models()
    from .opencv import opencv_models  # noqa: PLC0415

    return opencv_models()


if __name__ == "__main__":
    main()
