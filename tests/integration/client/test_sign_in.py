"""Signing in at an issuer from the command line, before the real api."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import tokens as issuer_keys
from tests.device_issuer import AUDIENCE, CLIENT, DeviceIssuer
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import MODEL, make_frames
from tests.integration.stored_inferences import store

from .istore import Istore


@pytest.fixture(autouse=True)
def patient_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits for the issuer, however busy the machine is."""
    monkeypatch.setattr(issuer_keys, "TIMEOUT_SECONDS", 600.0)


@pytest.fixture
def issuer() -> Iterator[DeviceIssuer]:
    with DeviceIssuer() as server:
        yield server


@pytest.fixture
async def istore(
    make_app: MakeApp, engine: AsyncEngine, issuer: DeviceIssuer, tmp_path: Path
) -> AsyncIterator[Istore]:
    """The command line before a store whose callers sign in."""
    await store(engine, *make_frames()[:3])
    app = make_app(
        auth="on",
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        oidc_roles={"analysts": [{"role": "analyst"}]},
        oidc_device_client_id=CLIENT,
        oidc_scopes="openid offline_access",
    )
    async with serve_app(app) as http:
        yield Istore(str(http.base_url), tmp_path)


async def test_sign_in_ask_and_sign_out(istore: Istore, issuer: DeviceIssuer) -> None:
    before = await istore.run("count", MODEL)
    assert (before.returncode, "istore login" in before.stderr) == (1, True)
    issuer.refusals = ["authorization_pending"]
    signed_in = await istore.run("login")
    assert signed_in.returncode == 0, signed_in.stderr
    assert f"Open {issuer.url}/activate and enter WDJB-MJHT" in signed_in.stderr
    assert "as oidc:ada" in signed_in.stderr
    assert issuer.forms[0] == ("/device", {"client_id": CLIENT, "scope": "openid offline_access"})
    assert (await istore.run("count", MODEL)).stdout == "3\n"
    refresh_tokens = [*issuer.refresh_tokens]
    signed_out = await istore.run("logout")
    assert (signed_out.returncode, issuer.revoked) == (0, refresh_tokens)
    assert (await istore.run("count", MODEL)).returncode == 1
    assert (await istore.run("logout")).returncode == 1


async def test_who_does_not_sign_in_gets_nothing(istore: Istore, issuer: DeviceIssuer) -> None:
    """Refused or too late, or as whom the store does not accept: no token is kept."""
    refusals = {"access_denied": "refused in the browser", "expired_token": "has ended", "": "401"}
    for refusal, said in refusals.items():
        issuer.refusals = [refusal] if refusal else []
        issuer.subject = "ada" if refusal else "x" * 300
        refused = await istore.run("login")
        assert (refused.returncode, said in refused.stderr) == (1, True), refusal
        assert (await istore.run("count", MODEL)).returncode == 1, refusal
    assert (await istore.run("logout")).returncode == 1
