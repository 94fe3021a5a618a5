"""Whether what the bucket has next goes on with the chain."""

from collections.abc import Sequence

from . import anew, chain
from .chain import Link
from .keys import PublicKey, SigningKey
from .signed import NotSigned, Signed, read_signed


class ChainApart(Exception):
    """The chain cannot be gone on with: of another key, or not as it was signed."""


def checked(
    text: bytes, place: Link, known: Sequence[PublicKey], ours: Sequence[SigningKey]
) -> Signed:
    """What the bucket has next; a chain begun anew is followed where it is by a key of ours.
    Raises ChainApart."""
    number = place.number + 1
    try:
        one = read_signed(text)
        begun = anew.begins_anew(one)
        signers = known or [chain.public_key(one)]
        if begun is not None and begun in [key.public for key in ours]:
            signers = [begun]
    except (NotSigned, KeyError, ValueError) as exc:
        raise ChainApart(f"certificate {number} in the bucket: {exc}") from exc
    wrong = list(chain.follows(one, place))
    if not one.is_by(signers[-1]):
        wrong.append("the chain's newest key has not signed it")
    if wrong:
        raise ChainApart(f"certificate {number} in the bucket: {'; '.join(wrong)}")
    return one
