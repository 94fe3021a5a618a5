"""What all commands share: their arguments, settings, help and completion, and how they end."""

import argparse
import getpass
import inspect
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

from pydantic import SecretStr

from inference_store.inference.errors import ObjectStoreUnavailable, SchemaBehind, StoreError
from inference_store.inference.field_docs import field_docs
from inference_store.platform import logs, traces
from inference_store.platform.settings import (
    PREFIX,
    Checks,
    LogSettings,
    PostgresSettings,
    SettingsGroup,
    WrongSetting,
)
from inference_store.platform.settings import read as read_settings

from .main import (
    CLIENT_COMMANDS,
    COMMANDS,
    build_root_parser,
    import_client_module,
    import_command,
    is_reader_gone,
)


class _Parser(argparse.ArgumentParser):
    """Lists a command's settings in its help."""

    settings: type[SettingsGroup] | None = None

    def format_help(self) -> str:
        if self.settings is None:
            return super().format_help()
        return f"{super().format_help()}\n{list_settings(self.settings)}\n"


class Command(NamedTuple):
    """A command: its result is the exit code."""

    run: Callable[[argparse.Namespace], int]
    settings: type[SettingsGroup] | None = None
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda _: None

    def call(self, arguments: Sequence[str], program: str, description: str) -> int:
        """Read the arguments and run."""
        parser = _Parser(prog=program, description=description)
        parser.settings = self.settings
        self.add_arguments(parser)
        try:
            return self.run(parser.parse_args(arguments))
        except (SchemaBehind, WrongSetting) as refused:
            sys.exit(str(refused))
        finally:
            traces.stop()


class DatabaseSettings(LogSettings, PostgresSettings):
    """The settings of a command that works on the database alone."""


S = TypeVar("S", bound=LogSettings)


def start_service(settings: type[S], service: str, checks: Checks | None = None) -> S:
    """Return the service's settings, with logging configured.

    Exits with a sentence for each invalid setting, and for what the checks find.
    """
    try:
        read = read_settings(settings, checks)
    except WrongSetting as wrong:
        sys.exit(str(wrong))
    logs.configure(read, service=service)
    traces.configure(service)
    return read


def list_settings(group: type[SettingsGroup]) -> str:
    """List all settings by their groups; the command's own come first."""
    return "\n".join(_format_lines(group, min(shutil.get_terminal_size().columns - 2, 100)))


def _format_lines(group: type[SettingsGroup], width: int) -> Iterator[str]:
    yield "settings, from the environment or .env; NAME_FILE: a file with the secret NAME:"
    docs = field_docs(group)
    for kind in group.__mro__:
        own = [name for name in inspect.get_annotations(kind) if name in group.model_fields]
        if own:
            yield f"\n {str(kind.__doc__).splitlines()[0]}"
        for name in own:
            yield f"  {PREFIX}{name.upper()}{_format_default(group, name)}"
            yield textwrap.indent(textwrap.fill(docs.get(name, ""), width - 6), " " * 6)


def _format_default(group: type[SettingsGroup], name: str) -> str:
    value = group.model_fields[name].get_default()
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, float):
        value = f"{value:.15g}"
    return "" if value is None or value == "" else f" (default: {value})"


def find_cli_user() -> str:
    """Return the user's name; `unknown` for an id without one, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def parse_seconds(text: str) -> float:
    """Parse a number of seconds. Raises ArgumentTypeError, which says how to write it."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        message = f"{text!r} is not a number of seconds, such as 15"
        raise argparse.ArgumentTypeError(message)
    return seconds


_MOST_NAME_CHARACTERS: Final = 256


def parse_positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0. Raises ArgumentTypeError."""
    if (seconds := parse_seconds(text)) == 0:
        raise argparse.ArgumentTypeError("it must be more than 0 seconds, such as 15")
    return seconds


def parse_number(text: str) -> int:
    """Parse the number of an entry, 0 or more. Raises ArgumentTypeError."""
    return _parse_whole(text, least=0)


def parse_limit(text: str) -> int:
    """Parse how many are wanted, 1 or more. Raises ArgumentTypeError."""
    return _parse_whole(text, least=1)


def parse_name(text: str) -> str:
    """Return a name for people: 1 to 256 characters. Raises ArgumentTypeError."""
    if not 0 < len(text.strip()) <= len(text) <= _MOST_NAME_CHARACTERS:
        message = f"a name must have 1 to {_MOST_NAME_CHARACTERS} characters"
        raise argparse.ArgumentTypeError(message)
    return text


def _parse_whole(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < least:
        message = f"{text!r} is not a whole number of {least} or more, such as 100"
        raise argparse.ArgumentTypeError(message)
    return int(text)


@contextmanager
def exiting(*, refused: int = 1) -> Iterator[None]:
    """Exit with a sentence if Postgres or the object store is unavailable in the body, with code 3,
    or if something is refused."""
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 -- the proxy knows no database

    try:
        yield
    except StoreError as error:
        sentence, code = error.detail, refused
    except ObjectStoreUnavailable as error:
        sentence, code = f"The object store is unavailable: {error}"[:500], 3
    except (DBAPIError, OSError) as error:
        if isinstance(error, BrokenPipeError) and is_reader_gone():
            raise  # no server is unavailable
        migrate = "or not migrated (inference-store migrate)"
        sentence, code = f"Postgres is unavailable, {migrate}: {error}"[:500], 3
    else:
        return
    print(sentence, file=sys.stderr)
    sys.exit(code)


# `inference-store completion`: a script for a shell, made from the commands' own arguments.

_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """examples:
  cd ~/.local/share/bash-completion/completions && inference-store completion bash > inference-store
  inference-store completion zsh > "${fpath[1]}/_inference-store"
  inference-store completion fish > ~/.config/fish/completions/inference-store.fish
"""


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=_SHELLS)


def _complete(arguments: argparse.Namespace) -> int:
    # No other command needs it.
    import shtab  # noqa: PLC0415

    print(shtab.complete(_all_commands(), arguments.shell))
    return 0


def _all_commands() -> argparse.ArgumentParser:
    parser = build_root_parser()
    commands = parser.add_subparsers(dest="command")
    for name, sentence in COMMANDS.items():
        command = commands.add_parser(name, help=sentence, description=sentence)
        import_command(name).add_arguments(command)
    for name, sentence in CLIENT_COMMANDS.items():
        command = commands.add_parser(name, help=sentence, description=sentence)
        with suppress(ModuleNotFoundError):
            import_client_module("main").import_command(name).add_arguments(command)
    return parser


COMPLETION = Command(_complete, add_arguments=_add_completion_arguments)
