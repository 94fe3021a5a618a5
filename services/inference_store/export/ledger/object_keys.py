"""The objects of an export in the bucket.

exports/<export>/export.json      the head: what was asked, without the filter
exports/<export>/members/00000    a list of members, as in Postgres
exports/<export>/parts/…          the parts, whose keys Postgres has
exports/<export>/manifest.json    the parts with their hashes, at the end
"""

from uuid import UUID

from inference_store.inference.layout import EXPORTS


def head_key(export: UUID) -> str:
    """Return the key of an export's head."""
    return f"{EXPORTS}{export}/export.json"


def members_key(export: UUID, number: int) -> str:
    """Return the key of a list of members."""
    return f"{EXPORTS}{export}/members/{number:05}"


def parts_prefix(export: UUID) -> str:
    """Return what the keys of an export's parts begin with."""
    return f"{EXPORTS}{export}/parts/"


def manifest_key(export: UUID) -> str:
    """Return the key of an export's manifest."""
    return f"{EXPORTS}{export}/manifest.json"
