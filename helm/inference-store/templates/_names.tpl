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

{{- /* All labels of an object; takes {root, component}, and labels: those of the object alone. */ -}}
{{- define "inference-store.labels" -}}
{{- $ours := include "inference-store.selector" . | fromYaml -}}
{{- $_ := set $ours "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- toYaml (merge $ours (default dict .labels) .root.Values.commonLabels) -}}
{{- end -}}

{{- /* The metadata of an object; takes {root, component}, and name, labels and annotations where the
       object has others than its component. */ -}}
{{- define "inference-store.metadata" -}}
metadata:
  name: {{ default (printf "%s-%s" (include "inference-store.fullname" .root) .component) .name }}
  labels: {{- include "inference-store.labels" . | nindent 4 }}
  {{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* The metadata of a pod of ours; takes {root, component}, and checksum. */ -}}
{{- define "inference-store.podMetadata" -}}
metadata:
  labels: {{- include "inference-store.labels" (merge (dict "labels" (include "inference-store.ofPods" (merge (dict "name" "podLabels") .) | fromJson)) .) | nindent 4 }}
  annotations:
    checksum/settings: {{ default (include "inference-store.checksum" .root) .checksum }}
    {{- with include "inference-store.ofPods" (merge (dict "name" "podAnnotations") .) | fromJson }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
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

{{- /* Whether something here uses Postgres: without it this is the proxy alone. */ -}}
{{- define "inference-store.usesPostgres" -}}
{{- range list "api" "ingester" "retention" "migration" -}}
{{- if (index $.Values .).enabled -}}yes{{- end -}}
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
