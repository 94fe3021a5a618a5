"""A secret may be in a file: it is read unchanged, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)

from inference_store.platform.settings import (
    GROUPS,
    PostgresSettings,
    UnknownSetting,
    refuse_unknown,
    secrets_of,
)

PASSWORD = "INFERENCE_STORE_POSTGRES_PASSWORD"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no `.env` but the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s3cret")
    return path


def test_every_secret_may_be_a_file(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {(group, name) for group in GROUPS for name in secrets_of(group)}
    assert len(names) > 10
    secret.write_text("postgresql://s3cret \n")
    for group, name in names:
        setting = f"INFERENCE_STORE_{name.upper()}_FILE"
        with monkeypatch.context() as changed:
            changed.setenv(setting, str(secret))
            refuse_unknown({setting: str(secret)})
            # some secrets want company; what counts here is that this one was read
            read: dict[str, Any] = {}
            for source in group.settings_customise_sources(group, *_make_sources(group)):
                read |= source()
        assert read[name] == "postgresql://s3cret ", (group, name)


def _make_sources(group: type[BaseSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
    nothing = InitSettingsSource(group, {})
    return nothing, EnvSettingsSource(group), DotEnvSettingsSource(group), nothing


def test_a_file_named_in_env_counts_too(secret: Path) -> None:
    secret.with_name(".env").write_text(f"{PASSWORD}=\n{PASSWORD}_FILE={secret}\n")
    assert PostgresSettings().postgres_password.get_secret_value() == "s3cret"


def test_a_secret_given_twice_is_refused(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "another")
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(secret))
    twice = f"{PASSWORD} and {PASSWORD}_FILE are both given"
    with pytest.raises(ValidationError, match=twice) as refusal:
        PostgresSettings()
    assert "another" not in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_a_file_that_is_no_secret_is_refused(
    secret: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(secret))
    for content, sentence in (
        (b"\n", "is empty"),
        (b"x" * 70_000, "is over"),
        (b"\xff", "cannot"),
        (None, "cannot be read"),
    ):
        secret.unlink()
        if content is not None:
            secret.write_bytes(content)
        refused = pytest.raises(ValidationError, match=f"{PASSWORD}_FILE: .*{sentence}")
        with subtests.test(sentence), refused:
            PostgresSettings()
    with pytest.raises(UnknownSetting, match="INFERENCE_STORE_API_PORT_FILE"):
        refuse_unknown({"INFERENCE_STORE_API_PORT_FILE": "x"})
