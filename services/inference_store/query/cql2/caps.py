"""Caps on the size of a filter. A larger one is refused (422), and the error names the cap."""

from typing import Final

BYTES: Final = 100_000
"""Bytes of a text filter in UTF-8, or of all texts of a JSON filter together."""
TOKENS: Final = 10_000
"""Names, numbers, texts, words and signs of a text filter: the cap bounds the time to parse it."""
DEPTH: Final = 64
"""Operations, arrays and intervals inside each other."""
NODES: Final = 2_000
"""Operations, names and values together."""
ITEMS: Final = 1_000
"""Items of one array or `IN` list."""
POSITIONS: Final = 1_000
"""Positions of one geometry."""
