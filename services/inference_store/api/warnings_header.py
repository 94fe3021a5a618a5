"""The warnings of an answer that has no room for them, such as CSV: in a header."""

import json
from collections.abc import Sequence
from typing import Final

NAME: Final = "Inference-Store-Warnings"
_MOST_BYTES: Final = 2_000  # some proxies refuse an answer with more than 4 KB of headers


def write_warnings(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header, a JSON array of texts in ASCII; none without warnings. Of those that are
    too long together, it has the first, and the number of the others."""
    texts: list[str] = []
    size = 0
    for warning in warnings:
        size += len(json.dumps(warning)) + len(", ")
        if size > _MOST_BYTES:
            texts.append(f"And {len(warnings) - len(texts):,} more: a page of JSON has them all.")
            break
        texts.append(warning)
    return {NAME: json.dumps(texts).replace("\x7f", "\\u007f")} if texts else {}
