"""Decides which of the two clients may send a key."""

import re

# Control characters, and characters that XML cannot contain: obstore refuses the first, a bulk
# delete both.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")


def is_plain(key: str) -> bool:
    """Return whether every client and a bulk delete address exactly this key.

    obstore silently strips a slash at either end, and then reads another object.
    """
    if _UNWRITABLE.search(key):
        return False
    return not any(segment in {"", ".", ".."} for segment in key.split("/"))


def is_addressable(key: str) -> bool:
    """Return whether any client can request the key: `.` and `..` are resolved on the way."""
    return not any(segment in {".", ".."} for segment in key.split("/"))
