{{- /* A value that is made once and kept: from the Secret that is there, else the new one. Base64.
       Takes {root, secret, key, new}. */ -}}
{{- define "inference-store.kept" -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace .secret -}}
{{- $kept := "" -}}
{{- if $found -}}{{- $kept = dig "data" .key "" $found -}}{{- end -}}
{{- default (b64enc .new) $kept -}}
{{- end -}}

{{- /* Where a proxy reads registrations; empty: nowhere. A sidecar has no Secret of this release.
       Takes {root}, and `sidecar`. */ -}}
{{- define "inference-store.registryUrl" -}}
{{- $r := .root.Values.proxy.registry -}}
{{- if not $r.enabled -}}
{{- else if $r.url -}}{{- $r.url -}}
{{- else if and .root.Values.api.enabled (not .root.Values.api.tlsSecret) (or $r.existingSecret (not .sidecar)) -}}
http://{{ include "inference-store.fullname" .root }}-api:{{ .root.Values.api.service.port }}
{{- end -}}
{{- end -}}

{{- /* Not empty: the chart makes the key by which its proxy reads registrations. */ -}}
{{- define "inference-store.makesRegistryKey" -}}
{{- $p := .Values.proxy -}}
{{- if and $p.enabled (not $p.registry.url) (not $p.registry.existingSecret) (include "inference-store.registryUrl" (dict "root" .)) -}}yes{{- end -}}
{{- end -}}

{{- define "inference-store.registryKey" -}}
{{- $r := .Values.proxy.registry -}}
{{- $own := printf "%s-registry-key" (include "inference-store.fullname" .) -}}
{{- $made := ne (include "inference-store.makesRegistryKey" .) "" -}}
{{- $secret := $made | ternary $own $r.existingSecret | required "proxy.registry.url needs proxy.registry.existingSecret: the Secret with a key that may read models." -}}
{{- include "inference-store.fromSecret" (dict "name" "INFERENCE_STORE_PROXY_REGISTRY_KEY" "secret" $secret "key" ($made | ternary "registry-key" $r.existingSecretKey)) -}}
{{- end -}}

{{- define "inference-store.tokenSecret" -}}
{{- default (printf "%s-api-token" (include "inference-store.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- /* Which Secret has the key that signs certificates; empty: a file of `settings` has it. */ -}}
{{- define "inference-store.certificateSecret" -}}
{{- if .Values.retention.certificates.existingSecret -}}{{- .Values.retention.certificates.existingSecret -}}
{{- else if and .Values.retention.enabled (not .Values.settings.CERTIFICATE_KEY_FILE) -}}{{- include "inference-store.fullname" . -}}-certificate-key
{{- end -}}
{{- end -}}

{{- /* Which Secret has the password of Postgres; empty: there is none. */ -}}
{{- define "inference-store.postgresSecret" -}}
{{- $full := include "inference-store.fullname" . -}}
{{- if .Values.postgres.existingSecret -}}{{- .Values.postgres.existingSecret -}}
{{- else if .Values.postgres.password -}}{{- $full -}}-secrets
{{- else if include "inference-store.hasPostgres" . -}}{{- $full -}}-dev
{{- end -}}
{{- end -}}
{{- define "inference-store.postgresPasswordKey" -}}
{{- if .Values.postgres.existingSecret -}}{{- .Values.postgres.passwordKey -}}{{- else -}}postgres-password{{- end -}}
{{- end -}}

{{- /* Which Secret has the S3 keys of a component; empty: IAM. Takes {root, component}. What
       `helm test` runs has the api's account, and the api's keys where there are none for all. */ -}}
{{- define "inference-store.s3Secret" -}}
{{- $full := include "inference-store.fullname" .root -}}
{{- $own := dig .component "s3ExistingSecret" "" .root.Values.AsMap -}}
{{- if $own -}}{{- $own -}}
{{- else if .root.Values.s3.existingSecret -}}{{- .root.Values.s3.existingSecret -}}
{{- else if .root.Values.s3.accessKey -}}{{- $full -}}-secrets
{{- else if and (eq .component "doctor") .root.Values.api.s3ExistingSecret -}}{{- .root.Values.api.s3ExistingSecret -}}
{{- else if include "inference-store.hasS3" .root -}}{{- $full -}}-dev
{{- end -}}
{{- end -}}

{{- /* Which Secret has the password of Kafka, and its key there; empty: there is none. Takes
       {root, component}. */ -}}
{{- define "inference-store.kafkaSecret" -}}
{{- $v := .root.Values -}}
{{- if and (eq .component "proxy") $v.proxy.kafka.existingSecret -}}{{- $v.proxy.kafka.existingSecret -}}
{{- else if $v.kafka.sasl.existingSecret -}}{{- $v.kafka.sasl.existingSecret -}}
{{- else if $v.kafka.sasl.password -}}{{- include "inference-store.fullname" .root -}}-secrets
{{- end -}}
{{- end -}}
{{- define "inference-store.kafkaSecretKey" -}}
{{- $v := .root.Values -}}
{{- if and (eq .component "proxy") $v.proxy.kafka.existingSecret -}}{{- $v.proxy.kafka.existingSecretKey -}}
{{- else if $v.kafka.sasl.existingSecret -}}{{- $v.kafka.sasl.existingSecretKey -}}
{{- else -}}kafka-password
{{- end -}}
{{- end -}}
