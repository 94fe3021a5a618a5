"""Where the address and the key come from, and a file that others may read is refused."""

from pathlib import Path

import pytest

from inference_store_client import AsyncStore, SettingsError, Store
from inference_store_client.origin import Origin
from inference_store_client.settings import find_settings

_FILED = 'url = "https://filed.example"\nkey = "filed-key"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that only its owner may read."""
    path = tmp_path / "config.toml"
    path.write_text(_FILED)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("url", "key", "environment", "origin", "chosen"),
    [
        (
            "https://a.example",
            "key-a",
            {"URL": "https://b.example", "KEY": "key-b"},
            "https://a.example",
            "key-a",
        ),
        (None, None, {"URL": "https://b.example", "KEY": "key-b"}, "https://b.example", "key-b"),
        (None, "key-a", {"URL": "https://b.example", "KEY": "key-b"}, "https://b.example", "key-a"),
        (None, None, {}, "https://filed.example", "filed-key"),
        (None, None, {"KEY": "key-b"}, "https://filed.example", "key-b"),
        ("https://filed.example/", None, {}, "https://filed.example", "filed-key"),
        # the key of a file is for the store of the file
        ("https://a.example", None, {}, "https://a.example", None),
        (None, None, {"URL": "https://b.example"}, "https://b.example", None),
        ("http://filed.example", None, {}, "http://filed.example", None),
    ],
)
def test_an_argument_comes_before_the_environment_and_the_file(
    file: Path,
    url: str | None,
    key: str | None,
    environment: dict[str, str],
    origin: str,
    chosen: str | None,
) -> None:
    variables = {f"INFERENCE_STORE_{name}": value for name, value in environment.items()}
    settings = find_settings(url, key, environment=variables, file=file)
    assert (settings.origin.url, settings.key) == (origin, chosen)
    assert chosen is None or chosen not in repr(settings)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_file_that_others_may_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {file}"):
        find_settings(environment={}, file=file)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("url = ", "not TOML"),
        ('token = "x"', "does not know token"),
        ("url = 5", "are texts"),
        ('key = "x"', "no address"),
        ('url = "store.example"', "https://store.example"),
        ('url = "https://u:p@store.example"', "no user"),
        ('url = "https://store.example"\nkey = "a b"', "no header can hold"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(file: Path, text: str, remedy: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match=remedy) as raised:
        find_settings(environment={}, file=file)
    assert "a b" not in str(raised.value)


@pytest.mark.parametrize("kind", [Store, AsyncStore])
def test_a_store_reads_the_file_of_its_user(
    kind: type[Store] | type[AsyncStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INFERENCE_STORE_URL", raising=False)
    monkeypatch.delenv("INFERENCE_STORE_KEY", raising=False)
    with pytest.raises(SettingsError, match="INFERENCE_STORE_URL"):
        kind()
    file = tmp_path / ".config" / "inference-store" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(_FILED)
    file.chmod(0o600)
    assert "filed.example" in repr(kind())
    assert "filed-key" not in repr(kind())


@pytest.mark.parametrize(
    ("url", "is_home"),
    [
        ("https://store.example/v1/x", True),
        ("https://STORE.example:443/", True),
        ("https://store.example:8443/", False),
        ("http://store.example/", False),
        ("https://store.example.evil.example/", False),
        ("https://store.example@evil.example/", False),
        ("https://store.example:port/", False),
        ("//store.example/", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, *, is_home: bool) -> None:
    assert Origin("https://store.example/below").has(url) is is_home
