"""Checks certificates of Inference Store with none of its code, by docs/reference/certificates.md.

    python verify_certificates.py COPY --trust KEY_ID

COPY is what `inference-store certificates copy` has written. Each fault is a line, and the exit
code is 1 then. It needs the package `cryptography`.
"""

import argparse
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ENTRY_BYTES = 33
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


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
    signature = envelope["signature"]
    if b64encode(b64decode(signature, validate=True)).decode() != signature:
        raise ValueError("its signature has unused bits that are not zero")
    return envelope


def is_same(value: Any, *others: Any) -> bool:
    """Whether values are the same in JSON, where 1 is neither 1.0 nor true."""
    return all(canonical(value) == canonical(other) for other in others)


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


def entries_in(content: bytes) -> Iterator[bytes]:
    """The entries of a list."""
    return (content[at : at + ENTRY_BYTES] for at in range(0, len(content), ENTRY_BYTES))


def is_listed(copy: Path, document: dict[str, Any]) -> bool:
    """Whether the list is the one that a certificate signs."""
    erased, leaves = document["erased"], document["leaves"]
    content = (copy / "lists" / leaves["root"]).read_bytes()
    letters = content[::ENTRY_BYTES]
    counts = len(letters) - letters.count(b"o"), letters.count(b"o"), len(letters)
    if len(content) % ENTRY_BYTES or not set(letters) <= set(b"idro"):
        return False
    signed = erased["inferences"], erased["objects"], leaves["count"], leaves["root"]
    return is_same([*counts, root_of(entries_in(content))], signed)


class Chain:
    """What was read so far: the keys, of which the last signs now, and the hashes of all texts."""

    def __init__(self, copy: Path, trusted: Iterable[str]) -> None:
        self.copy, self.trusted = copy, set(trusted)
        self.keys, self.hashes = list[bytes](), [""]

    def faults(self) -> Iterator[str]:
        """What is wrong with the documents from the first to the last, and with their lists."""
        last = max((int(path.stem) for path in self.copy.glob("[0-9]" * 10 + ".json")), default=0)
        if last == 0:
            yield "there is no certificate"
        for number in range(1, last + 1):
            text = b""
            try:
                text = (self.copy / f"{number:010}.json").read_bytes()
                yield from (f"certificate {number}: {f}" for f in self._next(number, text))
            except UNREADABLE as exc:
                yield f"certificate {number}: it cannot be read: {exc}"
            self.hashes.append(sha256(text).hexdigest())

    def _next(self, number: int, text: bytes) -> Iterator[str]:
        envelope = envelope_of(text)
        kind, document = envelope["kind"], envelope["document"]
        introduced = b64decode(document["public_key"]) if kind == "certificate_key" else b""
        starts_chain = not self.keys or "begun_anew" in document
        signer = introduced if starts_chain else self.keys[-1]
        if kind not in {"certificate", "certificate_key"}:
            yield f"there is no kind {kind}"
        if not signer or not is_signed(envelope, signer):
            yield "the key of this place has not signed it"
            return
        if starts_chain and id_of(signer) not in self.trusted:
            yield f"key {id_of(signer)} begins here without a key before it, and is not trusted"
        place = document["number"], document["previous"]
        if not is_same(place, (number, self.hashes[-1])):
            yield "it does not follow the one before it"
        if introduced and document["key"] != id_of(introduced):
            yield "it gives its key the id of another"
        if not introduced and not is_listed(self.copy, document):
            yield "its list is not the one that was signed"
        if introduced:
            self.keys.append(introduced)

    def head_faults(self) -> Iterator[str]:
        """Where the versions of the locked head say that the chain ended, and it did not. After
        `faults`."""
        try:
            versions = sorted((self.copy / "heads").iterdir())
        except OSError:
            versions = []
        if not versions:
            yield "there is no version of the head: nothing tells whether the chain's end was cut"
        for path in versions:
            try:
                yield from self._faults_of_head(path)
            except UNREADABLE as exc:
                yield f"the head {path.name} cannot be read: {exc}"

    def _faults_of_head(self, path: Path) -> Iterator[str]:
        head = envelope_of(path.read_bytes())
        end = head["document"]["signed"]
        number = end["number"]
        is_place = type(number) is int and 0 < number < len(self.hashes)
        if head["kind"] != "head" or not any(is_signed(head, key) for key in self.keys):
            yield f"no key of the chain has signed the head {path.name}"
        elif not is_place or self.hashes[number] != end["hash"]:
            yield f"the head {path.name} names certificate {number}, and it is not in the chain"


def main() -> int:
    """Check what the command line names; 1 where there is a fault."""
    parser = argparse.ArgumentParser(description="Check certificates of Inference Store.")
    parser.add_argument("copy", type=Path, help="what `certificates copy` has written")
    parser.add_argument("--trust", action="append", required=True, help="id of a key; repeatable")
    given = parser.parse_args()
    chain = Chain(given.copy, given.trust)
    faults = [*chain.faults(), *chain.head_faults()]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(chain.hashes) - 1} documents, {len(faults)} faults.", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
