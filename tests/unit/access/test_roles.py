"""Roles of the settings become grants, or a sentence says why not."""

import pytest

from inference_store.access.rights import Right
from inference_store.access.roles import read_roles
from inference_store.platform.settings import RoleSettings, WrongSetting
from tests.settings import make_settings


def test_reads_roles_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = '{"ops": [{"role": "reader", "project_id": "p"}]}'
    monkeypatch.setenv("INFERENCE_STORE_OIDC_ROLES", roles)
    [grant] = read_roles(RoleSettings())["ops"]
    assert (grant.held, grant.project_id) == (frozenset({Right.READ}), "p")


def test_refuses_what_gives_no_rights(subtests: pytest.Subtests) -> None:
    for grants, sentence in (
        ([{"role": "king"}], "ops.0.role: Input should be 'reader', 'analyst' or 'owner'."),
        ([{}], "ops.0: it gives nothing: name a role or rights."),
        ("owner", "ops: Input should be a valid tuple."),
    ):
        with subtests.test(grants=grants):
            settings = make_settings(RoleSettings, oidc_roles={"ops": grants})
            with pytest.raises(WrongSetting) as refused:
                read_roles(settings)
            assert str(refused.value) == f"INFERENCE_STORE_OIDC_ROLES: {sentence}"
