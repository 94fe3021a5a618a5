"""The object keys of an export, all under its own prefix in the default bucket.

exports/<export>/export.json            what it is, without its filter
exports/<export>/members/00001          a list of members: 16 bytes for each uid
exports/<export>/parts/00001-<random>.parquet
exports/<export>/manifest.json          every part with its SHA-256; it is written last
"""

from secrets import token_hex
from typing import Final
from uuid import UUID

from inference_store.inference.layout import EXPORTS

HEAD: Final = "export.json"
MANIFEST: Final = "manifest.json"
MEMBERS: Final = "members/"
PARTS: Final = "parts/"


def make_prefix(export: UUID) -> str:
    """Return the text that all keys of an export begin with."""
    return f"{EXPORTS}{export}/"


def make_head_key(export: UUID) -> str:
    """Return the key of an export's head."""
    return make_prefix(export) + HEAD


def make_manifest_key(export: UUID) -> str:
    """Return the key of an export's manifest."""
    return make_prefix(export) + MANIFEST


def make_members_key(export: UUID, number: int) -> str:
    """Return the key of a list of members."""
    return f"{make_prefix(export)}{MEMBERS}{number:05}"


def make_part_key(export: UUID, number: int, suffix: str) -> str:
    """Return a new key for a part: each attempt to write it has its own, so that a process that
    lost its leadership overwrites nothing."""
    return f"{make_prefix(export)}{PARTS}{number:05}-{token_hex(4)}{suffix}"
