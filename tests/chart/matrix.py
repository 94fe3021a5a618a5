"""Values with which the chart is tested, each a way to install it."""

from tests.chart.rendering import Values

SERVERS: Values = {
    "postgres": {"host": "db.example.com", "existingSecret": "store-postgres"},
    "kafka": {"bootstrapServers": "kafka-0.example.com:9093,kafka-1.example.com:9094"},
    "s3": {"endpoint": "https://s3.example.com:9443", "existingSecret": "store-s3"},
}

ROUTE: Values = {"enabled": True, "parentRefs": [{"name": "gateway"}]}
# The model servers behind a proxy.
UPSTREAMS: list[Values] = [
    {"name": "mlserver", "url": "http://mlserver:8080", "grpc": "mlserver:8081"},
    {"name": "triton", "grpc": "grpcs://triton.example.com:9001", "models": ["yolo*"]},
]

MATRIX: dict[str, Values] = {
    "trying out": {"dev": {"enabled": True}},
    "trying out with a proxy": {
        "dev": {"enabled": True},
        "proxy": {"enabled": True, "upstreams": UPSTREAMS[:1], "sidecar": {"enabled": True}},
    },
    "a gateway with rights of its own": {
        **SERVERS,
        "kafka": {
            "bootstrapServers": "kafka:9093",
            "securityProtocol": "SASL_SSL",
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": "us", "existingSecret": "kafka"},
            "ca": {"secret": "kafka-ca"},
        },
        "pods": {"extraEnv": [{"name": "INFERENCE_STORE_POSTGRES_POOL_SIZE", "value": "5"}]},
        "proxy": {
            "enabled": True,
            "upstreams": [*UPSTREAMS, {"name": "kserve", "cloud_events": "/cloudevents"}],
            "models": [
                {
                    "model": "yolo*",
                    "task_type": "object_detection",
                    "sampling": {"share": 0.25, "always_errors": True},
                    "redactions": [{"what": "metadata", "name": "user", "how": "hash"}],
                }
            ],
            "upstreamSecrets": ["triton.ca"],
            "tlsSecret": "proxy-tls",
            "registry": {"url": "http://api:8080", "existingSecret": "registry"},
            "redactionKey": {"existingSecret": "redaction"},
            "cloudEventsToken": {"existingSecret": "events"},
            "kafka": {
                "username": "proxy",
                "existingSecret": "proxy-kafka",
                "clientCertificateSecret": "proxy-certificate",
            },
            "spool": {"mode": "all", "bytes": 2147483648, "fsync": True, "existingClaim": "spool"},
            "autoscaling": {"enabled": True},
            "s3ExistingSecret": "put-only-s3",
            "serviceAccount": {"annotations": {"role": "may-put"}},
            "service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]},
            "ingress": {"enabled": True, "hosts": ["models.example.com"]},
            "httpRoute": ROUTE,
            "grpcRoute": ROUTE,
            "podDisruptionBudget": {"minAvailable": "50%"},
            "test": {"path": "/v2/models/yolo/infer", "request": {"inputs": []}, "model": "yolo"},
        },
        "networkPolicy": {
            "proxyFrom": [{"namespaceSelector": {"matchLabels": {"team": "apps"}}}],
            "upstreamsTo": [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}],
            "upstreamPorts": [8000, 8001],
        },
    },
    "only sidecars": {
        **SERVERS,
        "proxy": {
            "spool": {"mode": False},
            "sidecar": {
                "enabled": True,
                "containerName": "transformer-container",
                "upstream": "",
                "upstreamGrpc": "127.0.0.1:9000",
                "protocols": ["v2-grpc"],
                "port": 18090,
                "graceSeconds": 10,
            },
        },
        "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "s3": {"webIdentity": {"roleArn": "arn:aws:iam::1:role/store"}},
        "admin": {"tlsSecret": "admin-tls"},
    },
    "servers of one's own": SERVERS,
    "secrets given as values": {
        "postgres": {"host": "db", "password": "a 'quoted\" password"},
        "kafka": {
            "bootstrapServers": "kafka:9092",
            "securityProtocol": "SASL_PLAINTEXT",
            "sasl": {"mechanism": "PLAIN", "username": "us", "password": "pa:ss"},
        },
        "s3": {"accessKey": "key", "secretKey": "secret", "region": "eu-central-1"},
    },
    "certificates, SASL and encryption": {
        "postgres": {
            "host": "db",
            "port": 6432,
            "existingSecret": "pg",
            "tls": "verify-full",
            "ca": {"configMap": "company-ca", "key": "root.pem"},
        },
        "kafka": {
            "bootstrapServers": "kafka:9093",
            "securityProtocol": "SASL_SSL",
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": "us", "existingSecret": "kafka"},
            "ca": {"secret": "kafka-ca"},
            "clientCertificateSecret": "kafka-client",
        },
        "s3": {
            "endpoint": "https://minio:9000",
            "existingSecret": "s3",
            "ca": {"configMap": "company-ca"},
            "encryption": {"type": "SSE-KMS", "kmsKeyId": "key-1"},
            "publicEndpoint": "https://blobs.example.com",
            "presignedUrls": "off",
            "presignedUrlSeconds": 60,
            "allowedBuckets": ["archive", "partner"],
        },
        "admin": {"tlsSecret": "admin-tls"},
        "api": {"tlsSecret": "api-tls", "corsOrigins": ["https://a.example.com"]},
    },
    "tokens instead of passwords": {
        "postgres": {"host": "db", "existingSecret": "cnpg-app", "dsnKey": "uri"},
        "kafka": {
            "bootstrapServers": "kafka:9093",
            "securityProtocol": "SASL_SSL",
            "sasl": {"mechanism": "OAUTHBEARER", "existingSecret": "kafka"},
            "oauth": {"tokenUrl": "https://login.example.com:8443/token", "clientId": "store"},
        },
        "s3": {"webIdentity": {"roleArn": "arn:aws:iam::1:role/store"}, "presignedUrls": True},
        "auth": {
            "existingSecret": "admin",
            "oidc": {
                "issuer": "https://login.example.com",
                "audience": "store",
                "roles": {"analysts": ["read"]},
                "signIn": {
                    "clientId": "console",
                    "existingSecret": "oidc-client",
                    "deviceClientId": "istore",
                },
            },
        },
        "api": {"publicUrl": "https://store.example.com", "s3ExistingSecret": "api-s3"},
        "retention": {"serviceAccount": {"annotations": {"role": "may-delete"}}},
        "ingester": {"s3ExistingSecret": "read-only-s3"},
    },
    "everything that may be left out": {
        **SERVERS,
        "nameOverride": "inferences",
        "image": {"registry": "registry.example.com", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "mine"}],
        "extraManifests": [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "{{ .Release.Name }}-mine"},
                "stringData": {"a": "b"},
            }
        ],
        "settings": {"MAX_METADATA_BYTES": 2097152, "INGESTER_DEAD_LETTER_LIMIT": 5},
        "traces": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
        "migration": {"existingSecret": "owner"},
        "api": {
            "autoscaling": {"enabled": True},
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            "s3ExistingSecret": "api-s3",
            "rateLimitPerMinute": 1000000,
            "podLabels": {"one": "of mine"},
            "ingress": {"enabled": True, "hosts": [{"host": "b.com", "paths": [{"path": "/v1"}]}]},
            "httpRoute": ROUTE | {"hostnames": ["a.b"]},
        },
        "ingester": {"autoscaling": {"enabled": True}, "replicas": 0},
        "proxy": {"enabled": True, "existingConfigMap": "my-proxy"},
        "console": {"enabled": False},
        "networkPolicy": {
            "apiFrom": [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "postgresTo": [{"ipBlock": {"cidr": "10.1.0.0/24"}}],
            "upstreamPorts": [8080],
            "extraEgress": [{"ports": [{"port": 3128}]}],
        },
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
        },
        "pods": {
            "podLabels": {"tier": "backend"},
            "podAnnotations": {"note": "this"},
            "extraEnv": [{"name": "PROXY", "value": "none"}],
            "extraVolumes": [{"name": "company-ca", "configMap": {"name": "company-ca"}}],
            "extraVolumeMounts": [{"name": "company-ca", "mountPath": "/etc/company-ca"}],
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podSecurityContext": {"fsGroupChangePolicy": "OnRootMismatch"},
            "priorityClassName": "high",
            "spread": "DoNotSchedule",
        },
    },
    "the proxy alone": {
        "kafka": SERVERS["kafka"],
        "s3": SERVERS["s3"],
        **{name: {"enabled": False} for name in ("api", "ingester", "retention", "migration")},
        "proxy": {
            "enabled": True,
            "upstreams": UPSTREAMS,
            "registry": {"url": "http://other-api:8080", "existingSecret": "registry"},
        },
    },
    "without policies and keys": {
        **SERVERS,
        "networkPolicy": {"enabled": False},
        "auth": {"enabled": False},
        "api": {"serviceAccount": {"create": False, "name": "mine"}},
    },
}
