"""The connections that the rendered policies allow, compared with a list written by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from .matrix import MATRIX, SERVERS
from .rendering import Object, Values, render_objects, select_kind, select_pods

pytestmark = pytest.mark.usefixtures("require_helm")

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
    ("test", "api", 8080),
    ("test", "kafka", 9092),
    ("test", "s3", 9000),
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
    "test": {},
    "doctor": {},
}
# Additions of a proxy to both.
PROXY_ALLOWED = ALLOWED | {
    ("proxy", "kafka", 9092),
    ("proxy", "s3", 9000),
    ("test", "proxy", 8090),
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
    """The connections that the policies of a rendered release allow."""

    def __init__(self, values: Values) -> None:
        objects = render_objects(values)
        self.policies = list(select_kind(objects, "NetworkPolicy").values())
        self.labels: dict[str, Labels] = {
            pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["labels"]
            for pod in select_pods(objects).values()
        }

    def allows(self, source: str, target: str, port: int) -> bool:
        """Return whether the source may send and the target may receive."""
        names = {number: name for name, number in PROXY_PORTS[target].items()}
        ports = {port, names.get(port)}
        sends = source not in self.labels or any(
            _matches(rule, "to", self._peer(target), ports)
            for rule in self._rules(source, "egress")
        )
        receives = any(
            _matches(rule, "from", self._peer(source), ports)
            for rule in self._rules(target, "ingress")
        )
        return sends and receives

    def _peer(self, component: str) -> Labels | None:
        """Return the labels of a peer in this namespace, None for one in another."""
        return None if component == "foreigner" else self.labels.get(component, {})

    def _rules(self, component: str, direction: str) -> Iterator[Object]:
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


@pytest.mark.parametrize(
    ("name", "ports", "allowed"),
    [
        ("trying out", PORTS, ALLOWED),
        ("trying out with a proxy", PROXY_PORTS, PROXY_ALLOWED),
    ],
)
def test_only_listed_connections_are_allowed(
    name: str, ports: dict[str, dict[str, int]], allowed: set[tuple[str, str, int]]
) -> None:
    network = Network(MATRIX[name])
    sources = [*ports, "stranger", "foreigner"]
    for source in sources:
        for target, port_names in ports.items():
            for port in port_names.values():
                expected = (source, target, port) in allowed
                is_allowed = network.allows(source, target, port)
                assert is_allowed == expected, f"{source} → {target}:{port}: {is_allowed}"


@pytest.mark.parametrize("name", MATRIX)
def test_every_pod_has_a_policy(name: str) -> None:
    values = MATRIX[name]
    network = Network(values)
    if values.get("networkPolicy", {}).get("enabled") is False:
        assert not network.policies
        return
    for component in network.labels:
        assert len(list(network._rules(component, "egress"))) >= 1


def list_egress(values: Values, component: str) -> list[tuple[frozenset[Any], Any]]:
    """Return the ports and peers of the egress of a component."""
    (policy,) = (
        document
        for document in select_kind(render_objects(values), "NetworkPolicy").values()
        if document["metadata"]["name"].endswith(f"-{component}")
    )
    return [
        (frozenset(port["port"] for port in rule["ports"]), rule.get("to"))
        for rule in policy["spec"]["egress"]
    ]


def test_reaches_external_servers_at_their_ports() -> None:
    dns = (frozenset({53}), None)
    postgres = (frozenset({5432}), None)
    kafka = (frozenset({9093, 9094}), None)
    s3 = (frozenset({9443}), None)
    assert list_egress(SERVERS, "ingester") == [dns, postgres, kafka, s3]
    assert list_egress(SERVERS, "api") == [dns, postgres, s3]
    assert list_egress(SERVERS, "migrate") == [dns, postgres]


@pytest.mark.parametrize("how", ["daily", "kafka"])
def test_reconciling_service_reaches_kafka(how: str) -> None:
    kafka = (frozenset({9093, 9094}), None)
    assert kafka not in list_egress(SERVERS, "retention")
    assert kafka in list_egress(SERVERS | {"retention": {"reconcile": {how: True}}}, "retention")
    tokens = MATRIX["tokens instead of passwords"]
    values = tokens | {"retention": {"reconcile": {how: True}}}
    before = {port for ports, _ in list_egress(tokens, "retention") for port in ports}
    assert not {8443, 9093} & before
    assert {8443, 9093} <= {port for ports, _ in list_egress(values, "retention") for port in ports}


def test_other_postgres_ports_are_allowed() -> None:
    values = SERVERS | {"networkPolicy": {"postgresPorts": [6432, 5433]}}
    for component in ("api", "ingester", "retention", "migrate", "doctor"):
        assert (frozenset({6432, 5433}), None) in list_egress(values, component)


def test_extra_egress_also_applies_to_the_migration() -> None:
    values = SERVERS | {"networkPolicy": {"extraEgress": [{"ports": [{"port": 3128}]}]}}
    assert (frozenset({3128}), None) in list_egress(values, "migrate")


def test_reaches_token_issuers() -> None:
    values = MATRIX["tokens instead of passwords"]
    ports = {port for rule_ports, _ in list_egress(values, "ingester") for port in rule_ports}
    assert ports == {53, 5432, 9093, 443, 8443}


def test_reaches_the_sources_of_node_and_pod_credentials() -> None:
    """Without keys or a role: IMDS, the agents of ECS and Pod Identity, and STS."""
    proxy = {"enabled": True, "upstreams": [{"name": "a", "url": "http://a:8080"}]}
    values = SERVERS | {"s3": {"region": "eu-central-1"}, "proxy": proxy}
    with_keys = SERVERS | {"proxy": proxy}
    with_a_role = MATRIX["tokens instead of passwords"] | {"proxy": proxy}
    cidrs = ("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32")
    agents = (frozenset({80}), [{"ipBlock": {"cidr": cidr}} for cidr in cidrs])
    for component in ("api", "ingester", "retention", "proxy", "test", "doctor"):
        assert agents in list_egress(values, component)
        assert (frozenset({443}), None) in list_egress(values, component)
        assert agents not in list_egress(with_keys, component)
        assert agents not in list_egress(with_a_role, component)
    assert agents not in list_egress(values, "migrate")


def test_peers_restrict_egress_and_ingress() -> None:
    values = MATRIX["everything that may be left out"]
    database = [{"ipBlock": {"cidr": "10.1.0.0/24"}}]
    assert (frozenset({5432}), database) in list_egress(values, "retention")
    assert (frozenset({3128}), None) in list_egress(values, "retention")
    assert (frozenset({4318}), None) in list_egress(values, "retention")
    (api,) = (
        policy
        for policy in select_kind(render_objects(values), "NetworkPolicy").values()
        if policy["metadata"]["name"].endswith("-api")
    )
    calls, read = api["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"team": "vision"}}} in calls["from"]
    assert {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}} in read["from"]


def test_a_proxy_reaches_its_model_servers_kafka_and_s3_and_no_database() -> None:
    assert list_egress(MATRIX["trying out with a proxy"], "proxy")[-1] == (
        frozenset({8080, 8081}),
        None,
    )
    own = MATRIX["a gateway with rights of its own"]
    vision = [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}]
    dns, kafka, s3, api, models = list_egress(own, "proxy")
    assert (dns, kafka, s3) == (
        (frozenset({53}), None),
        (frozenset({9093}), None),
        (frozenset({9443}), None),
    )
    assert api[0] == frozenset({"http"})
    assert models == (frozenset({8000, 8001}), vision)


def test_ports_of_model_servers_come_from_their_addresses() -> None:
    upstreams = [
        {"name": "a", "url": "https://models.example.com"},
        {"name": "b", "url": "http://b:8000/prefix", "grpc": "grpcs://b:9001"},
        {"name": "c", "omi": "c:45000"},
    ]
    values = SERVERS | {"proxy": {"enabled": True, "upstreams": upstreams}}
    assert list_egress(values, "proxy")[-1] == (frozenset({443, 8000, 9001, 45000}), None)


def test_restricts_callers_of_models_but_not_helm_test() -> None:
    values = MATRIX["a gateway with rights of its own"]
    (policy,) = (
        document
        for document in select_kind(render_objects(values), "NetworkPolicy").values()
        if document["metadata"]["name"].endswith("-proxy")
    )
    called, read = policy["spec"]["ingress"]
    assert called["ports"] == [{"port": "http"}, {"port": "grpc"}]
    assert called["from"][0] == {"namespaceSelector": {"matchLabels": {"team": "apps"}}}
    assert called["from"][1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    assert read["ports"] == [{"port": "admin"}]
