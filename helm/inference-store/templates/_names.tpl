{{- define "inference-store.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* The first part of every object's name; short enough for what is added to it. */ -}}
{{- define "inference-store.fullname" -}}
{{- $name := include "inference-store.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that select a component's pods; takes {root, component}. */ -}}
{{- define "inference-store.selector" -}}
app.kubernetes.io/name: {{ include "inference-store.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* All labels of an object; takes {root, component}. */ -}}
{{- define "inference-store.labels" -}}
{{ include "inference-store.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- /* What tells this installation's metrics from another's. */ -}}
{{- define "inference-store.installation" -}}
{{ .Release.Namespace }}/{{ .Release.Name }}
{{- end -}}

{{- define "inference-store.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- /* Takes {root, component}; what has no account of its own takes that of the release. */ -}}
{{- define "inference-store.serviceAccount" -}}
{{- $full := include "inference-store.fullname" .root -}}
{{- $own := (dig .component "serviceAccount" dict .root.Values.AsMap) -}}
{{- if not $own -}}
{{- $full -}}
{{- else if $own.create -}}
{{- default (printf "%s-%s" $full .component) $own.name -}}
{{- else -}}
{{- default "default" $own.name -}}
{{- end -}}
{{- end -}}

{{- /* Whether Postgres, Kafka or the S3 store is in this release. */ -}}
{{- define "inference-store.hasPostgres" -}}
{{- if and .Values.dev.enabled (not .Values.postgres.host) (not .Values.postgres.dsnKey) -}}yes{{- end -}}
{{- end -}}
{{- define "inference-store.hasKafka" -}}
{{- if and .Values.dev.enabled (not .Values.kafka.bootstrapServers) -}}yes{{- end -}}
{{- end -}}
{{- define "inference-store.hasS3" -}}
{{- if and .Values.dev.enabled (not .Values.s3.endpoint) -}}yes{{- end -}}
{{- end -}}

{{- define "inference-store.postgresHost" -}}
{{- default (printf "%s-postgres" (include "inference-store.fullname" .)) .Values.postgres.host -}}
{{- end -}}
{{- define "inference-store.bootstrapServers" -}}
{{- default (printf "%s-kafka.%s.svc:9092" (include "inference-store.fullname" .) .Release.Namespace) .Values.kafka.bootstrapServers -}}
{{- end -}}
{{- define "inference-store.s3Endpoint" -}}
{{- if include "inference-store.hasS3" . -}}
{{- printf "http://%s-s3.%s.svc:9000" (include "inference-store.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- .Values.s3.endpoint -}}
{{- end -}}
{{- end -}}

{{- /* The port of a URL; takes the URL. */ -}}
{{- define "inference-store.urlPort" -}}
{{- $parts := urlParse . -}}
{{- $host := get $parts "host" -}}
{{- if regexMatch ":[0-9]+$" $host -}}
{{- regexFind "[0-9]+$" $host -}}
{{- else if eq (get $parts "scheme") "http" -}}80{{- else -}}443{{- end -}}
{{- end -}}

{{- define "inference-store.apiScheme" -}}
{{- if .Values.api.tlsSecret }}https{{ else }}http{{ end -}}
{{- end -}}
{{- define "inference-store.adminScheme" -}}
{{- if .Values.admin.tlsSecret }}https{{ else }}http{{ end -}}
{{- end -}}
