"""A secret may be in a file: it is read unchanged, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import (
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)

from inference_store.platform.settings import (
    GROUPS,
    ApiSettings,
    PostgresSettings,
    UnknownSetting,
    refuse_unknown,
    secrets_of,
)

NAMES = sorted({(group, name) for group in GROUPS for name in secrets_of(group)}, key=str)
PASSWORD = "INFERENCE_STORE_POSTGRES_PASSWORD"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no `.env` but the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_every_secret_may_be_a_file(
    group: type[ApiSettings], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("postgresql://s3cret \n")
    setting = f"INFERENCE_STORE_{name.upper()}_FILE"
    monkeypatch.setenv(setting, str(path))
    refuse_unknown({setting: str(path)})
    # some secrets want company; what counts here is that this one was read
    read: dict[str, Any] = {}
    for source in group.settings_customise_sources(group, *_make_sources(group)):
        read |= source()
    assert read[name] == "postgresql://s3cret "


def _make_sources(group: type[ApiSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
    nothing = InitSettingsSource(group, {})
    return nothing, EnvSettingsSource(group), DotEnvSettingsSource(group), nothing


def test_a_file_named_in_env_counts_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / ".env").write_text(f"{PASSWORD}=\n{PASSWORD}_FILE={tmp_path}/secret\n")
    assert PostgresSettings().postgres_password.get_secret_value() == "s3cret"


def test_a_secret_given_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("s3cret")
    monkeypatch.setenv(PASSWORD, "another")
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(tmp_path / "secret"))
    with pytest.raises(
        ValidationError, match=f"{PASSWORD} and {PASSWORD}_FILE are both given"
    ) as refusal:
        PostgresSettings()
    assert "another" not in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"\n", "is empty"),
        (b"x" * 70_000, "is over"),
        (b"\xff", "cannot"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    content: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(tmp_path / "secret"))
    with pytest.raises(ValidationError, match=f"{PASSWORD}_FILE: .*{sentence}"):
        PostgresSettings()


def test_only_secrets_can_be_read_from_a_file() -> None:
    with pytest.raises(UnknownSetting, match="INFERENCE_STORE_API_PORT_FILE"):
        refuse_unknown({"INFERENCE_STORE_API_PORT_FILE": "x"})
