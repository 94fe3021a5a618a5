"""Who may speak to whom: the rendered policies, evaluated, against a matrix written by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from .matrix import MATRIX, SERVERS
from .rendering import Object, Values, of_kind, pods, template

pytestmark = pytest.mark.usefixtures("helm_is_here")

# From component to component and port. What is not here must not get through.
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
    # A program of the same namespace: a producer, someone who asks, Prometheus.
    ("stranger", "api", 8080),
    ("stranger", "api", 9102),
    ("stranger", "ingester", 9101),
    ("stranger", "retention", 9103),
    ("stranger", "kafka", 9092),
    ("stranger", "s3", 9000),
    # From another namespace only the api is reached.
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
# What a proxy adds to both.
PROXY_ALLOWED = ALLOWED | {
    ("proxy", "kafka", 9092),
    ("proxy", "s3", 9000),
    ("test", "proxy", 8090),
    ("stranger", "proxy", 8090),
    ("stranger", "proxy", 8091),
    ("stranger", "proxy", 9104),
    ("foreigner", "proxy", 8090),
    ("foreigner", "proxy", 8091),
    # Its model servers are anywhere: what is let out is their ports, and they may have the api's.
    ("proxy", "api", 8080),
}
PROXY_PORTS = PORTS | {"proxy": {"http": 8090, "grpc": 8091, "admin": 9104}}
Labels = dict[str, str]


class Network:
    """What the policies of a rendered release let through."""

    def __init__(self, values: Values) -> None:
        objects = template(values)
        self.policies = list(of_kind(objects, "NetworkPolicy").values())
        self.labels: dict[str, Labels] = {
            pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["labels"]
            for pod in pods(objects).values()
        }

    def allows(self, source: str, target: str, port: int) -> bool:
        """Whether the source may send and the target may receive."""
        names = {number: name for name, number in PROXY_PORTS[target].items()}
        wanted = {port, names.get(port)}
        sends = source not in self.labels or any(
            _matches(rule, "to", self._peer(target), wanted)
            for rule in self._rules(source, "egress")
        )
        receives = any(
            _matches(rule, "from", self._peer(source), wanted)
            for rule in self._rules(target, "ingress")
        )
        return sends and receives

    def _peer(self, component: str) -> Labels | None:
        """Labels in this namespace; None: it is in another."""
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
    if "ports" in rule and not any(one.get("port") in ports for one in rule["ports"]):
        return False
    peers = rule.get(side)
    return peers is None or any(_selects(peer, labels) for peer in peers)


def _selects(peer: Object, labels: Labels | None) -> bool:
    if labels is None or "podSelector" not in peer:
        return False
    assert set(peer) == {"podSelector"}
    wanted: Labels = peer["podSelector"].get("matchLabels", {})
    return wanted.items() <= labels.items()


@pytest.mark.parametrize(
    ("name", "ports", "allowed"),
    [
        ("trying out", PORTS, ALLOWED),
        ("trying out with a proxy", PROXY_PORTS, PROXY_ALLOWED),
    ],
)
def test_in_one_release_nothing_gets_through_but_what_is_written(
    name: str, ports: dict[str, dict[str, int]], allowed: set[tuple[str, str, int]]
) -> None:
    network = Network(MATRIX[name])
    sources = [*ports, "stranger", "foreigner"]
    for source in sources:
        for target, named in ports.items():
            for port in named.values():
                wanted = (source, target, port) in allowed
                found = network.allows(source, target, port)
                assert found == wanted, f"{source} → {target}:{port}: {found}"


@pytest.mark.parametrize("name", MATRIX)
def test_every_pod_has_a_policy(name: str) -> None:
    values = MATRIX[name]
    network = Network(values)
    if values.get("networkPolicy", {}).get("enabled") is False:
        assert not network.policies
        return
    for component in network.labels:
        assert len(list(network._rules(component, "egress"))) >= 1


def egress(values: Values, component: str) -> list[tuple[frozenset[Any], Any]]:
    """Ports and peers of a component's egress."""
    (policy,) = (
        one
        for one in of_kind(template(values), "NetworkPolicy").values()
        if one["metadata"]["name"].endswith(f"-{component}")
    )
    return [
        (frozenset(port["port"] for port in rule["ports"]), rule.get("to"))
        for rule in policy["spec"]["egress"]
    ]


