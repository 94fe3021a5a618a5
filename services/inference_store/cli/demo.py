"""`inference-store demo`: the whole store on this machine, fed with real input."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

_PORTS = {"INFERENCE_STORE_API_PORT": 8080, "INFERENCE_STORE_PROXY_PORT": 8090}
"""Setting to the port that is wished for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where .inference-store/ is made (default: .)"
    )
    parser.add_argument(
        "--once", action="store_true", help="stop after the three answers; do not serve on"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C or SIGTERM; 0 when it was stopped, 1 when it could not go on."""
    try:
        from inference_store.local.demo.screen import Screen  # noqa: PLC0415
        from inference_store.local.demo.story import tell  # noqa: PLC0415
        from inference_store.local.errors import LocalStackError  # noqa: PLC0415
        from inference_store.local.folder import NAME, LocalFolder  # noqa: PLC0415
        from inference_store.local.ports import first_free  # noqa: PLC0415
    except ModuleNotFoundError as error:  # the extra is not installed
        print(f"{error}: run `make demo`, or install inference-store[demo].", file=sys.stderr)
        return 1
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _interrupt)
    api, proxy = (int(os.environ.get(name) or first_free(port)) for name, port in _PORTS.items())
    folder = LocalFolder(arguments.folder.resolve() / NAME)
    try:
        tell(folder, Screen(), api_port=api, proxy_port=proxy, once=arguments.once)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running, the data stays")
    except LocalStackError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Begin to stop. A second Ctrl-C must not cut short the stopping of the parts: it waits."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt
