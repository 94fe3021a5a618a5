"""A release of the chart, and a pod beside it that publishes and sends requests."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.servers.waiting import wait_until

from .cluster import CHART, Cluster, list_values

NAMESPACE = "inference-store-e2e"
NAME = "store"
FULL = "store-inference-store"
_CLIENT = Path(__file__).with_name("client.py")
COMPONENTS = ("ingester", "api", "retention")


class Release:
    def __init__(self, cluster: Cluster, namespace: str = NAMESPACE) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.cluster.run("kubectl", "--namespace", self.namespace, *arguments, text=text)

    def helm(self, command: str, *arguments: str) -> str:
        return self.cluster.run("helm", command, NAME, "--namespace", self.namespace, *arguments)

    def make_namespace(self) -> None:
        """Make a namespace that only admits pods of the standard "restricted"."""
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": restricted},
        }
        self.cluster.run("kubectl", "apply", "-f", "-", text=json.dumps(namespace))

    def install(self) -> float:
        """Install what is upgraded later until everything is ready; return the seconds."""
        chosen = list_values(self.cluster, self.cluster.image_before)
        return self._run_and_wait("install", str(CHART), "--wait-for-jobs", *chosen)

    def install_this(self, *options: str) -> None:
        chosen = list_values(self.cluster)
        self._run_and_wait("install", str(CHART), "--wait-for-jobs", *chosen, *options)

    def upgrade(self, **changes: str) -> float:
        """Upgrade to this version with changed values; return the seconds."""
        chosen = list_values(self.cluster, **changes)
        return self._run_and_wait("upgrade", str(CHART), "--wait-for-jobs", *chosen)

    def rollback(self, revision: str) -> float:
        return self._run_and_wait("rollback", revision)

    def _run_and_wait(self, command: str, *arguments: str) -> float:
        began = time.monotonic()
        self.helm(command, *arguments, "--wait", "--timeout", "8m")
        return time.monotonic() - began

    def start_client(self) -> None:
        """Start a pod that reaches the Services like any program of the cluster."""
        self.kubectl("apply", "-f", "-", text=json.dumps(_client(self.cluster.image)))
        self.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=300s")

    def client(self, *arguments: str, script: str | None = None) -> str:
        """Return the answer of client.py, or of another script, to a command in that pod."""
        command = ("exec", "-i", "client", "--", "python", "-", *arguments)
        return self.kubectl(*command, text=script or _CLIENT.read_text()).strip()

    def api(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        text = [] if body is None else [json.dumps(body)]
        answer = json.loads(self.client("api", method, path, *text))
        return int(answer["status"]), answer["body"]

    def count(self, model: str) -> int:
        """Return how many inferences a model has; -1 if the api does not say."""
        status, body = self.api("POST", f"/v1/models/{model}/inferences/count", {})
        if status == 404:
            return 0
        return int(body["count"]) if status == 200 else -1

    def read_count(self, model: str) -> int:
        """Wait until the api says how many inferences a model has, and return the number."""
        counts: list[int] = []

        def is_known() -> bool:
            counts.append(self.count(model))
            return counts[-1] >= 0

        wait_until(is_known, seconds=300, what=f"the number of inferences of {model}")
        return counts[-1]

    def wait_for_count(self, model: str, expected: int) -> None:
        wait_until(
            lambda: self.count(model) == expected,
            seconds=300,
            what=f"{expected} inferences of {model}",
        )

    def wait_for_some(self, model: str) -> None:
        wait_until(lambda: self.count(model) > 0, seconds=300, what=f"inferences of {model}")

    def load(self, model: str) -> AbstractContextManager[Callable[[], dict[str, Any]]]:
        """Publish and send requests; the yielded function ends it and returns the counts."""
        return self.run_meanwhile(_CLIENT.read_text(), "load", model)

    @contextmanager
    def run_meanwhile(self, script: str, *arguments: str) -> Iterator[Callable[[], dict[str, Any]]]:
        """Run a script in the client's pod; the yielded function ends it and returns its output."""
        namespace = ("--namespace", self.namespace)
        command = ("kubectl", *namespace, "exec", "-i", "client", "--", "python", "-")
        self.kubectl("exec", "client", "--", "rm", "-f", "/tmp/stop")
        process = subprocess.Popen(
            self.cluster.command(*command, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(script)
        process.stdin.close()
        process.stdin = None

        def stop_script() -> dict[str, Any]:
            self.kubectl("exec", "client", "--", "touch", "/tmp/stop")
            return dict(json.loads(process.communicate(timeout=400)[0]))

        try:
            yield stop_script
        finally:
            process.kill()
            process.wait()

    def list_server_uids(self) -> str:
        """Return the uids of the pods of the servers, which change if one is started again."""
        pods = (f"{FULL}-{name}-0" for name in ("postgres", "kafka", "s3"))
        return self.kubectl("get", "pod", *pods, "-o", "jsonpath={.items[*].metadata.uid}")

    def read_secret(self, name: str, key: str) -> str:
        return self.kubectl("get", "secret", name, "-o", f"jsonpath={{.data.{key}}}")

    def measure_memory(self) -> dict[str, int]:
        """Return the MiB in memory of the first process of each running pod."""
        bytes_of_pods = {}
        for pod in self.kubectl(
            "get", "pods", "-o", "name", "--field-selector=status.phase=Running"
        ).split():
            status = self.kubectl("exec", pod, "--", "cat", "/proc/1/status")
            line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            bytes_of_pods[pod.removeprefix("pod/")] = int(line.split()[1]) // 1024
        return bytes_of_pods

    def report(self) -> str:
        """Return the logs and objects that explain a failed run."""
        selected = ("--selector", f"app.kubernetes.io/instance={NAME}")
        parts = [
            ("get", "all,pvc", "--output", "wide"),
            ("get", "events", "--sort-by", ".lastTimestamp"),
            ("logs", *selected, "--all-containers", "--prefix", "--tail", "25"),
        ]
        return "\n".join(self.kubectl(*part) for part in parts)


def _client(image: str) -> dict[str, Any]:
    def refer_to_secret(name: str, of: str, key: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": of, "key": key}}}

    prefix = "INFERENCE_STORE_"
    closed = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {
        "name": "client",
        "image": image,
        "command": ["sleep", "86400"],
        "envFrom": [{"configMapRef": {"name": FULL}}],
        "env": [
            {"name": "API", "value": f"http://{FULL}-api:8080"},
            refer_to_secret(f"{prefix}API_TOKEN", f"{FULL}-api-token", "api-token"),
            refer_to_secret(f"{prefix}S3_ACCESS_KEY", f"{FULL}-dev", "access-key"),
            refer_to_secret(f"{prefix}S3_SECRET_KEY", f"{FULL}-dev", "secret-key"),
        ],
        "securityContext": closed,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": pod,
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
