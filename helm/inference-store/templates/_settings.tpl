{{- /* A value as the environment has it: a number without an exponent. */ -}}
{{- define "inference-store.text" -}}
{{- kindIs "string" . | ternary . (toJson .) -}}
{{- end -}}

{{- /* The settings that come of the chart's own values, or that it fixes, as JSON: none is a secret.
       What is not given is empty: the product has the defaults. */ -}}
{{- define "inference-store.ownSettings" -}}
{{- $v := .Values -}}
{{- $s := dict -}}
{{- $_ := set $s "LOG_LEVEL" $v.logs.level -}}
{{- $_ := set $s "LOG_FORMAT" $v.logs.format -}}
{{- if not $v.postgres.dsnKey -}}
{{- $user := urlquery $v.postgres.user -}}
{{- $_ := set $s "POSTGRES_DSN" (printf "postgresql://%s@%s:%s/%s" $user (include "inference-store.postgresHost" .) (include "inference-store.text" $v.postgres.port) $v.postgres.database) -}}
{{- end -}}
{{- $_ := set $s "POSTGRES_TLS" $v.postgres.tls -}}
{{- $_ := set $s "KAFKA_BOOTSTRAP_SERVERS" (include "inference-store.bootstrapServers" .) -}}
{{- $_ := set $s "KAFKA_TOPIC" $v.kafka.topic -}}
{{- $_ := set $s "KAFKA_REPORTS_TOPIC" $v.kafka.reportsTopic -}}
{{- $_ := set $s "KAFKA_TRUTH_TOPIC" $v.kafka.truthTopic -}}
{{- $_ := set $s "KAFKA_GROUP" $v.kafka.group -}}
{{- $_ := set $s "KAFKA_CLUSTER" $v.kafka.cluster -}}
{{- $_ := set $s "KAFKA_SECURITY_PROTOCOL" $v.kafka.securityProtocol -}}
{{- $_ := set $s "KAFKA_SASL_MECHANISM" $v.kafka.sasl.mechanism -}}
{{- $_ := set $s "KAFKA_SASL_USERNAME" $v.kafka.sasl.username -}}
{{- $_ := set $s "KAFKA_OAUTH_TOKEN_URL" $v.kafka.oauth.tokenUrl -}}
{{- $_ := set $s "KAFKA_OAUTH_CLIENT_ID" $v.kafka.oauth.clientId -}}
{{- $_ := set $s "KAFKA_OAUTH_SCOPE" $v.kafka.oauth.scope -}}
{{- $_ := set $s "S3_ENDPOINT" (include "inference-store.s3Endpoint" .) -}}
{{- $_ := set $s "S3_REGION" $v.s3.region -}}
{{- $_ := set $s "S3_BUCKET" $v.s3.bucket -}}
{{- $_ := set $s "S3_ALLOWED_BUCKETS" (join "," $v.s3.allowedBuckets) -}}
{{- $_ := set $s "S3_PUBLIC_ENDPOINT" $v.s3.publicEndpoint -}}
{{- /* YAML reads on and off as booleans. */ -}}
{{- $links := $v.s3.presignedUrls -}}
{{- $_ := set $s "PRESIGNED_URLS" (kindIs "bool" $links | ternary (eq (toString $links) "true" | ternary "on" "off") $links) -}}
{{- $_ := set $s "PRESIGNED_URL_SECONDS" (include "inference-store.text" $v.s3.presignedUrlSeconds) -}}
{{- $_ := set $s "S3_ENCRYPTION" $v.s3.encryption.type -}}
{{- $_ := set $s "S3_KMS_KEY_ID" $v.s3.encryption.kmsKeyId -}}
{{- $_ := set $s "AWS_ROLE_ARN" $v.s3.webIdentity.roleArn -}}
{{- $_ := set $s "AWS_ENDPOINT_URL_STS" $v.s3.webIdentity.stsEndpoint -}}
{{- $_ := set $s "AUTH" (ternary "on" "off" $v.auth.enabled) -}}
{{- $_ := set $s "OIDC_ISSUER" $v.auth.oidc.issuer -}}
{{- $_ := set $s "OIDC_AUDIENCE" $v.auth.oidc.audience -}}
{{- $_ := set $s "OIDC_JWKS_URL" $v.auth.oidc.jwksUrl -}}
{{- $_ := set $s "OIDC_ROLES_CLAIM" $v.auth.oidc.rolesClaim -}}
{{- $_ := set $s "OIDC_CLIENT_ID" $v.auth.oidc.signIn.clientId -}}
{{- $_ := set $s "OIDC_DEVICE_CLIENT_ID" $v.auth.oidc.signIn.deviceClientId -}}
{{- $_ := set $s "OIDC_SCOPES" $v.auth.oidc.signIn.scopes -}}
{{- $_ := set $s "API_PUBLIC_URL" $v.api.publicUrl -}}
{{- if $v.auth.oidc.roles -}}{{- $_ := set $s "OIDC_ROLES" (toJson $v.auth.oidc.roles) -}}{{- end -}}
{{- if $v.api.rateLimitPerMinute -}}
{{- $_ := set $s "API_RATE_LIMIT_PER_MINUTE" (include "inference-store.text" $v.api.rateLimitPerMinute) -}}
{{- end -}}
{{- $_ := set $s "CONSOLE" (ternary "on" "off" $v.console.enabled) -}}
{{- $_ := set $s "API_CORS_ORIGINS" (join "," $v.api.corsOrigins) -}}
{{- $_ := set $s "RETENTION_INTERVAL_SECONDS" (include "inference-store.text" $v.retention.intervalSeconds) -}}
{{- range $setting, $value := dict "AUDIT" "auditSeconds" "DEAD_LETTER" "deadLetterSeconds" -}}
{{- $_ := set $s (printf "%s_KEEP_SECONDS" $setting) (include "inference-store.text" (index $v.retention.keep $value)) -}}
{{- end -}}
{{- $_ := set $s "POLICY_GRACE_SECONDS" (include "inference-store.text" $v.retention.policies.graceSeconds) -}}
{{- $_ := set $s "RECONCILE_SCHEDULE" ($v.retention.reconcile.daily | ternary "daily" "") -}}
{{- $_ := set $s "RECONCILE_PREFIXES" $v.retention.reconcile.prefixes -}}
{{- $_ := set $s "RECONCILE_GRACE_SECONDS" (include "inference-store.text" $v.retention.reconcile.graceSeconds) -}}
{{- $_ := set $s "API_HOST" "0.0.0.0" -}}
{{- $_ := set $s "API_PORT" "8080" -}}
{{- $_ := set $s "ADMIN_HOST" "0.0.0.0" -}}
{{- range $component, $port := dict "INGESTER" "9101" "API" "9102" "RETENTION" "9103" -}}
{{- $_ := set $s (printf "%s_ADMIN_PORT" $component) $port -}}
{{- end -}}
{{- if or $v.postgres.ca.configMap $v.postgres.ca.secret -}}{{- $_ := set $s "POSTGRES_CA_FILE" "/etc/inference-store/postgres-ca/ca.crt" -}}{{- end -}}
{{- if or $v.kafka.ca.configMap $v.kafka.ca.secret -}}{{- $_ := set $s "KAFKA_CA_FILE" "/etc/inference-store/kafka-ca/ca.crt" -}}{{- end -}}
{{- if or $v.s3.ca.configMap $v.s3.ca.secret -}}{{- $_ := set $s "S3_CA_FILE" "/etc/inference-store/s3-ca/ca.crt" -}}{{- end -}}
{{- if $v.postgres.clientCertificateSecret -}}
{{- $_ := set $s "POSTGRES_CERTIFICATE_FILE" "/etc/inference-store/postgres-certificate/tls.crt" -}}
{{- $_ := set $s "POSTGRES_KEY_FILE" "/etc/inference-store/postgres-certificate/tls.key" -}}
{{- end -}}
{{- if $v.kafka.clientCertificateSecret -}}
{{- $_ := set $s "KAFKA_CERTIFICATE_FILE" "/etc/inference-store/kafka-certificate/tls.crt" -}}
{{- $_ := set $s "KAFKA_KEY_FILE" "/etc/inference-store/kafka-certificate/tls.key" -}}
{{- end -}}
{{- if $v.s3.webIdentity.roleArn -}}{{- $_ := set $s "AWS_WEB_IDENTITY_TOKEN_FILE" "/var/run/secrets/inference-store/token" -}}{{- end -}}
{{- if $v.api.tlsSecret -}}
{{- $_ := set $s "API_TLS_CERTIFICATE_FILE" "/etc/inference-store/api-tls/tls.crt" -}}
{{- $_ := set $s "API_TLS_KEY_FILE" "/etc/inference-store/api-tls/tls.key" -}}
{{- end -}}
{{- if $v.admin.tlsSecret -}}
{{- $_ := set $s "ADMIN_TLS_CERTIFICATE_FILE" "/etc/inference-store/admin-tls/tls.crt" -}}
{{- $_ := set $s "ADMIN_TLS_KEY_FILE" "/etc/inference-store/admin-tls/tls.key" -}}
{{- end -}}
{{- toJson $s -}}
{{- end -}}

