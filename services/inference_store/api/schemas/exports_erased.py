"""What erasures took of an export."""

from inference_store.api.answer import Shown
from inference_store.export.erased import ErasedMember


class ShownErasedMember(Shown, of=ErasedMember, instead={"position": ("cursor",)}):
    """A member that an erasure took: erase it in copies too."""

    cursor: str
    """Continues after it: of the last one, with what comes later."""


class ErasedMemberPage(Shown):
    """Erased members, in the order in which they were erased."""

    items: list[ShownErasedMember]
    next: str | None
