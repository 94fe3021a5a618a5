"""Takes uids out of a list of members: 16 bytes each, sorted."""

from collections.abc import Set

from inference_store.export.jobs.members import UID_BYTES


def take_uids(uid_list: bytes, doomed: Set[bytes]) -> tuple[bytes, bytes]:
    """Split a list in two: the uids that stay, and those among `doomed` (16 bytes each).

    Raises ValueError if the last uid is incomplete.
    """
    if len(uid_list) % UID_BYTES:
        raise ValueError(f"{len(uid_list)} bytes are no whole number of uids")
    uids = [uid_list[at : at + UID_BYTES] for at in range(0, len(uid_list), UID_BYTES)]
    rest = b"".join(packed for packed in uids if packed not in doomed)
    return rest, b"".join(packed for packed in uids if packed in doomed)
