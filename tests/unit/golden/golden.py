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
WRITE: Final = "INFERENCE_STORE_TEST_WRITE_GOLDEN"
WIDTH: Final = 110


def check(name: str, found: str) -> None:
    """Compare a text with the golden file of this name, or write the file if that is asked for."""
    file = FOLDER / name
    if os.environ.get(WRITE):
        file.write_text(found, encoding="utf-8")
    expected = file.read_text(encoding="utf-8") if file.exists() else ""
    assert found.splitlines() == expected.splitlines(), f"{name} changed; on purpose: make golden"
    assert found == expected


def written_json(value: Any, depth: int = 0) -> str:
    """Return JSON with sorted names: what fits into a line stands in one."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(line) + depth <= WIDTH:
        return line
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list):
        items = (written_json(each, depth + 1) for each in value)
        return f"[{inner}{f',{inner}'.join(items)}{outer}]"
    named = (
        f"{json.dumps(name)}: {written_json(value[name], depth + 1)}" for name in sorted(value)
    )
    return f"{{{inner}{f',{inner}'.join(named)}{outer}}}"


def written_bytes(title: str, data: bytes) -> str:
    """Return a title and the bytes below it: as text where they are text, else in base64."""
    try:
        text = data.decode("utf-8")
        plain = text if text.isprintable() else None
    except UnicodeDecodeError:
        plain = None
    shown = f"base64 {b64encode(data).decode()}" if plain is None else plain
    return f"# {title} ({len(data)} bytes)\n{shown}\n"
