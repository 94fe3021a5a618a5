"""The rights of a caller are the sum of the grants."""

import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError

from inference_store.access import EVERYTHING, Caller
from inference_store.access.credentials import Secret, id_of, new_id, new_secret
from inference_store.access.rights import OWNER, RIGHTS, ROLES, Grant, Right, read_roles
from inference_store.access.tokens import Issuer, SigningKey, Tokens
from inference_store.inference.errors import Unauthorized
from inference_store.platform.settings import ApiSettings, RoleSettings, WrongSetting
from tests.settings import make_settings

READ_A = Grant(rights=(Right.READ,), model_id="a")
READ_P = Grant(rights=(Right.READ,), project_id="p")
DELETE_A = Grant(rights=(Right.DELETE,), model_id="a")


def has_right_on(
    caller: Caller, right: Right, model_id: str, project_id: str | None = None
) -> bool:
    return (caller.scope(Right.READ) & caller.scope(right)).has(model_id, project_id)


def test_grants_add_up_but_what_is_not_read_cannot_be_changed() -> None:
    caller = Caller("x", (READ_A, READ_P, DELETE_A))
    assert has_right_on(caller, Right.READ, "a")
    assert has_right_on(caller, Right.READ, "b", "p")
    assert not has_right_on(caller, Right.READ, "b", "q")
    assert not has_right_on(caller, Right.READ, "p")
    assert not has_right_on(caller, Right.READ, "b", "a")
    assert has_right_on(caller, Right.DELETE, "a", "q")
    assert not has_right_on(caller, Right.DELETE, "b", "p")
    everywhere = Grant(rights=tuple(right for right in Right if right is not Right.READ))
    assert not has_right_on(Caller("x", (everywhere,)), Right.DELETE, "a", "p")
    assert has_right_on(Caller("x", (everywhere, READ_P)), Right.DELETE, "a", "p")
    assert not has_right_on(Caller("x", (everywhere, READ_P)), Right.DELETE, "a", "q")


def test_only_everything_includes_data_of_no_model() -> None:
    assert Caller("x", OWNER).scope(Right.ADMIN) == EVERYTHING
    assert EVERYTHING.has("a", None)
    assert EVERYTHING.has_project(None)
    nobody = Caller("x", ()).scope(Right.READ)
    assert nobody.is_nothing
    assert not nobody.has("a", None)
    assert not nobody.has_project(None)
    some = Caller("x", (READ_P,)).scope(Right.READ)
    assert not some.is_everything
    assert not some.is_nothing
    assert some.has_project("p")
    assert not some.has_project(None)


def test_refuses_to_grant_rights_that_the_caller_lacks() -> None:
    others = sorted(ROLES["analyst"] - {Right.READ}, key=list(Right).index)
    for mine, theirs, lacking in (
        (OWNER, (READ_A, READ_P, DELETE_A), []),
        ((READ_A,), (READ_A,), []),
        ((READ_A,), (DELETE_A,), [Right.DELETE]),
        ((READ_P,), (READ_A,), [Right.READ]),
        ((READ_A,), (READ_P,), [Right.READ]),
        ((READ_A,), (Grant(rights=(Right.READ,)),), [Right.READ]),
        ((READ_A, DELETE_A), (Grant(role="analyst", model_id="a"),), others),
    ):
        assert Caller("x", mine).lacks(theirs) == lacking, mine


def test_ids_that_no_model_can_have(subtests: pytest.Subtests) -> None:
    assert set(RIGHTS) == set(Right), "every right has a sentence"
    for ids in ({"model_id": "a\0"}, {"project_id": "\ud800"}, {"model_id": ""}):
        with subtests.test(ids=ids), pytest.raises(ValidationError):
            Grant.model_validate({"rights": ["read"], **ids})


def test_reads_roles_from_environment_and_refuses_what_gives_no_rights(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    roles = '{"ops": [{"role": "reader", "project_id": "p"}]}'
    monkeypatch.setenv("INFERENCE_STORE_OIDC_ROLES", roles)
    [grant] = read_roles(RoleSettings())["ops"]
    assert (grant.held, grant.project_id) == (frozenset({Right.READ}), "p")
    for grants, sentence in (
        ([{"role": "king"}], "ops.0.role: Input should be 'reader', 'analyst' or 'owner'."),
        ([{}], "ops.0: it grants nothing: give a `role` or `rights`."),
        ("owner", "ops: Input should be a valid tuple."),
    ):
        with subtests.test(grants=grants):
            settings = make_settings(RoleSettings, oidc_roles={"ops": grants})
            with pytest.raises(WrongSetting) as refused:
                read_roles(settings)
            assert str(refused.value) == f"INFERENCE_STORE_OIDC_ROLES: {sentence}"


def test_a_key_carries_its_id_and_256_random_bits() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    texts = {new_secret("abcdefghjkmn").text for _ in range(1000)}
    assert len({text.removeprefix("isk_abcdefghjkmn_") for text in texts}) == 1000
    for text in texts:
        assert id_of(text) == "abcdefghjkmn"
    good = new_secret(new_id()).text
    for spelt in (
        "",
        "isk_",
        good[:-1],
        good + "x",
        good.upper(),
        f" {good}",
        good + "\n",
        "a.b.c",
    ):
        assert id_of(spelt) is None
    secret = new_secret(new_id())
    assert Secret(secret.text).hash == secret.hash
    assert Secret(secret.text + "x").hash != secret.hash
    assert secret.text not in repr(secret)
    assert len(secret.hash) == 32


# Tokens of an issuer: a signature is verified once.

_URL = "https://issuer.example"


class Counted:
    """A public key that counts what it verifies."""

    def __init__(self, inner: Ed25519PublicKey) -> None:
        self.inner = inner
        self.verified = 0

    def verify(self, signature: bytes, data: bytes) -> None:
        self.verified += 1
        self.inner.verify(signature, data)


Ed25519PublicKey.register(Counted)


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
