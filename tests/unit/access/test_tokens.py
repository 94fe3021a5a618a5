"""Tokens of an issuer: a signature is verified once."""

import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from inference_store.access.tokens import Issuer, SigningKey, Tokens
from inference_store.inference.errors import Unauthorized
from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

_URL = "https://issuer.example"


class Counted(Ed25519PublicKey):
    """A public key that counts what it verifies."""

    def __init__(self, inner: Ed25519PublicKey) -> None:
        self.inner = inner
        self.verified = 0

    def verify(self, signature: Any, data: Any) -> None:
        self.verified += 1
        self.inner.verify(signature, data)

    def public_bytes(
        self, encoding: serialization.Encoding, format: serialization.PublicFormat
    ) -> bytes:
        return self.inner.public_bytes(encoding, format)

    def public_bytes_raw(self) -> bytes:
        return self.inner.public_bytes_raw()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash(self.public_bytes_raw())

    def __copy__(self) -> "Counted":
        return Counted(self.inner)

    def __deepcopy__(self, memo: dict[Any, Any]) -> "Counted":
        return Counted(self.inner)


class OneKey(Issuer):
    """An issuer that is not asked, of one key."""

    def __init__(self, public: Counted) -> None:
        super().__init__(_URL)
        self.public: Counted | None = public

    async def key(self, kid: str | None, algorithm: str) -> SigningKey:
        if self.public is None:
            raise Unauthorized("withdrawn")
        return SigningKey(kid, "OKP", algorithm, self.public)


PRIVATE = Ed25519PrivateKey.generate()


@pytest.fixture
def public() -> Counted:
    return Counted(PRIVATE.public_key())


@pytest.fixture
def issuer(public: Counted) -> OneKey:
    return OneKey(public)


@pytest.fixture
def tokens(issuer: OneKey) -> Tokens:
    fields = {"oidc_issuer": _URL, "oidc_audience": "store"}
    return Tokens(make_settings(ApiSettings, **fields), issuer, skew_seconds=0)


def _make_token(*, subject: str = "ada") -> str:
    claims = {"iss": _URL, "aud": "store", "sub": subject, "exp": time.time() + 1000}
    return jwt.encode(claims, PRIVATE, algorithm="EdDSA")


async def test_a_signature_is_verified_once(tokens: Tokens, public: Counted) -> None:
    token = _make_token()
    assert not tokens.is_in_use(token)
    for _ in range(3):
        assert (await tokens.caller(token)).name == "oidc:ada"
        assert tokens.is_in_use(token)
    assert public.verified == 1
    assert (await tokens.caller(_make_token(subject="bob"))).name == "oidc:bob"
    assert public.verified == 2


async def test_a_token_that_was_verified_expires(tokens: Tokens) -> None:
    token = _make_token()
    await tokens.caller(token)
    tokens._skew = -2000  # as if so many seconds had passed
    with pytest.raises(Unauthorized, match="expired"):
        await tokens.caller(token)
    assert not tokens.is_in_use(token)


async def test_a_key_that_is_withdrawn_or_replaced_verifies_no_more(
    tokens: Tokens, public: Counted, issuer: OneKey
) -> None:
    token = _make_token()
    await tokens.caller(token)
    issuer.public = Counted(Ed25519PrivateKey.generate().public_key())
    with pytest.raises(Unauthorized, match="Signature"):
        await tokens.caller(token)
    issuer.public = public
    await tokens.caller(token)
    issuer.public = None
    with pytest.raises(Unauthorized, match="withdrawn"):
        await tokens.caller(token)
    assert not tokens.is_in_use(token)
