"""The chart on a real cluster, from installation to end, in order; then the image by itself."""

import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_store.cli.main import CLIENT_COMMANDS, COMMANDS
from tests.servers.waiting import wait_until

from .cluster import CHART, ROOT, TEST_CLUSTER, build_image, list_values
from .release import COMPONENTS, FULL, NAME, NAMESPACE, Release

pytestmark = pytest.mark.timeout(2400)


def test_cluster_accepts_every_object(release: Release) -> None:
    """The validation is strict: an unknown or duplicate field is refused, not dropped."""
    everything = {
        "api__autoscaling__enabled": "true",
        "ingester__autoscaling__enabled": "true",
        "api__ingress__enabled": "true",
        "api__ingress__hosts[0]": "store.example.com",
        "metrics__dashboard__enabled": "true",
    }
    # A helm built from its module assumes that the cluster is old.
    version = ("--kube-version", "1.33.0")
    objects = release.helm(
        "template", str(CHART), *version, *list_values(release.cluster, **everything)
    )
    output = release.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=objects
    )
    assert output.count("server dry run") > 25


def test_upgrade_under_load_loses_nothing(release: Release, figures: list[str]) -> None:
    token = release.read_secret(f"{FULL}-api-token", "api-token")
    servers = release.list_server_uids()
    with release.load("upgraded") as stop_script:
        release.wait_for_some("upgraded")
        seconds = release.upgrade(logs__level="warning")
        result = stop_script()
    check_all_stored(release, "upgraded", result)
    assert release.read_secret(f"{FULL}-api-token", "api-token") == token
    figures.append(
        f"helm upgrade under load: {seconds:.0f} s, {result['published']} published, 0 lost;"
        f" {result['requests']} requests to the api, {len(result['failed'])} failed"
    )
    if release.list_server_uids() == servers:  # a chart that changes them starts them again
        assert not result["failed"]
    else:
        figures.append("NOT checked that no request failed: the upgrade started the servers again")


def test_rollback_under_load_loses_nothing(release: Release, figures: list[str]) -> None:
    with release.load("rolled-back") as stop_script:
        release.wait_for_some("rolled-back")
        seconds = release.rollback("1")
        result = stop_script()
    check_all_stored(release, "rolled-back", result)
    level = release.kubectl("get", "configmap", FULL, "-o", "jsonpath={.data}")
    assert '"INFERENCE_STORE_LOG_LEVEL":"info"' in level
    image = release.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert release.cluster.image_before in image
    figures.append(
        f"helm rollback under load: {seconds:.0f} s, {result['published']} published, 0 lost"
    )


def test_upgrades_again_for_the_next_tests(release: Release) -> None:
    # on this node a query is slow, and still has to complete
    release.upgrade(settings__QUERY_TIMEOUT_SECONDS="60")
    assert release.read_count("rolled-back") >= 500


def test_stores_finds_and_expires_events(release: Release) -> None:
    assert release.client("publish", "story", "8") == "8"
    release.wait_for_count("story", 8)
    query = {"prediction": {"label": "person", "score": {"lt": 0.02}}}
    status, body = release.api("POST", "/v1/models/story/inferences/query", query)
    assert status == 200
    assert [item["inference_id"] for item in body["items"]] == ["inference-1", "inference-0"]
    rules = {"rules": [{"keep_input": "PT1S", "keep_inference": "PT1S"}]}
    policy: dict[str, object] = {"level": "model", "id": "story", **rules}
    _, preview = release.api("POST", "/v1/models/story/retention-policy/preview", policy)
    policy = {**policy, "effective": "now", "token": preview["token"]}
    status, body = release.api("PUT", "/v1/models/story/retention-policy", policy)
    assert status in {200, 201}, body
    assert release.api("POST", "/v1/models/story/retention-policy/run")[0] == 202
    release.wait_for_count("story", 0)
    wait_until(
        lambda: release.client("objects", "story/") == "0", seconds=300, what="the objects gone"
    )


