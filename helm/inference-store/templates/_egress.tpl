{{- /* Egress rules to each server: in this release by its pods, else by port and, where given, peer. */ -}}
{{- define "inference-store.toOurs" -}}
- ports: [{port: {{ .port }}}]
  to:
    - podSelector:
        matchLabels: {{- include "inference-store.selector" . | nindent 10 }}
{{- end -}}

{{- define "inference-store.toPeers" -}}
- ports:
    {{- range .ports }}
    - port: {{ . }}
    {{- end }}
  {{- with .peers }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "inference-store.to.dns" -}}
{{- /* OpenShift's pods of DNS have 5353. */ -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}, {port: 5353, protocol: UDP}, {port: 5353, protocol: TCP}]
{{- end -}}

{{- define "inference-store.to.api" -}}
{{- include "inference-store.toOurs" (dict "root" . "component" "api" "port" "http") -}}
{{- end -}}

{{- /* Where registrations are: this release's api, or another. */ -}}
{{- define "inference-store.to.registry" -}}
{{- $url := include "inference-store.registryUrl" (dict "root" .) -}}
{{- if and .Values.api.enabled (contains (printf "//%s-api" (include "inference-store.fullname" .)) $url) -}}
{{- include "inference-store.to.api" . -}}
{{- else -}}
{{- include "inference-store.toPeers" (dict "ports" (list (include "inference-store.urlPort" $url))) -}}
{{- end -}}
{{- end -}}

{{- define "inference-store.to.proxy" -}}
{{- include "inference-store.toOurs" (dict "root" . "component" "proxy" "port" "http") -}}
{{- end -}}

{{- /* Replays go to both of its ports. */ -}}
{{- define "inference-store.replays" -}}
{{- if and .Values.proxy.enabled .Values.settings.REPLAY_PROXY -}}yes{{- end -}}
{{- end -}}
{{- define "inference-store.to.replayProxy" -}}
{{- include "inference-store.to.proxy" . }}
{{ include "inference-store.toOurs" (dict "root" . "component" "proxy" "port" "grpc") }}
{{- end -}}

{{- /* The model servers: what a policy looks at is the port of the pod, not of the Service. */ -}}
{{- define "inference-store.to.upstreams" -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.upstreamPorts -}}{{- $ports = append $ports (toJson .) -}}{{- end -}}
{{- if not $ports -}}
{{- range .Values.proxy.upstreams -}}
{{- with .url -}}{{- $ports = append $ports (include "inference-store.urlPort" .) -}}{{- end -}}
{{- range list .grpc .omi -}}{{- with . -}}{{- $ports = append $ports (regexFind "[0-9]+$" .) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- include "inference-store.toPeers" (dict "ports" (uniq $ports) "peers" .Values.networkPolicy.upstreamsTo) -}}
{{- end -}}

{{- define "inference-store.to.postgres" -}}
{{- if include "inference-store.hasPostgres" . -}}
{{- include "inference-store.toOurs" (dict "root" . "component" "postgres" "port" "postgres") -}}
{{- else -}}
{{- include "inference-store.toPeers" (dict "ports" (default (list .Values.postgres.port) .Values.networkPolicy.postgresPorts) "peers" .Values.networkPolicy.postgresTo) -}}
{{- end -}}
{{- end -}}

{{- define "inference-store.to.kafka" -}}
{{- if include "inference-store.hasKafka" . -}}
{{- include "inference-store.toOurs" (dict "root" . "component" "kafka" "port" "kafka") -}}
{{- else -}}
{{- $ports := .Values.networkPolicy.kafkaPorts -}}
{{- if not $ports -}}
{{- range splitList "," .Values.kafka.bootstrapServers -}}{{- $ports = append $ports (regexFind "[0-9]+$" (trim .)) -}}{{- end -}}
{{- end -}}
{{- include "inference-store.toPeers" (dict "ports" (uniq $ports) "peers" .Values.networkPolicy.kafkaTo) -}}
{{- end -}}
{{- end -}}

{{- define "inference-store.to.s3" -}}
{{- if include "inference-store.hasS3" . -}}
{{- include "inference-store.toOurs" (dict "root" . "component" "s3" "port" "s3") -}}
{{- else -}}
{{- $port := include "inference-store.urlPort" (default "https://s3.amazonaws.com" .Values.s3.endpoint) -}}
{{- include "inference-store.toPeers" (dict "ports" (list $port) "peers" .Values.networkPolicy.s3To) -}}
{{- end -}}
{{- end -}}

{{- /* Who gives tokens, and who collects traces: by port; takes {root, component}. */ -}}
{{- define "inference-store.to.issuers" -}}
{{- $v := .root.Values -}}
{{- $urls := list -}}
{{- if has .component (list "api" "ingester" "retention" "proxy" "doctor") -}}
{{- if or $v.s3.webIdentity.roleArn (include "inference-store.usesIam" .) -}}
{{- $urls = append $urls (default "https://sts.amazonaws.com" $v.s3.webIdentity.stsEndpoint) -}}
{{- end -}}
{{- end -}}
{{- if has .component (list "api" "ingester" "retention" "proxy") -}}
{{- range $name, $value := $v.traces -}}
{{- if hasSuffix "_ENDPOINT" $name -}}{{- $urls = append $urls $value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .component "api") $v.auth.oidc.issuer -}}
{{- $urls = append $urls (default $v.auth.oidc.issuer $v.auth.oidc.jwksUrl) -}}
{{- if $v.auth.oidc.signIn.clientId -}}{{- $urls = append $urls $v.auth.oidc.issuer -}}{{- end -}}
{{- end -}}
{{- if and (include "inference-store.asksKafka" .) $v.kafka.oauth.tokenUrl -}}
{{- $urls = append $urls $v.kafka.oauth.tokenUrl -}}
{{- end -}}
{{- $ports := list -}}
{{- range $urls -}}{{- $ports = append $ports (include "inference-store.urlPort" .) -}}{{- end -}}
{{- if $ports -}}
{{- include "inference-store.toPeers" (dict "ports" (uniq $ports)) -}}
{{- end -}}
{{- if include "inference-store.usesIam" . }}
- ports: [{port: 80}]
  to:
    # The node's metadata, ECS' and EKS Pod Identity's agents.
    {{- range list "169.254.169.254" "169.254.170.2" "169.254.170.23" }}
    - ipBlock: {cidr: {{ . }}/32}
    {{- end }}
{{- end -}}
{{- end -}}

{{- /* Whether a component gets its rights in S3 from the cluster: neither keys nor a role are given. */ -}}
{{- define "inference-store.usesIam" -}}
{{- $asks := has .component (list "api" "ingester" "retention" "proxy" "doctor") -}}
{{- if and $asks (not .root.Values.s3.webIdentity.roleArn) (not (include "inference-store.s3Secret" .)) -}}yes{{- end -}}
{{- end -}}