{{- /* Every setting that is no secret, as JSON. check.yaml refuses one that is given twice. */ -}}
{{- define "inference-store.allSettings" -}}
{{- $s := include "inference-store.ownSettings" . | fromJson -}}
{{- /* Of the proxy of this release; of another, `settings` says it. */ -}}
{{- if include "inference-store.replays" . -}}
{{- $_ := set $s "REPLAY_PROXY_GRPC_PORT" (include "inference-store.text" .Values.proxy.service.grpcPort) -}}
{{- end -}}
{{- range $name, $value := .Values.settings -}}{{- $_ := set $s $name (include "inference-store.text" $value) -}}{{- end -}}
{{- toJson $s -}}
{{- end -}}

{{- /* Settings as a ConfigMap's data; takes {root, settings}. */ -}}
{{- define "inference-store.data" -}}
{{- range $name, $value := .settings }}
{{- if ne $value "" }}
{{ hasPrefix "AWS_" $name | ternary "" "INFERENCE_STORE_" }}{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .root.Values.traces }}
{{ $name }}: {{ include "inference-store.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "inference-store.settings" -}}
{{- include "inference-store.data" (dict "root" . "settings" (include "inference-store.allSettings" . | fromJson)) -}}
{{- end -}}

{{- /* Whether a component asks Kafka; takes {root, component}. */ -}}
{{- define "inference-store.asksKafka" -}}
{{- $reconcile := .root.Values.retention.reconcile -}}
{{- $reconciles := and (eq .component "retention") (or $reconcile.daily $reconcile.kafka) -}}
{{- if or $reconciles (has .component (list "ingester" "proxy" "doctor")) -}}yes{{- end -}}
{{- end -}}

{{- /* One variable from a Secret; takes {name, secret, key}, and optional. */ -}}
{{- define "inference-store.fromSecret" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}{{ if .optional }}, optional: true{{ end }}}}
{{- end -}}

{{- /* The environment of a container: settings, then what is secret; takes {root, component}, and
       the settings' ConfigMap where it is not everybody's. */ -}}
{{- define "inference-store.environment" -}}
envFrom:
  - configMapRef: {name: {{ default (include "inference-store.fullname" .root) .configMap }}}
{{- with include "inference-store.secretEnvironment" . | trim }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "inference-store.secretEnvironment" -}}
{{- $v := .root.Values -}}
{{- $migrates := and (eq .component "migrate") $v.migration.existingSecret -}}
{{- if eq .component "proxy" }}
{{- /* It never learns where Postgres is. */ -}}
{{- else if $migrates }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_POSTGRES_DSN" "secret" $v.migration.existingSecret "key" (default "dsn" $v.postgres.dsnKey)) | nindent 0 }}
{{- else if $v.postgres.dsnKey }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_POSTGRES_DSN" "secret" $v.postgres.existingSecret "key" $v.postgres.dsnKey) | nindent 0 }}
{{- else if include "inference-store.postgresSecret" .root }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_POSTGRES_PASSWORD" "secret" (include "inference-store.postgresSecret" .root) "key" (include "inference-store.postgresPasswordKey" .root)) | nindent 0 }}
{{- end }}
{{- if and (has .component (list "api" "doctor")) $v.postgres.readDsnKey }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_POSTGRES_READ_DSN" "secret" $v.postgres.existingSecret "key" $v.postgres.readDsnKey) | nindent 0 }}
{{- end }}
{{- $kafka := include "inference-store.kafkaSecret" . }}
{{- if and $kafka (include "inference-store.asksKafka" .) }}
{{- $name := ternary "OAUTH_CLIENT_SECRET" "SASL_PASSWORD" (eq $v.kafka.sasl.mechanism "OAUTHBEARER") }}
{{- $key := include "inference-store.kafkaSecretKey" . }}
{{- include "inference-store.fromSecret" (dict "name" (printf "INFERENCE_STORE_KAFKA_%s" $name) "secret" $kafka "key" $key) | nindent 0 }}
{{- end }}
{{- $s3 := include "inference-store.s3Secret" . }}
{{- if and $s3 (has .component (list "api" "ingester" "retention" "proxy" "doctor")) }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_S3_ACCESS_KEY" "secret" $s3 "key" $v.s3.accessKeyKey) | nindent 0 }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_S3_SECRET_KEY" "secret" $s3 "key" $v.s3.secretKeyKey) | nindent 0 }}
{{- end }}
{{- if and $v.auth.enabled (has .component (list "api" "doctor")) }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_API_TOKEN" "secret" (include "inference-store.tokenSecret" .root) "key" (ternary $v.auth.existingSecretKey "api-token" (ne $v.auth.existingSecret ""))) | nindent 0 }}
{{- end }}
{{- with $v.auth.oidc.signIn }}
{{- if and (eq $.component "api") .clientId .existingSecret }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_OIDC_CLIENT_SECRET" "secret" .existingSecret "key" .existingSecretKey) | nindent 0 }}
{{- end }}
{{- end }}
{{- $signs := include "inference-store.certificateSecret" .root }}
{{- if and $signs (has .component (list "retention" "doctor")) }}
{{- /* The doctor has the public half alone, where there is one. */}}
{{- $key := eq .component "doctor" | ternary $v.retention.certificates.publicKeyKey $v.retention.certificates.existingSecretKey }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_CERTIFICATE_KEY" "secret" $signs "key" $key "optional" (eq .component "doctor")) | nindent 0 }}
{{- end }}
{{- if and (eq .component "proxy") $v.proxy.redactionKey.existingSecret }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_PROXY_REDACTION_KEY" "secret" $v.proxy.redactionKey.existingSecret "key" $v.proxy.redactionKey.existingSecretKey) | nindent 0 }}
{{- end }}
{{- if and (eq .component "proxy") $v.proxy.cloudEventsToken.existingSecret }}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_PROXY_CLOUD_EVENTS_TOKEN" "secret" $v.proxy.cloudEventsToken.existingSecret "key" $v.proxy.cloudEventsToken.existingSecretKey) | nindent 0 }}
{{- end }}
{{- if or (and (eq .component "proxy") (include "inference-store.registryUrl" .)) (and (eq .component "migrate") (include "inference-store.makesRegistryKey" .root)) }}
{{- include "inference-store.registryKey" .root | nindent 0 }}
{{- end }}
{{- $own := list -}}
{{- if not (has .component (list "check" "doctor")) -}}
{{- $own = default list (include "inference-store.own" . | fromJson).extraEnv -}}
{{- end -}}
{{- $named := list -}}
{{- range $own -}}{{- $named = append $named .name -}}{{- end -}}
{{- range $v.pods.extraEnv }}
{{- if not (or (has .name $named) (and (eq $.component "proxy") (regexMatch "^INFERENCE_STORE_(POSTGRES|API)_" .name))) }}
{{- toYaml (list .) | nindent 0 }}
{{- end }}
{{- end }}
{{- with $own }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