def test_notes_warn_and_explain_how_to_begin(release: Release) -> None:
    output = release.helm("status")
    assert "WARNING: dev.enabled is true" in output
    assert "auth.enabled is false" not in output
    assert f"get secret {FULL}-api-token" in output
    assert '{{index .data "api-token" | base64decode}}' in output


def test_helm_test_passes(release: Release) -> None:
    output = release.helm("test", "--logs", "--timeout", "8m")
    assert "ok      postgres" in output
    assert "ok      send: it is hidden again" in output
    assert "FAILED" not in output


def test_idle_services_are_small(release: Release, figures: list[str]) -> None:
    memory = release.measure_memory()
    of_components = {
        name: [m for pod, m in memory.items() if f"-{name}-" in pod] for name in COMPONENTS
    }
    figures.append(f"MiB resident: {', '.join(f'{pod} {m}' for pod, m in sorted(memory.items()))}")
    one_each = sum(max(sizes) for sizes in of_components.values())
    figures.append(f"one ingester, api and retention service together: {one_each} MiB")
    assert one_each < 450


def test_killed_pods_lose_nothing(release: Release, figures: list[str]) -> None:
    selected = "app.kubernetes.io/component in (ingester, retention)"
    with release.load("killed") as stop_script:
        release.wait_for_some("killed")
        for _ in range(2):
            release.kubectl("delete", "pod", "-l", selected, "--grace-period=0", "--force")
            for name in ("ingester", "retention"):
                release.kubectl("rollout", "status", f"deployment/{FULL}-{name}", "--timeout=300s")
        result = stop_script()
    check_all_stored(release, "killed", result)
    figures.append(f"every ingester killed twice: {result['published']} published, 0 lost")


def check_all_stored(release: Release, model: str, result: dict[str, object]) -> None:
    published = result["published"]
    assert isinstance(published, int)
    assert published >= 500
    release.wait_for_count(model, published)
    status, books = release.api("GET", "/v1/accounting")
    assert status == 200
    assert books["closes"]
    assert not sum(partition["dead"] + partition["lost"] for partition in books["partitions"])


def test_uninstall_leaves_the_documented_objects(release: Release) -> None:
    release.helm("uninstall", "--wait")
    mine = ("-l", "app.kubernetes.io/instance=store", "-o", "name")
    # Helm keeps the pod of its test for its logs.
    wait_until(
        lambda: set(release.kubectl("get", "pods", *mine).split()) == {f"pod/{FULL}-doctor"},
        seconds=300,
        what="every pod gone",
    )
    kinds = "deployments,statefulsets,services,configmaps,secrets,serviceaccounts,jobs,pvc"
    remaining = set(release.kubectl("get", f"{kinds},networkpolicies,pdb", *mine).split())
    volumes = {f"data-{FULL}-{name}-0" for name in ("postgres", "kafka", "s3")}
    secrets = {f"secret/{FULL}-{name}" for name in ("api-token", "certificate-key", "dev")}
    assert remaining == secrets | {f"persistentvolumeclaim/{name}" for name in volumes}


def test_finds_its_data_when_installed_again(release: Release, figures: list[str]) -> None:
    """The script does what docs/how-to/kubernetes.md says."""
    token = release.read_secret(f"{FULL}-api-token", "api-token")
    image = release.cluster.image
    names = ("env", f"RELEASE={NAME}", f"NAMESPACE={NAMESPACE}", f"IMAGE={image}")
    script = str(ROOT / "examples" / "first_query_on_a_cluster.sh")
    output = release.cluster.run(*names, script, *list_values(release.cluster), seconds=1000)
    assert '"inference_id"' in output
    figures += [f"first_query_on_a_cluster.sh: {line.strip()}" for line in output.splitlines()[:-1]]
    assert release.read_secret(f"{FULL}-api-token", "api-token") == token
    assert release.read_count("upgraded") >= 500


_ID = 10001
# Programs that install or compile.
_UNWANTED = ("pip", "pip3", "gcc", "cc", "g++", "make", "uv")


