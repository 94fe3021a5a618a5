"""The servers as in production: TLS, logins, encryption keys, a standby."""

import base64
import re
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3
from minio import Minio

from .certificates import Authority, Pair
from .issuer import CLIENT, SECRET, Issuer
from .kafka import KafkaServer, find_kafka
from .minio import MinioServer, find_minio
from .missing import demand
from .ports import free_port
from .postgres import PostgresServer, find_postgres
from .waiting import wait_until

USER, PASSWORD = "alice", "correct-horse"
CERTIFIED_USER = "carol"
_MODULES = "org.apache.kafka.common.security"
_OAUTH = f"{_MODULES}.oauthbearer"


class SecuredKafka(KafkaServer):
    """Three listeners: PLAINTEXT, TLS (asks for the client's certificate), LOGIN (SASL over TLS).

    LOGIN takes PLAIN, SCRAM and OAUTHBEARER (tokens of `issuer`).
    """

    format_arguments = tuple(
        argument
        for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for argument in ("--add-scram", f"{name}=[name={USER},password={PASSWORD}]")
    )

    def __init__(self, authority: Authority, issuer: Issuer) -> None:
        super().__init__()
        self._authority, self._issuer = authority, issuer
        self.tls_port, self.login_port = free_port(), free_port()
        self.java_options = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/jwks",)

    def properties(self) -> dict[str, str]:
        plain = super().properties()
        pair = self._authority.issue("kafka")
        store = self.folder / "kafka.pem"
        store.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
        listeners = f"TLS://127.0.0.1:{self.tls_port},LOGIN://127.0.0.1:{self.login_port}"
        return plain | {
            "listeners": f"{plain['listeners']},{listeners}",
            "advertised.listeners": f"{plain['advertised.listeners']},{listeners}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.ca_file),
            "listener.name.tls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            **{f"listener.name.login.{name}": value for name, value in self._list_login_settings()},
        }

    def _list_login_settings(self) -> Iterator[tuple[str, str]]:
        scram = f"{_MODULES}.scram.ScramLoginModule required;"
        plain = f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        yield "plain.sasl.jaas.config", plain
        yield "scram-sha-256.sasl.jaas.config", scram
        yield "scram-sha-512.sasl.jaas.config", scram
        module = f"{_OAUTH}.OAuthBearerLoginModule required;"
        yield "oauthbearer.sasl.jaas.config", module
        handler = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
        yield "oauthbearer.sasl.server.callback.handler.class", handler
        yield "oauthbearer.sasl.oauthbearer.jwks.endpoint.url", f"{self._issuer.url}/jwks"
        yield "oauthbearer.sasl.oauthbearer.expected.issuer", self._issuer.url
        yield "oauthbearer.sasl.oauthbearer.expected.audience", CLIENT

    def login(self, mechanism: str) -> dict[str, str]:
        """Return a service's settings for a mechanism; `SSL` uses only our certificate."""
        ca = {"KAFKA_CA_FILE": str(self._authority.ca_file)}
        if mechanism == "SSL":
            pair = self._authority.issue("client", password="open sesame")
            return ca | {
                "KAFKA_BOOTSTRAP_SERVERS": f"localhost:{self.tls_port}",
                "KAFKA_SECURITY_PROTOCOL": "SSL",
                "KAFKA_CERTIFICATE_FILE": str(pair.certificate),
                "KAFKA_KEY_FILE": str(pair.key),
                "KAFKA_KEY_PASSWORD": "open sesame",
            }
        return ca | {
            "KAFKA_BOOTSTRAP_SERVERS": f"localhost:{self.login_port}",
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_SASL_MECHANISM": mechanism,
            **self._make_credentials(mechanism),
        }

    def _make_credentials(self, mechanism: str) -> dict[str, str]:
        if mechanism != "OAUTHBEARER":
            return {"KAFKA_SASL_USERNAME": USER, "KAFKA_SASL_PASSWORD": PASSWORD}
        return {
            "KAFKA_OAUTH_TOKEN_URL": f"{self._issuer.url}/token",
            "KAFKA_OAUTH_CLIENT_ID": CLIENT,
            "KAFKA_OAUTH_CLIENT_SECRET": SECRET,
            "KAFKA_OAUTH_SCOPE": "kafka",
        }


