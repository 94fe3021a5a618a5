"""Checks certificates of Inference Store with none of its code, by docs/reference/certificates.md.

    python verify_certificates.py COPY --trust KEY_ID [--heads FOLDER]

COPY is a copy of `certificates/` of the bucket; FOLDER has each version of `certificates/head` in a
file of any name. Each fault is a line, and the exit code is 1 then. It needs the package
`cryptography`.
"""

import argparse
import json
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ENTRY_BYTES = 33


def canonical(value: Any) -> bytes:
    """JSON in its one form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def id_of(public: bytes) -> str:
    """The id of a public key."""
    return sha256(public).hexdigest()[:32]


def envelope_of(text: bytes) -> dict[str, Any]:
    """What a file has. Raises ValueError where it is not in its one form."""
    envelope: dict[str, Any] = json.loads(text)
    if set(envelope) != {"document", "kind", "signature", "signed_by"}:
        raise ValueError("it is not document, kind, signature and signed_by")
    if canonical(envelope) != text:
        raise ValueError("it is not in the canonical form")
    return envelope


def is_signed(envelope: dict[str, Any], public: bytes) -> bool:
    """Whether this key has signed the document as this kind."""
    prefix = b"inference-store " + envelope["kind"].encode() + b"\n"
    signature = b64decode(envelope["signature"], validate=True)
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(signature, prefix + canonical(envelope["document"]))
    except InvalidSignature:
        return False
    return bool(envelope["signed_by"] == id_of(public))


def root_of(entries: Iterable[bytes]) -> str:
    """The root of RFC 6962, section 2.1: subtrees are joined where they have the same height."""
    subtrees: list[tuple[int, bytes]] = []
    for entry in entries:
        height, node = 0, sha256(b"\0" + entry).digest()
        while subtrees and subtrees[-1][0] == height:
            height, node = height + 1, sha256(b"\1" + subtrees.pop()[1] + node).digest()
        subtrees.append((height, node))
    node = subtrees.pop()[1] if subtrees else sha256().digest()
    while subtrees:
        node = sha256(b"\1" + subtrees.pop()[1] + node).digest()
    return node.hex()


def list_of(copy: Path, root: str) -> bytes:
    """The entries that a root is over, one after the other."""
    pieces: list[bytes] = []
    while (piece := copy / "leaves" / root / f"{len(pieces) + 1:06}").exists():
        pieces.append(piece.read_bytes())
    return b"".join(pieces)


def entries_in(content: bytes) -> Iterator[bytes]:
    """The entries of a list."""
    return (content[at : at + ENTRY_BYTES] for at in range(0, len(content), ENTRY_BYTES))


def is_listed(copy: Path, document: dict[str, Any]) -> bool:
    """Whether the list is the one that a certificate signs."""
    erased, leaves = document["erased"], document["leaves"]
    content = list_of(copy, leaves["root"])
    letters = content[::ENTRY_BYTES]
    counts = len(letters) - letters.count(b"o"), letters.count(b"o"), len(letters)
    if len(content) % ENTRY_BYTES or not set(letters) <= set(b"idro"):
        return False
    signed = erased["inferences"], erased["objects"], leaves["count"], leaves["root"]
    return (*counts, root_of(entries_in(content))) == signed


class Chain:
    """What was read so far: the key that signs now, the hash of the last text, and all texts."""

    def __init__(self, copy: Path, trusted: Iterable[str]) -> None:
        self.copy, self.trusted = copy, set(trusted)
        self.public, self.previous, self.texts = b"", "", dict[int, bytes]()

    def faults(self) -> Iterator[str]:
        """What is wrong with the documents from the first to the last, and with their lists."""
        last = max((int(path.stem) for path in self.copy.glob("[0-9]*.json")), default=0)
        if last == 0:
            yield "there is no certificate"
        for number in range(1, last + 1):
            try:
                text = self.texts[number] = (self.copy / f"{number:010}.json").read_bytes()
                yield from (f"certificate {number}: {f}" for f in self._next(number, text))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
                yield f"certificate {number}: it cannot be read: {exc}"
            self.previous = sha256(self.texts.get(number, b"")).hexdigest()

    def _next(self, number: int, text: bytes) -> Iterator[str]:
        envelope = envelope_of(text)
        kind, document = envelope["kind"], envelope["document"]
        introduced = b64decode(document["public_key"]) if kind == "certificate_key" else b""
        starts_chain = not self.public or "begun_anew" in document
        signer = introduced if starts_chain else self.public
        if kind not in {"certificate", "certificate_key"}:
            yield f"there is no kind {kind}"
        if not signer or not is_signed(envelope, signer):
            yield "the key of this place has not signed it"
            return
        if starts_chain and id_of(signer) not in self.trusted:
            yield f"key {id_of(signer)} begins here without a key before it, and is not trusted"
        if document["number"] != number or document["previous"] != self.previous:
            yield "it does not follow the one before it"
        if introduced and document["key"] != id_of(introduced):
            yield "it gives its key the id of another"
        if not introduced and not is_listed(self.copy, document):
            yield "its list is not the one that was signed"
        self.public = introduced or self.public

    def head_faults(self, heads: Path) -> Iterator[str]:
        """What the versions of the locked head have and the chain has not. After `faults`."""
        versions = {path.read_bytes() for path in heads.iterdir()}
        if not versions:
            yield "no version of the head is there: nothing tells whether the chain's end was cut"
        for text in versions - set(self.texts.values()):
            yield f"a version of the head is not in the chain: {text[:100]!r}"


def main() -> int:
    """Check what the command line names; 1 where there is a fault."""
    parser = argparse.ArgumentParser(description="Check certificates of Inference Store.")
    parser.add_argument("copy", type=Path, help="a copy of `certificates/` of the bucket")
    parser.add_argument("--trust", action="append", required=True, help="id of a key; repeatable")
    parser.add_argument("--heads", type=Path, help="a folder with all versions of the head")
    given = parser.parse_args()
    chain = Chain(given.copy, given.trust)
    faults = list(chain.faults()) + (list(chain.head_faults(given.heads)) if given.heads else [])
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(chain.texts)} documents, {len(faults)} faults.", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
