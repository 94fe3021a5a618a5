"""Compare what the product writes with a committed file.

A difference is a change of what others read or have stored. `make golden` writes the files again;
the change of a file is reviewed like a change of code.
"""

import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("files")
OPENAPI: Final = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
WRITE: Final = "INFERENCE_STORE_TEST_WRITE_GOLDEN"
WIDTH: Final = 110


def check(name: str | Path, text: str) -> None:
    """Compare a text with the golden file of this name, or write the file if that is asked for."""
    file = FOLDER / name  # a whole path replaces the folder
    if os.environ.get(WRITE):
        file.write_text(text, encoding="utf-8")
    expected = file.read_text(encoding="utf-8") if file.exists() else ""
    assert text.splitlines() == expected.splitlines(), (
        f"{file.name} changed; on purpose: make golden"
    )
    assert text == expected


def format_json(value: Any, depth: int = 0, *, width: int = WIDTH) -> str:
    """Return JSON with sorted names; values that fit into one line are in one."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(line) + depth <= width:
        return line
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list):
        items = (format_json(item, depth + 1, width=width) for item in value)
        return f"[{inner}{f',{inner}'.join(items)}{outer}]"
    members = (
        f"{json.dumps(name)}: {format_json(value[name], depth + 1, width=width)}"
        for name in sorted(value)
    )
    return f"{{{inner}{f',{inner}'.join(members)}{outer}}}"


def format_bytes(title: str, data: bytes) -> str:
    """Return a title and the bytes below it: as text if they are text, otherwise in base64."""
    try:
        text = data.decode("utf-8")
        plain = text if text.isprintable() else None
    except UnicodeDecodeError:
        plain = None
    body = f"base64 {b64encode(data).decode()}" if plain is None else plain
    return f"# {title} ({len(data)} bytes)\n{body}\n"
