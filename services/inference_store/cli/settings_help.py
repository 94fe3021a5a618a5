"""Lists a command's settings for `--help`: name, default and a line each."""

import inspect
import shutil
import textwrap
from collections.abc import Iterator

from pydantic import SecretStr

from inference_store.inference.field_docs import field_docs
from inference_store.platform.settings import PREFIX, SettingsGroup


def list_settings(group: type[SettingsGroup]) -> str:
    """List all settings by their groups; the command's own come first."""
    return "\n".join(_format_lines(group, min(shutil.get_terminal_size().columns - 2, 100)))


def _format_lines(group: type[SettingsGroup], width: int) -> Iterator[str]:
    yield "settings, of the environment or of .env; a secret NAME may be a file, NAME_FILE:"
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
