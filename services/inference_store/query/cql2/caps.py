"""How large a filter may be. Over a cap: refused (422), and the refusal names the cap."""

from typing import Final

BYTES: Final = 100_000
"""Of a filter's text in UTF-8; of all texts of a JSON filter together."""
TOKENS: Final = 10_000
"""Names, numbers, texts, words and signs of a text: so reading one never takes long."""
DEPTH: Final = 64
"""Operations, arrays and intervals inside each other."""
NODES: Final = 2_000
"""Operations, names and values together."""
ITEMS: Final = 1_000
"""Items of one array or `IN` list."""
POSITIONS: Final = 1_000
"""Positions of one geometry."""
