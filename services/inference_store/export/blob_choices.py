"""What the parts of an export have of the blobs: nothing, links to them, or their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

BlobChoice: TypeAlias = Literal["none", "links", "copy"]


@dataclass(frozen=True, slots=True)
class ChosenBlobs:
    """The blobs that the parts have links to, and those that they copy."""

    linked: Sequence[str] = ()
    copied: Sequence[str] = ()


NO_BLOBS: Final = ChosenBlobs()
