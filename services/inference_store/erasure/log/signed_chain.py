"""Follows a chain of signed documents: one step is the same for whoever follows it.

What differs is which keys may introduce themselves: the first of the chain, and those that restart
it. A policy says which.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .hash_chain import START, Link
from .key_documents import KIND, find_restart_key, read_public_key
from .keys import PublicKey
from .signed_document import NotSigned, SignedDocument, read_document


class BrokenChain(Exception):
    """The chain cannot be continued: a document or a key does not fit."""


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Says whether a key may be the first of a chain, or restart it by a document."""

    is_first: Callable[[PublicKey], bool] = lambda _: True
    is_restart: Callable[[PublicKey, SignedDocument], bool] = lambda *_: True


class SignedChain:
    """The end of a chain and its keys, the oldest first. `kinds`: what may be in it beside keys."""

    def __init__(
        self,
        end: Link = START,
        keys: Sequence[PublicKey] = (),
        *,
        kinds: Collection[str],
        policy: KeyPolicy | None = None,
    ) -> None:
        self.end = end
        self.keys = tuple(keys)
        # documents that restarted the chain, the oldest first
        self.restarts: list[SignedDocument] = []
        self._kinds = {KIND, *kinds}
        self._policy = policy or KeyPolicy()

    def check(self, data: bytes) -> tuple[SignedDocument | None, list[str]]:
        """Read what should be the next document, and return it with all that is wrong with it.

        The document is None if it cannot be read.
        """
        try:
            document = read_document(data)
            signer = self._find_signer(document)
        except (NotSigned, KeyError, ValueError, TypeError) as error:
            return None, [str(error)]
        faults = list(self.end.find_faults(document))
        if document.kind not in self._kinds:
            faults.append(f"it is of no kind that there is: {document.kind}")
        fault = self._find_signature_fault(document, signer)
        return document, faults if fault is None else [*faults, fault]

    def advance(self, document: SignedDocument) -> None:
        """Go on to a document that was checked."""
        if find_restart_key(document) is not None:
            self.restarts.append(document)
        if document.kind == KIND:
            self.keys += (read_public_key(document),)
        self.end = Link(self.end.number + 1, document.hash)

    def follow(self, data: bytes) -> SignedDocument:
        """Check the next document and go on to it. Raises BrokenChain."""
        document, faults = self.check(data)
        if document is None or faults:
            number = self.end.number + 1
            raise BrokenChain(f"certificate {number} in the bucket: {'; '.join(faults)}")
        self.advance(document)
        return document

    def _find_signer(self, document: SignedDocument) -> PublicKey | None:
        """Return the key that should have signed a document here; None if there is none."""
        if self.keys:
            return find_restart_key(document) or self.keys[-1]
        return read_public_key(document) if document.kind == KIND else None

    def _find_signature_fault(
        self, document: SignedDocument, signer: PublicKey | None
    ) -> str | None:
        if signer is None:
            return "the first of a chain introduces its key, and this does not"
        if not document.is_by(signer):
            return f"the signature is not of key {signer.id}, which signs at this place"
        if not self.keys and not self._policy.is_first(signer):
            return f"the chain begins with key {signer.id}, which is none of the trusted"
        if self.keys and signer != self.keys[-1] and not self._policy.is_restart(signer, document):
            return (
                f"the chain restarts with key {signer.id}, which no key before it has signed"
                " and which is none of the trusted"
            )
        return None
