"""Addresses, keys, and where they come from; what cannot be used is refused with the remedy."""

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import inference_store_client as package
from inference_store_client import ConnectionFailed, SettingsError
from inference_store_client.origin import Origin
from inference_store_client.requests import make_path
from inference_store_client.settings import find_settings
from tests.both_clients import Client
from tests.unit.test_wheel import build_wheel

_FILED = 'url = "https://filed.example"\nkey = "filed-key"\n'
_A, _B, _OF_FILE = "https://a.example", "https://b.example", "https://filed.example"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that only its owner may read."""
    return write_file(tmp_path / "config.toml")


def write_file(path: Path) -> Path:
    path.write_text(_FILED)
    path.chmod(0o600)
    return path


def test_an_argument_comes_before_the_environment_and_the_file(file: Path) -> None:
    both = {"URL": _B, "KEY": "key-b"}
    cases: list[tuple[str | None, str | None, dict[str, str], str, str | None]] = [
        (_A, "key-a", both, _A, "key-a"),
        (None, None, both, _B, "key-b"),
        (None, "key-a", both, _B, "key-a"),
        (None, None, {}, _OF_FILE, "filed-key"),
        (None, None, {"KEY": "key-b"}, _OF_FILE, "key-b"),
        (f"{_OF_FILE}/", None, {}, _OF_FILE, "filed-key"),
        # the key of a file is for the store of the file
        (_A, None, {}, _A, None),
        (None, None, {"URL": _B}, _B, None),
        ("http://filed.example", None, {}, "http://filed.example", None),
    ]
    for url, key, environment, origin, chosen in cases:
        variables = {f"INFERENCE_STORE_{name}": value for name, value in environment.items()}
        settings = find_settings(url, key, environment=variables, file=file)
        assert (settings.origin.url, settings.key) == (origin, chosen), (url, key, environment)
        assert chosen is None or chosen not in repr(settings)


def test_a_file_that_cannot_be_used_is_refused(file: Path, subtests: pytest.Subtests) -> None:
    for text, remedy in [
        ("url = ", "not TOML"),
        ('token = "x"', "does not know token"),
        ("url = 5", "are texts"),
        ('key = "x"', "no address"),
        ('url = "store.example"', "https://store.example"),
        ('url = "https://u:p@store.example"', "no user"),
        ('url = "https://store.example"\nkey = "a b"', "no header can hold"),
    ]:
        file.write_text(text)
        with subtests.test(text):
            with pytest.raises(SettingsError, match=remedy) as raised:
                find_settings(environment={}, file=file)
            assert "a b" not in str(raised.value)
    for mode in (0o640, 0o604, 0o660, 0o610):
        file.chmod(mode)
        with subtests.test(oct(mode)), pytest.raises(SettingsError, match=f"chmod 600 {file}"):
            find_settings(environment={}, file=file)


def test_a_store_reads_the_file_of_its_user(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INFERENCE_STORE_URL", raising=False)
    monkeypatch.delenv("INFERENCE_STORE_KEY", raising=False)
    with pytest.raises(SettingsError, match="INFERENCE_STORE_URL"):
        client.make_store(None)
    folder = tmp_path / ".config" / "inference-store"
    folder.mkdir(parents=True)
    write_file(folder / "config.toml")
    shown = repr(client.make_store(None))
    assert "filed.example" in shown
    assert "filed-key" not in shown


def test_an_origin_is_scheme_host_and_port() -> None:
    for url, is_home in [
        ("https://store.example/v1/x", True),
        ("https://STORE.example:443/", True),
        ("https://store.example:8443/", False),
        ("http://store.example/", False),
        ("https://store.example.evil.example/", False),
        ("https://store.example@evil.example/", False),
        ("https://store.example:port/", False),
        ("//store.example/", False),
    ]:
        assert Origin("https://store.example/below").has(url) is is_home, url


async def test_an_address_or_id_that_cannot_be_used(
    client: Client, subtests: pytest.Subtests
) -> None:
    console = r"/console is the page of the console: write https://store\.example/a$"
    for url, said in [
        ("https://a.example\n", "is no address"),
        ("https://a .example", "is no address"),
        ("https://a.example/\x00", "is no address"),
        ("https://\u2028", "is no address"),
        ("https://store.example/a/console", console),
        ("https://store.example/a/console/", console),
        ("https://store.example/a/console/#/models/console", console),
        ("https://store.example/v1/", r"/v1 is what .* begins with: write https://store\.example$"),
        ("https://store.example/docs/", r"/docs is the docs: write https://store\.example$"),
        ("http://store.example:80/reference", r"write http://store\.example:80$"),
    ]:
        with subtests.test(url), pytest.raises(SettingsError, match=said):
            client.make_store(url)
    async with client.open_store("https://xn--a.example") as store:
        with pytest.raises(SettingsError, match=r"'https://xn--a\.example/v1/me' is no address: "):
            await client.ask(store.me)
    for id in ("", ".", "..", "\udcff"):
        with subtests.test(ascii(id)), pytest.raises(SettingsError, match="is no id"):
            make_path("models", id, "inferences")


def test_an_environment_that_cannot_be_used(
    client: Client, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for name, value, said in [
        ("ALL_PROXY", "socks5://127.0.0.1:1", r"httpx\[socks\]"),
        ("HTTPS_PROXY", "gopher://127.0.0.1:1", "HTTPS_PROXY or ALL_PROXY names no proxy"),
        ("HTTP_PROXY", "http://a.example:x", "HTTPS_PROXY or ALL_PROXY names no proxy"),
        ("SSL_CERT_FILE", "/no/such/file", "certificates of SSL_CERT_FILE"),
        ("SSL_CERT_FILE", __file__, "certificates of SSL_CERT_FILE"),
    ]:
        with subtests.test(f"{name}={value}"), monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(SettingsError, match=said):
                client.make_store("https://store.example")


async def test_a_proxy_of_the_environment_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "direct.invalid")
    for host, is_named in {"store.example": True, "direct.invalid": False}.items():
        async with client.open_store(f"http://{host}") as store:
            with pytest.raises(ConnectionFailed) as error:
                await client.ask(store.me)
        assert ("the environment names a proxy" in str(error.value)) == is_named
        assert "secret" not in str(error.value)


async def test_tls_is_spoken_at_one_end_alone(client: Client) -> None:
    for scheme, other, answer in [
        ("https", "no TLS is spoken there; is it http://", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        # a server of TLS ends after what is no handshake
        ("http", "TLS is spoken there; is it https://", b""),
    ]:

        async def end(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer
        ) -> None:
            await reader.read(1 if answer else 65_536)
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(end, "127.0.0.1", 0, family=socket.AF_INET)
        port = server.sockets[0].getsockname()[1]
        async with server, client.open_store(f"{scheme}://127.0.0.1:{port}") as store:
            with pytest.raises(ConnectionFailed, match=other):
                await client.ask(store.me)


# The package: what its import brings, its public names, and its wheel.

_ROOT = Path(__file__).parents[3]
_SOURCE = _ROOT / "client" / "src"
_PARTS = ("asynchronous", "chariot", "command_line", "datasets")
_LATER = (
    *(f"inference_store_client.{name}" for name in _PARTS),
    *("imagesize", "nanoarrow", "pandas", "polars", "inference_store"),
)
# They make requests, and no expressions.
_INNER = {"Filter", "encode_filter", "join_filters", "make_node", "make_operation"}


def _read(name: str) -> str:
    return (_SOURCE / "inference_store_client" / f"{name}.py").read_text()


def test_an_import_brings_neither_extras_nor_the_other_half() -> None:
    script = f"import sys, inference_store_client; print(set({_LATER!r}) & sys.modules.keys())"
    command = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": str(_SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_public_name_exists_and_is_in_the_reference() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018
    page = (_ROOT / "docs" / "reference" / "python-client.md").read_text()
    names = re.findall(r"import \w+ as (\w+)$", _read("__init__"), re.MULTILINE)
    assert len(names) > 50
    assert all(hasattr(package, name) for name in names)
    names += re.findall(r"^(?:def )?([a-z]\w+)(?:\(|: Final)", _read("filters"), re.MULTILINE)
    assert {name for name in {*names} - _INNER if re.search(rf"`{name}\b", page) is None} == set()
    for name in ("Store", "Model", "Inferences", "Groups", "Inference", "Export", "Blob"):
        section = page.partition(f"<!-- client {name} -->")[2].partition(f"<!-- /client {name}")[0]
        kinds = [kind for kind in getattr(package, name).__mro__ if kind is not object]
        methods = [method for kind in kinds for method in vars(kind) if method[0] != "_"]
        assert methods
        assert [method for method in methods if f"| `{method}" not in section] == [], name


def test_the_wheel_holds_every_module_and_needs_httpx_alone(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    # a copy: a build writes beside its source
    source = shutil.copytree(_ROOT / "client", tmp_path / "source", ignore=ignored)
    wheel = build_wheel(source, tmp_path)
    assert wheel.stat().st_size < 200_000
    with zipfile.ZipFile(wheel) as file:
        [described] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(file.read(described).decode())
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    root = "inference_store_client"
    modules = {str(path.relative_to(_SOURCE)) for path in (_SOURCE / root).rglob("*.py")}
    assert names == modules | {f"{root}/py.typed", f"{root}_entry.py"}
    needed = metadata.get_all("Requires-Dist") or []
    assert [line for line in needed if "extra ==" not in line] == ["httpx<1,>=0.28"]
    product = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == product["version"]
    assert metadata["Requires-Python"] == ">=3.11"
