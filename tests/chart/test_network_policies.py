"""The connections that the rendered policies allow, compared with a list written by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from .matrix import MATRIX, SERVERS
from .rendering import Object, Values, render_objects, select_kind, select_pods

pytestmark = pytest.mark.real_helm

# From component to component and port. All others must be blocked.
ALLOWED = {
    ("api", "postgres", 5432),
    ("api", "s3", 9000),
    ("ingester", "postgres", 5432),
    ("ingester", "kafka", 9092),
    ("ingester", "s3", 9000),
    ("retention", "postgres", 5432),
    ("retention", "s3", 9000),
    ("migrate", "postgres", 5432),
    ("doctor", "api", 8080),
    ("doctor", "postgres", 5432),
    ("doctor", "kafka", 9092),
    ("doctor", "s3", 9000),
    # A program of the same namespace: a producer, a client, Prometheus.
    ("stranger", "api", 8080),
    ("stranger", "api", 9102),
    ("stranger", "ingester", 9101),
    ("stranger", "retention", 9103),
    ("stranger", "kafka", 9092),
    ("stranger", "s3", 9000),
    # Another namespace only reaches the api.
    ("foreigner", "api", 8080),
}
PORTS = {
    "api": {"http": 8080, "admin": 9102},
    "ingester": {"admin": 9101},
    "retention": {"admin": 9103},
    "postgres": {"postgres": 5432},
    "kafka": {"kafka": 9092},
    "s3": {"s3": 9000},
    "migrate": {},
    "doctor": {},
}
# Additions of a proxy to both.
PROXY_ALLOWED = ALLOWED | {
    ("proxy", "kafka", 9092),
    ("proxy", "s3", 9000),
    ("doctor", "proxy", 8090),
    ("stranger", "proxy", 8090),
    ("stranger", "proxy", 8091),
    ("stranger", "proxy", 9104),
    ("foreigner", "proxy", 8090),
    ("foreigner", "proxy", 8091),
    # Its model servers may be anywhere: egress allows their ports, which may be those of the api.
    ("proxy", "api", 8080),
}
PROXY_PORTS = PORTS | {"proxy": {"http": 8090, "grpc": 8091, "admin": 9104}}
Labels = dict[str, str]


class Network:
    def __init__(self, values: Values) -> None:
        objects = render_objects(values)
        self.policies = list(select_kind(objects, "NetworkPolicy").values())
        self.labels: dict[str, Labels] = {
            pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["labels"]
            for pod in select_pods(objects).values()
        }

    def allows(self, source: str, target: str, port: int) -> bool:
        names = {number: name for name, number in PROXY_PORTS[target].items()}
        ports = {port, names.get(port)}
        sends = source not in self.labels or any(
            _matches(rule, "to", self._peer(target), ports)
            for rule in self.list_rules(source, "egress")
        )
        receives = any(
            _matches(rule, "from", self._peer(source), ports)
            for rule in self.list_rules(target, "ingress")
        )
        return sends and receives

    def _peer(self, component: str) -> Labels | None:
        """Return the labels of a peer in this namespace, None for one in another."""
        return None if component == "foreigner" else self.labels.get(component, {})

    def list_rules(self, component: str, direction: str) -> Iterator[Object]:
        own = self.labels[component]
        selecting = [
            policy
            for policy in self.policies
            if policy["spec"]["podSelector"]["matchLabels"].items() <= own.items()
        ]
        assert selecting, f"no policy selects {component}"
        for policy in selecting:
            assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
            yield from policy["spec"].get(direction) or ()


def _matches(rule: Object, side: str, labels: Labels | None, ports: set[Any]) -> bool:
    if "ports" in rule and not any(entry.get("port") in ports for entry in rule["ports"]):
        return False
    peers = rule.get(side)
    return peers is None or any(_selects(peer, labels) for peer in peers)


def _selects(peer: Object, labels: Labels | None) -> bool:
    if labels is None or "podSelector" not in peer:
        return False
    assert set(peer) == {"podSelector"}
    labels_of_peer: Labels = peer["podSelector"].get("matchLabels", {})
    return labels_of_peer.items() <= labels.items()


def test_only_listed_connections_are_allowed() -> None:
    for name, ports, allowed in (
        ("trying out", PORTS, ALLOWED),
        ("trying out with a proxy", PROXY_PORTS, PROXY_ALLOWED),
    ):
        network = Network(MATRIX[name])
        for source in (*ports, "stranger", "foreigner"):
            for target, port_names in ports.items():
                for port in port_names.values():
                    expected = (source, target, port) in allowed
                    is_allowed = network.allows(source, target, port)
                    assert is_allowed == expected, f"{source} → {target}:{port}: {is_allowed}"


def test_every_pod_has_a_policy() -> None:
    for name, values in MATRIX.items():
        network = Network(values)
        if values.get("networkPolicy", {}).get("enabled") is False:
            assert not network.policies, name
            continue
        for component in network.labels:
            assert len(list(network.list_rules(component, "egress"))) >= 1, (name, component)


def find_policy(values: Values, component: str) -> Object:
    (policy,) = (
        document["spec"]
        for name, document in select_kind(render_objects(values), "NetworkPolicy").items()
        if name.endswith(f"-{component}")
    )
    return dict(policy)


def list_egress(values: Values, component: str) -> list[tuple[frozenset[Any], Any]]:
    return [
        (frozenset(port["port"] for port in rule["ports"]), rule.get("to"))
        for rule in find_policy(values, component)["egress"]
    ]


def list_ports(values: Values, component: str) -> set[Any]:
    return {port for ports, _ in list_egress(values, component) for port in ports}


def to_ports(*ports: int) -> tuple[frozenset[int], None]:
    """Return what allows these ports of every peer."""
    return frozenset(ports), None


def test_reaches_external_servers_at_their_ports() -> None:
    dns, postgres, s3 = to_ports(53, 5353), to_ports(5432), to_ports(9443)
    kafka = to_ports(9093, 9094)
    assert list_egress(SERVERS, "ingester") == [dns, postgres, kafka, s3]
    assert list_egress(SERVERS, "api") == [dns, postgres, s3]
    assert list_egress(SERVERS, "migrate") == [dns, postgres]
    assert to_ports(4318) in list_egress(MATRIX["everything that may be left out"], "retention")


def test_reaches_token_issuers_and_kafka_to_reconcile() -> None:
    tokens = MATRIX["tokens instead of passwords"]
    assert to_ports(9093, 9094) not in list_egress(SERVERS, "retention")
    assert not {8443, 9093} & list_ports(tokens, "retention")
    for how in ("daily", "kafka"):
        reconciles = {"retention": {"reconcile": {how: True}}}
        assert to_ports(9093, 9094) in list_egress(SERVERS | reconciles, "retention")
        assert {8443, 9093} <= list_ports(tokens | reconciles, "retention")
    assert list_ports(tokens, "ingester") == {53, 5353, 5432, 9093, 443, 8443}


def test_reaches_the_sources_of_node_and_pod_credentials() -> None:
    """Without keys or a role: IMDS, the agents of ECS and Pod Identity, and STS."""
    proxy = {"enabled": True, "upstreams": [{"name": "a", "url": "http://a:8080"}]}
    values = SERVERS | {"s3": {"region": "eu-central-1"}, "proxy": proxy}
    with_keys = SERVERS | {"proxy": proxy}
    with_a_role = MATRIX["tokens instead of passwords"] | {"proxy": proxy}
    cidrs = ("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32")
    agents = (frozenset({80}), [{"ipBlock": {"cidr": cidr}} for cidr in cidrs])
    for component in ("api", "ingester", "retention", "proxy", "doctor"):
        assert agents in list_egress(values, component)
        assert to_ports(443) in list_egress(values, component)
        assert agents not in list_egress(with_keys, component)
        assert agents not in list_egress(with_a_role, component)
    assert agents not in list_egress(values, "migrate")


def test_a_proxy_reaches_its_model_servers_kafka_and_s3_and_no_database() -> None:
    assert list_egress(MATRIX["trying out with a proxy"], "proxy")[-1] == to_ports(8080, 8081)
    own = MATRIX["a gateway with rights of its own"]
    vision = [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}]
    dns, kafka, s3, api, models = list_egress(own, "proxy")
    assert (dns, kafka, s3) == (to_ports(53, 5353), to_ports(9093), to_ports(9443))
    assert api == to_ports(8080)  # another release's
    assert models == (frozenset({8000, 8001}), vision)
    # their ports come from their addresses
    upstreams = [
        {"name": "a", "url": "https://models.example.com"},
        {"name": "b", "url": "http://b:8000/prefix", "grpc": "grpcs://b:9001"},
        {"name": "c", "omi": "c:45000"},
    ]
    values = SERVERS | {"proxy": {"enabled": True, "upstreams": upstreams}}
    assert list_egress(values, "proxy")[-1] == to_ports(443, 8000, 9001, 45000)


def test_replays_reach_both_ports_of_the_proxy() -> None:
    proxy = MATRIX["trying out with a proxy"]["proxy"]
    replayed = MATRIX["trying out with a proxy"] | {
        "settings": {"REPLAY_PROXY": "http://store-inference-store-proxy:8090"},
        "proxy": proxy | {"service": {"grpcPort": 9000}},
    }
    network = Network(replayed)
    assert all(network.allows("retention", "proxy", port) for port in (8090, 8091))
    assert not network.allows("doctor", "proxy", 8091)
    settings = select_kind(render_objects(replayed), "ConfigMap")["store-inference-store"]["data"]
    # the Service's port, which the user has not named
    assert settings["INFERENCE_STORE_REPLAY_PROXY_GRPC_PORT"] == "9000"
    replayed["settings"] |= {"REPLAY_PROXY_GRPC_PORT": 443}
    settings = select_kind(render_objects(replayed), "ConfigMap")["store-inference-store"]["data"]
    assert settings["INFERENCE_STORE_REPLAY_PROXY_GRPC_PORT"] == "443"


def test_restricts_callers_of_models_but_not_helm_test() -> None:
    called, read = find_policy(MATRIX["a gateway with rights of its own"], "proxy")["ingress"]
    assert called["ports"] == [{"port": "http"}, {"port": "grpc"}]
    assert called["from"][0] == {"namespaceSelector": {"matchLabels": {"team": "apps"}}}
    tester = called["from"][1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
    assert tester == "doctor"
    assert read["ports"] == [{"port": "admin"}]
