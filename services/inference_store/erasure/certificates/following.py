"""Whether what the bucket has next goes on with the chain."""

from collections.abc import Sequence

from . import anew, chain
from .archive import Archive
from .chain import Link
from .keys import PublicKey, SigningKey
from .signed import NotSigned, Signed, read_signed


class ChainApart(Exception):
    """The chain cannot be gone on with: of another key, or not as it was signed."""


def checked(
    text: bytes,
    place: Link,
    known: Sequence[PublicKey],
    ours: Sequence[SigningKey],
    archive: Archive,
) -> Signed:
    """What the bucket has next; a chain begun anew is followed where it is by a key of ours, or one
    has signed something behind it. Blocks. Raises ChainApart; BlobsAway."""
    number = place.number + 1
    try:
        one = read_signed(text)
        begun = anew.begins_anew(one)
        signers = known or [chain.public_key(one)]
        keys = [key.public for key in ours]
        if begun is not None and (begun in keys or _is_vouched(one, number, keys, archive)):
            signers = [begun]
    except (NotSigned, KeyError, ValueError) as exc:
        raise ChainApart(f"certificate {number} in the bucket: {exc}") from exc
    wrong = list(chain.follows(one, place))
    if not one.is_by(signers[-1]):
        wrong.append("the chain's newest key has not signed it")
    if wrong:
        raise ChainApart(f"certificate {number} in the bucket: {'; '.join(wrong)}")
    return one


def _is_vouched(one: Signed, number: int, keys: Sequence[PublicKey], archive: Archive) -> bool:
    """Whether one of the keys has signed a later document: each names the hash of the one before,
    so that it stands for all of them. So a backup from before two keys were lost goes on."""
    before = Link(number, one.hash)
    for text in archive.after(number):
        try:
            later = read_signed(text)
        except NotSigned:
            return False
        if list(chain.follows(later, before)):
            return False
        if later.kind in {chain.CERTIFICATE, chain.KEY} and any(map(later.is_by, keys)):
            return True
        before = Link(before.number + 1, later.hash)
    return False