class SecuredPostgres(PostgresServer):
    """Postgres with TLS, which `alice` needs with a password, and `carol` with a certificate;
    `postgres` is trusted for set-up."""

    def __init__(self, authority: Authority) -> None:
        files = {"ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}
        super().__init__({"ssl": "on", "ssl_ca_file": "ca.crt", **files})
        self._pair, self._ca_file = authority.issue("postgres"), authority.ca_file
        # for set-up: if TLS fails while the server starts, asyncpg leaves a socket open
        self.dsn += "?sslmode=disable"

    def _initialise(self, data: Path) -> None:
        super()._initialise(data)
        shutil.copyfile(self._ca_file, data / "ca.crt")
        self._give_files(data / "ca.crt")
        self.present(self._pair)
        access = data / "pg_hba.conf"
        access.write_text(
            f"hostssl all {USER} 127.0.0.1/32 scram-sha-256\n"
            f"hostssl all {CERTIFIED_USER} 127.0.0.1/32 cert\n"
            "host all postgres 127.0.0.1/32 trust\n"
            "host replication postgres 127.0.0.1/32 trust\n"
        )

    def create_users_database(self, name: str) -> str:
        """Create a database that the user `alice` owns; return its name."""
        self.execute(
            f"DO $$ BEGIN CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}';"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        self.execute(f'CREATE DATABASE "{name}" OWNER {USER} TEMPLATE template0')
        return name

    def present(self, pair: Pair) -> None:
        """Use this certificate from the next start on."""
        for source, name in ((pair.certificate, "server.crt"), (pair.key, "server.key")):
            target = self.folder / "data" / name
            shutil.copyfile(source, target)
            target.chmod(0o600)
            self._give_files(target)

    def dsn_of_user(self, database: str, host: str = "localhost") -> str:
        """Return the address of a database for the user `alice`, without the password."""
        return f"postgresql://{USER}@{host}:{self.port}/{database}"


class SecuredMinio(MinioServer):
    """MinIO with https, an encryption key (`tests`), and roles by tokens of `issuer`."""

    def __init__(self, authority: Authority, issuer: Issuer) -> None:
        super().__init__()
        self._issuer, self._ca_file = issuer, authority.ca_file
        self.trusted = ssl.create_default_context(cafile=str(authority.ca_file))
        self.endpoint = f"https://localhost:{self.port}"
        certificates = self.folder / "certs"
        self.options = ("--certs-dir", str(certificates))
        certificates.mkdir()
        pair = authority.issue("minio")
        shutil.copyfile(pair.certificate, certificates / "public.crt")
        shutil.copyfile(pair.key, certificates / "private.key")

    def environment(self) -> dict[str, str]:
        openid = {
            "CONFIG_URL": f"{self._issuer.url}/.well-known/openid-configuration",
            "CLIENT_ID": CLIENT,
            "CLIENT_SECRET": SECRET,
            "ROLE_POLICY": "readwrite",
        }
        return {
            "MINIO_KMS_SECRET_KEY": f"tests:{base64.b64encode(bytes(range(32))).decode()}",
            **{f"MINIO_IDENTITY_OPENID_{name}": value for name, value in openid.items()},
        }

    @property
    def role(self) -> str:
        """The role of the issuer's tokens, which the server logs when it starts."""
        roles: list[str] = []

        def is_named() -> bool:
            log = (self.folder / "minio.log").read_text(errors="replace")
            roles[:] = re.findall(r"arn:minio:iam:::role/\S+(?=\s)", log)
            return bool(roles)

        wait_until(is_named, seconds=120, what="MinIO's log names its role")
        return roles[0]

    def client(self) -> Minio:
        """Return a client for set-up and checks; the caller need not close it."""
        return Minio(
            self.endpoint.removeprefix("https://"),
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=self.region,
            http_client=urllib3.PoolManager(ca_certs=str(self._ca_file)),
        )


class Standby(PostgresServer):
    """A hot standby of another Postgres: a base backup that follows it."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def _initialise(self, data: Path) -> None:
        self._give_files(self.folder)
        tool = str(self._binaries / "pg_basebackup")
        command = [tool, "-D", str(data), "-d", self._primary.dsn, "--write-recovery-conf"]
        process = self._run([*command, "--checkpoint=fast", "--no-sync"], user=self.user)
        if process.wait(180):
            raise RuntimeError(f"pg_basebackup failed\n{process.last_lines()}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the replay of the primary's changes while the block runs."""
        self.execute("SELECT pg_wal_replay_pause()")
        try:
            yield
        finally:
            self.execute("SELECT pg_wal_replay_resume()")


# They are shared by a session. Mark their tests `real_kafka` and `real_minio`.


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signs the certificates of the secured servers."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which signed none of them."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture(scope="session")
def secured_postgres(authority: Authority) -> Iterator[SecuredPostgres]:
    demand("postgres", find_postgres)
    with SecuredPostgres(authority) as server:
        yield server


@pytest.fixture(scope="session")
def secured_kafka(authority: Authority, issuer: Issuer) -> Iterator[SecuredKafka]:
    demand("kafka", find_kafka)
    with SecuredKafka(authority, issuer) as server:
        yield server


@pytest.fixture(scope="session")
def secured_minio(authority: Authority, issuer: Issuer) -> Iterator[SecuredMinio]:
    demand("minio", find_minio)
    with SecuredMinio(authority, issuer) as server:
        yield server