def buildah(*arguments: str) -> str:
    command = ["buildah", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    if os.environ.get(TEST_CLUSTER) != "own":
        pytest.skip("the image is built where the cluster is our own: `make chart-e2e`")
    name = buildah("from", build_image())
    yield name
    buildah("rm", name)


@pytest.fixture(scope="module")
def root(container: str) -> Iterator[Path]:
    yield Path(buildah("mount", container))
    buildah("umount", container)


@pytest.fixture(scope="module")
def config(container: str) -> dict[str, Any]:
    return dict(json.loads(buildah("inspect", container))["OCIv1"]["config"])


def run_in_image(container: str, *command: str) -> str:
    """Return the output of a program of the image, from a file: buildah may lose the output of one
    that ends at once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the image has a user of its own
        mounted = ("--isolation", "chroot", "--volume", f"{folder}:/mnt/output")
        write = ("sh", "-c", '"$@" >/mnt/output/text', "sh")
        buildah("run", *mounted, container, "--", *write, *command)
        return Path(folder, "text").read_text().strip()


def test_runs_as_nobody_and_has_labels(config: dict[str, Any]) -> None:
    assert config["User"] == f"{_ID}:{_ID}"
    assert config["Entrypoint"] == ["inference-store"]
    labels = {name.rpartition(".")[2] for name in config["Labels"] if "opencontainers" in name}
    assert labels >= {"title", "description", "licenses", "version", "revision"}


def test_every_command_except_the_demo_starts(container: str) -> None:
    output = run_in_image(container, "inference-store", "--help")
    assert all(command in output for command in COMMANDS)
    assert run_in_image(container, "id", "-u") == str(_ID)
    for command in {*COMMANDS, *CLIENT_COMMANDS} - {"demo"}:
        assert "usage:" in run_in_image(container, "inference-store", command, "--help")


def test_has_no_installers_or_compilers(container: str, root: Path) -> None:
    for folder in ("usr/bin", "usr/local/bin", "opt/inference-store/bin", "bin", "sbin"):
        names = {path.name for path in (root / folder).glob("*")}
        assert not names & set(_UNWANTED), folder
    for module in ("pip", "setuptools", "ensurepip"):
        code = f"import importlib.util as u; print(u.find_spec('{module}'))"
        assert run_in_image(container, "python", "-c", code) == "None"


def test_has_nothing_of_the_building_machine(root: Path) -> None:
    mounted = root / "etc" / "pip.conf"
    # buildah leaves the empty file on which the settings of pip were mounted
    assert not mounted.exists() or not mounted.read_bytes()
    # the .bashrc and .profile come with the base image
    assert not [path for path in (root / "root").iterdir() if path.is_dir()]
    assert not list((root / "tmp").iterdir())
    assert not (root / "build").exists()


def test_has_the_packages_of_the_lock(container: str, figures: list[str]) -> None:
    code = (
        "from importlib.metadata import distributions as d\nfor p in d(): print(p.name, p.version)"
    )
    packages = dict(
        line.split() for line in run_in_image(container, "python", "-c", code).splitlines()
    )
    packages = {re.sub("[-_.]+", "-", name).lower(): version for name, version in packages.items()}
    # of some packages it has a version for each Python
    lock = set(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    assert packages.pop("inference-store")
    assert packages.pop("inference-store-client")
    assert packages.items() <= lock
    figures.append(f"the image holds {len(packages)} Python packages")


def test_its_user_owns_no_files(root: Path) -> None:
    for path in (root / "opt").rglob("*"):
        status = path.lstat()
        assert status.st_uid != _ID, path
        if not path.is_symlink():
            assert not status.st_mode & stat.S_IWOTH, path


def test_is_small(container: str, root: Path, figures: list[str]) -> None:
    def megabytes(folder: Path) -> float:
        files = (path.lstat() for path in folder.rglob("*"))
        return sum(status.st_size for status in files if stat.S_ISREG(status.st_mode)) / 1e6

    ours, whole = megabytes(root / "opt"), megabytes(root)
    figures.append(f"the image: {whole:.0f} MB, of these {ours:.0f} MB on top of its base")
    assert ours < 350
    assert container
