"""What is special about a key: which of the two clients may carry it."""

import re

# Control characters, and what XML cannot hold: obstore refuses the first, a bulk delete both.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")


def is_plain(key: str) -> bool:
    """Whether every client and a bulk delete address exactly this key.

    obstore strips a slash at either end, without a word, and then reads another object.
    """
    if _UNWRITABLE.search(key):
        return False
    return not any(segment in {"", ".", ".."} for segment in key.split("/"))


def is_addressable(key: str) -> bool:
    """Whether any client can ask for it: `.` and `..` are resolved away on the road."""
    return not any(segment in {".", ".."} for segment in key.split("/"))
