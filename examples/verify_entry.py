"""Says whether an inference or an object is in a certificate's list, with no code of the store.

    python verify_entry.py proof COPY NUMBER < proof.json
    python verify_entry.py list COPY NUMBER THING --key PEM

COPY is a copy by `certificates copy` that verify_certificates.py has checked. `proof` needs no
secret: it reads what `inference-store certificates prove` printed. `list` needs the key that hashed
the list, one of those in the file; THING is a uid or `s3://bucket/key`. The exit code is 1 where it
is not in the list.
"""

import argparse
import hmac
import json
import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

ENTRY_BYTES = 33
INFO = b"inference-store certificates: keyed hashes"
KEYS = re.compile(rb"-----BEGIN [^-]+-----.+?-----END [^-]+-----\s*", re.DOTALL)


def hashing_key(pem: bytes) -> bytes:
    """The secret of the keyed hashes, derived from the private key."""
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("--key is not a private key of Ed25519 in PEM")
    seed = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    return HKDF(SHA256(), 32, salt=None, info=INFO).derive(seed)


def entries_of(secret: bytes, thing: str) -> Sequence[bytes]:
    """The entries that an object has, or an inference, its input and its response."""
    if thing.startswith("s3://"):
        return (b"o" + hmac.digest(secret, b"object\0" + thing.encode(), "sha256"),)
    hashed = hmac.digest(secret, b"inference\0" + UUID(thing).bytes, "sha256")
    return tuple(letter + hashed for letter in (b"i", b"d", b"r"))


def is_in(content: bytes, entries: Sequence[bytes]) -> bool:
    """Whether a list has one of the entries."""
    here = range(0, len(content), ENTRY_BYTES)
    return any(content[at : at + ENTRY_BYTES] in entries for at in here)


def leads_to(root: str, proof: dict[str, Any]) -> bool:
    """Whether a proof leads from its entry to the root: RFC 9162, section 2.1.3.2."""
    place, last = proof["index"], proof["size"] - 1
    node = sha256(b"\0" + bytes.fromhex(proof["entry"])).digest()
    if not 0 <= place <= last:
        return False
    for beside in map(bytes.fromhex, proof["proof"]):
        if last == 0:
            return False
        if place & 1 or place == last:
            node = sha256(b"\1" + beside + node).digest()
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            node = sha256(b"\1" + node + beside).digest()
        place, last = place >> 1, last >> 1
    return last == 0 and node.hex() == root


def main() -> int:
    """Check what the command line names; 1 where it is not in the list."""
    parser = argparse.ArgumentParser(description="Look for an entry in a certificate's list.")
    parser.add_argument("what", choices=("proof", "list"))
    parser.add_argument("copy", type=Path, help="what `certificates copy` has written")
    parser.add_argument("number", type=int, help="the certificate's number")
    parser.add_argument("thing", nargs="?", help="a uid or s3://bucket/key")
    parser.add_argument("--key", type=Path, help="PEM with the private key that hashed the list")
    given = parser.parse_args()
    envelope = json.loads((given.copy / f"{given.number:010}.json").read_bytes())
    leaves = envelope["document"]["leaves"]
    root = leaves["root"]
    if given.what == "proof":
        proofs = [json.loads(line) for line in sys.stdin if line.strip()]
        proofs = [proof for proof in proofs if proof["certificate"] == given.number]
        is_there = any(p["size"] == leaves["count"] and leads_to(root, p) for p in proofs)
    else:
        secrets = map(hashing_key, KEYS.findall(given.key.read_bytes()))
        entries = [entry for secret in secrets for entry in entries_of(secret, given.thing)]
        is_there = is_in((given.copy / "lists" / root).read_bytes(), entries)
    print(f"It is {'' if is_there else 'not '}in certificate {given.number}.")
    return 0 if is_there else 1


if __name__ == "__main__":
    sys.exit(main())
