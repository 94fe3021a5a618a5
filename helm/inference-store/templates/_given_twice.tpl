{{- /* Which value of the chart stands for a setting, as YAML; of one that is not here the chart has none:
       its Services, probes and volumes go by what it sets. */ -}}
{{- define "inference-store.valuesOfSettings" -}}
ADMIN_TLS_CERTIFICATE_FILE: admin.tlsSecret
ADMIN_TLS_KEY_FILE: admin.tlsSecret
API_CORS_ORIGINS: api.corsOrigins
API_PORT: api.service.port
API_PUBLIC_URL: api.publicUrl
API_RATE_LIMIT_PER_MINUTE: api.rateLimitPerMinute
API_TLS_CERTIFICATE_FILE: api.tlsSecret
API_TLS_KEY_FILE: api.tlsSecret
AUDIT_KEEP_SECONDS: retention.keep.auditSeconds
AUTH: auth.enabled
CONSOLE: console.enabled
DEAD_LETTER_KEEP_SECONDS: retention.keep.deadLetterSeconds
KAFKA_BOOTSTRAP_SERVERS: kafka.bootstrapServers
KAFKA_CA_FILE: kafka.ca
KAFKA_CERTIFICATE_FILE: kafka.clientCertificateSecret
KAFKA_CLUSTER: kafka.cluster
KAFKA_GROUP: kafka.group
KAFKA_KEY_FILE: kafka.clientCertificateSecret
KAFKA_OAUTH_CLIENT_ID: kafka.oauth.clientId
KAFKA_OAUTH_SCOPE: kafka.oauth.scope
KAFKA_OAUTH_TOKEN_URL: kafka.oauth.tokenUrl
KAFKA_REPORTS_TOPIC: kafka.reportsTopic
KAFKA_SASL_MECHANISM: kafka.sasl.mechanism
KAFKA_SASL_USERNAME: kafka.sasl.username
KAFKA_SECURITY_PROTOCOL: kafka.securityProtocol
KAFKA_TOPIC: kafka.topic
KAFKA_TRUTH_TOPIC: kafka.truthTopic
LOG_FORMAT: logs.format
LOG_LEVEL: logs.level
OIDC_AUDIENCE: auth.oidc.audience
OIDC_CLIENT_ID: auth.oidc.signIn.clientId
OIDC_DEVICE_CLIENT_ID: auth.oidc.signIn.deviceClientId
OIDC_ISSUER: auth.oidc.issuer
OIDC_JWKS_URL: auth.oidc.jwksUrl
OIDC_ROLES: auth.oidc.roles
OIDC_ROLES_CLAIM: auth.oidc.rolesClaim
OIDC_SCOPES: auth.oidc.signIn.scopes
POLICY_GRACE_SECONDS: retention.policies.graceSeconds
POSTGRES_CA_FILE: postgres.ca
POSTGRES_CERTIFICATE_FILE: postgres.clientCertificateSecret
POSTGRES_KEY_FILE: postgres.clientCertificateSecret
POSTGRES_TLS: postgres.tls
PRESIGNED_URLS: s3.presignedUrls
PRESIGNED_URL_SECONDS: s3.presignedUrlSeconds
PROXY_CONFIG: proxy.upstreams
PROXY_GRACE_SECONDS: proxy.terminationGracePeriodSeconds
PROXY_GRPC_PORT: proxy.service.grpcPort
PROXY_PORT: proxy.service.port
PROXY_REGISTRY_URL: proxy.registry.url
PROXY_SPOOL: proxy.spool.mode
PROXY_SPOOL_BYTES: proxy.spool.bytes
PROXY_SPOOL_FSYNC: proxy.spool.fsync
PROXY_TLS_CERTIFICATE_FILE: proxy.tlsSecret
PROXY_TLS_KEY_FILE: proxy.tlsSecret
RECONCILE_GRACE_SECONDS: retention.reconcile.graceSeconds
RECONCILE_PREFIXES: retention.reconcile.prefixes
RECONCILE_SCHEDULE: retention.reconcile.daily
RETENTION_INTERVAL_SECONDS: retention.intervalSeconds
S3_ALLOWED_BUCKETS: s3.allowedBuckets
S3_BUCKET: s3.bucket
S3_CA_FILE: s3.ca
S3_ENCRYPTION: s3.encryption.type
S3_ENDPOINT: s3.endpoint
S3_KMS_KEY_ID: s3.encryption.kmsKeyId
S3_PUBLIC_ENDPOINT: s3.publicEndpoint
S3_REGION: s3.region
{{- end -}}

{{- /* Refuse what `settings` says though the chart sets it: it would be another setting than the
       Services, probes and policies go by. */ -}}
{{- define "inference-store.refuseGivenTwice" -}}
{{- $own := include "inference-store.ownSettings" . | fromJson -}}
{{- range $sidecar := list false true -}}
{{- $own = merge $own (include "inference-store.ownProxySettings" (dict "root" $ "sidecar" $sidecar) | fromJson) -}}
{{- end -}}
{{- $values := include "inference-store.valuesOfSettings" . | fromYaml -}}
{{- range $name, $_ := .Values.settings -}}
{{- if hasKey $own $name -}}
{{- with get $values $name -}}
{{- fail (printf "settings.%s: the chart sets it by a value of its own: use %s." $name .) -}}
{{- end -}}
{{- fail (printf "settings.%s: the chart sets it to %q itself, and its objects go by that: leave it out." $name (get $own $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