def test_servers_elsewhere_are_reached_at_their_ports() -> None:
    dns = (frozenset({53}), None)
    postgres = (frozenset({5432}), None)
    kafka = (frozenset({9093, 9094}), None)
    s3 = (frozenset({9443}), None)
    assert egress(SERVERS, "ingester") == [dns, postgres, kafka, s3]
    assert egress(SERVERS, "api") == [dns, postgres, s3]
    assert egress(SERVERS, "migrate") == [dns, postgres]


@pytest.mark.parametrize("how", ["daily", "kafka"])
def test_a_service_that_reconciles_asks_kafka(how: str) -> None:
    kafka = (frozenset({9093, 9094}), None)
    assert kafka not in egress(SERVERS, "retention")
    assert kafka in egress(SERVERS | {"retention": {"reconcile": {how: True}}}, "retention")
    tokens = MATRIX["tokens instead of passwords"]
    values = tokens | {"retention": {"reconcile": {how: True}}}
    before = {port for each, _ in egress(tokens, "retention") for port in each}
    assert not {8443, 9093} & before
    assert {8443, 9093} <= {port for each, _ in egress(values, "retention") for port in each}


def test_a_dsn_that_names_other_ports_gets_through() -> None:
    values = SERVERS | {"networkPolicy": {"postgresPorts": [6432, 5433]}}
    for component in ("api", "ingester", "retention", "migrate", "doctor"):
        assert (frozenset({6432, 5433}), None) in egress(values, component)


def test_more_egress_is_the_migrations_too() -> None:
    values = SERVERS | {"networkPolicy": {"extraEgress": [{"ports": [{"port": 3128}]}]}}
    assert (frozenset({3128}), None) in egress(values, "migrate")


def test_issuers_of_tokens_are_reached() -> None:
    values = MATRIX["tokens instead of passwords"]
    ports = {port for each, _ in egress(values, "ingester") for port in each}
    assert ports == {53, 5432, 9093, 443, 8443}


def test_rights_that_come_with_the_node_or_the_pod_are_fetched() -> None:
    """Neither keys nor a role: IMDS, ECS' and Pod Identity's agents, and STS."""
    proxy = {"enabled": True, "upstreams": [{"name": "a", "url": "http://a:8080"}]}
    values = SERVERS | {"s3": {"region": "eu-central-1"}, "proxy": proxy}
    with_keys = SERVERS | {"proxy": proxy}
    with_a_role = MATRIX["tokens instead of passwords"] | {"proxy": proxy}
    cidrs = ("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32")
    agents = (frozenset({80}), [{"ipBlock": {"cidr": cidr}} for cidr in cidrs])
    for component in ("api", "ingester", "retention", "proxy", "test", "doctor"):
        assert agents in egress(values, component)
        assert (frozenset({443}), None) in egress(values, component)
        assert agents not in egress(with_keys, component)
        assert agents not in egress(with_a_role, component)
    assert agents not in egress(values, "migrate")


def test_peers_narrow_what_is_reached_and_who_asks() -> None:
    values = MATRIX["everything that may be left out"]
    database = [{"ipBlock": {"cidr": "10.1.0.0/24"}}]
    assert (frozenset({5432}), database) in egress(values, "retention")
    assert (frozenset({3128}), None) in egress(values, "retention")
    assert (frozenset({4318}), None) in egress(values, "retention")
    (api,) = (
        one
        for one in of_kind(template(values), "NetworkPolicy").values()
        if one["metadata"]["name"].endswith("-api")
    )
    asked, read = api["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"team": "vision"}}} in asked["from"]
    assert {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}} in read["from"]


def test_a_proxy_reaches_its_model_servers_kafka_and_s3_and_no_database() -> None:
    assert egress(MATRIX["trying out with a proxy"], "proxy")[-1] == (frozenset({8080, 8081}), None)
    own = MATRIX["a gateway with rights of its own"]
    vision = [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}]
    dns, kafka, s3, api, models = egress(own, "proxy")
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
    assert egress(values, "proxy")[-1] == (frozenset({443, 8000, 9001, 45000}), None)


def test_who_calls_models_can_be_narrowed_and_helm_test_still_may() -> None:
    values = MATRIX["a gateway with rights of its own"]
    (policy,) = (
        one
        for one in of_kind(template(values), "NetworkPolicy").values()
        if one["metadata"]["name"].endswith("-proxy")
    )
    called, read = policy["spec"]["ingress"]
    assert called["ports"] == [{"port": "http"}, {"port": "grpc"}]
    assert called["from"][0] == {"namespaceSelector": {"matchLabels": {"team": "apps"}}}
    assert called["from"][1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    assert read["ports"] == [{"port": "admin"}]
