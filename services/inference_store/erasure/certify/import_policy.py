"""Decides which documents of the bucket Postgres takes over into its chain."""

from collections.abc import Sequence

from inference_store.erasure.log import key_documents
from inference_store.erasure.log.hash_chain import Link
from inference_store.erasure.log.keys import PublicKey, SigningKey
from inference_store.erasure.log.signed_chain import KeyPolicy, SignedChain
from inference_store.erasure.log.signed_document import NotSigned, SignedDocument, read_document

from .archive import Archive
from .chain import CERTIFICATE


def check_import(
    data: bytes,
    end: Link,
    public_keys: Sequence[PublicKey],
    signing_keys: Sequence[SigningKey],
    archive: Archive,
) -> SignedDocument:
    """Return the next document of the bucket, checked.

    A restart of the chain is accepted if it is by a key of ours, or if one of these has signed a
    later document. Blocks. Raises BrokenChain; ObjectStoreUnavailable.
    """
    keys = [key.public for key in signing_keys]

    def is_restart(key: PublicKey, document: SignedDocument) -> bool:
        return key in keys or _is_vouched_for(document, end, keys, archive)

    policy = KeyPolicy(is_restart=is_restart)
    return SignedChain(end, public_keys, kinds={CERTIFICATE}, policy=policy).follow(data)


def _is_vouched_for(
    document: SignedDocument, end: Link, keys: Sequence[PublicKey], archive: Archive
) -> bool:
    """Return whether one of the keys has signed a later document.

    Each document names the hash of the one before it, so that the later one vouches for all of
    them. So a backup from before two keys were lost goes on.
    """
    link = Link(end.number + 1, document.hash)
    for data in archive.documents.read_after(link.number):
        try:
            later = read_document(data)
        except NotSigned:
            return False
        if any(link.find_faults(later)):
            return False
        if later.kind in {CERTIFICATE, key_documents.KIND} and any(map(later.is_by, keys)):
            return True
        link = Link(link.number + 1, later.hash)
    return False
