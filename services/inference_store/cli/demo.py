"""`inference-store demo`: the whole store on this machine, fed with real input."""

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from .command import Command

_PREFIX = "INFERENCE_STORE_"
_PORT_SETTINGS = {f"{_PREFIX}API_PORT": "api", f"{_PREFIX}PROXY_PORT": "proxy"}
"""The settings that the demo reads from its environment, and the part of each port."""
_EPILOG = (
    f"Of the settings {_PREFIX}… in your environment the demo takes"
    f" {' and '.join(_PORT_SETTINGS)}; it"
    " ignores all others, and reads no .env: what is set for a real store must not reach this one."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where .inference-store/ is made (default: .)"
    )
    parser.add_argument(
        "--port",
        type=_parse_port,
        help="port of the REST API (default: 8080, or the next free one)",
    )
    parser.add_argument(
        "--proxy-port",
        type=_parse_port,
        help="port of the proxy (default: 8090, or the next free one)",
    )
    parser.add_argument("--once", action="store_true", help="stop after the answers")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo until Ctrl-C or SIGTERM; return 0 if it was stopped, 1 if it could not go on."""
    try:
        from inference_store.local.demo.story import tell  # noqa: PLC0415
        from inference_store.local.folder import NAME, LocalFolder, LocalStackError  # noqa: PLC0415
        from inference_store.local.screen import Screen  # noqa: PLC0415
    except ModuleNotFoundError as error:  # the extra is not installed
        print(f"{error}: run `make demo`, or install inference-store[demo].", file=sys.stderr)
        return 1
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, _interrupt)
    folder, screen = LocalFolder(arguments.folder.resolve() / NAME), Screen()
    if ignored := describe_ignored(os.environ):
        screen.say(ignored)
    try:
        tell(folder, screen, asked_ports=read_ports(arguments, os.environ), once=arguments.once)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running, the data stays")
    except (LocalStackError, argparse.ArgumentTypeError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def read_ports(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, int]:
    """Return the ports that must be used, by part: of the command line, else of the environment.

    Raises ArgumentTypeError if the environment names no valid port.
    """
    from_environment = {
        part: _parse_port(environment[name], name)
        for name, part in _PORT_SETTINGS.items()
        if environment.get(name)
    }
    from_arguments = {"api": arguments.port, "proxy": arguments.proxy_port}
    return from_environment | {
        part: port for part, port in from_arguments.items() if port is not None
    }


def describe_ignored(environment: Mapping[str, str]) -> str:
    """Describe which settings of the environment the demo ignores, and which it uses; "" if there
    are none."""
    ignored = sorted(
        name for name in environment if name.startswith(_PREFIX) and name not in _PORT_SETTINGS
    )
    if not ignored:
        return ""
    return f"Ignored from your environment: {', '.join(ignored)}. {_EPILOG}"


def _parse_port(text: str, name: str = "") -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    wrong = f"{text!r} is not a port: write 1 to 65535, as in 8080"
    raise argparse.ArgumentTypeError(f"{name}: {wrong}" if name else wrong)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Begin to stop. A second Ctrl-C must not interrupt the end of the parts: it is ignored."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    raise KeyboardInterrupt


DEMO = Command(run, add_arguments=add_arguments)
