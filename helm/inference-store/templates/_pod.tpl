{{- /* A component's values: a name of theirs is not its own. */ -}}
{{- define "inference-store.own" -}}
{{- $name := dict "migrate" "migration" "check" "migration" "doctor" "api" -}}
{{- index .root.Values (default .component (get $name .component)) | toJson -}}
{{- end -}}

{{- /* A value of `pods`, with what the component says of it, as JSON: of a map each name, of a list both;
       another value in its place. A list is {items}. Takes {root, component, name}. */ -}}
{{- define "inference-store.ofPods" -}}
{{- $all := index .root.Values.pods .name -}}
{{- $own := get (include "inference-store.own" . | fromJson) .name -}}
{{- if kindIs "map" $all -}}
{{- mergeOverwrite (deepCopy $all) (default dict $own) | toJson -}}
{{- else if kindIs "slice" $all -}}
{{- dict "items" (concat $all (default list $own)) | toJson -}}
{{- else -}}
{{- default $all $own -}}
{{- end -}}
{{- end -}}

{{- /* A security context: of several the last says; what is null or empty is left out. Takes a list. */ -}}
{{- define "inference-store.security" -}}
{{- $said := dict -}}
{{- range . -}}{{- range $name, $value := . -}}{{- $_ := set $said $name $value -}}{{- end -}}{{- end -}}
{{- range $name, $value := $said }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The user that a pod runs as; none on OpenShift, which gives each namespace users of its own. Takes
       {root, uid}. */ -}}
{{- define "inference-store.ids" -}}
{{- $uid := .root.Capabilities.APIVersions.Has "security.openshift.io/v1" | ternary nil .uid -}}
{{- toJson (dict "runAsNonRoot" true "runAsUser" $uid "runAsGroup" $uid "seccompProfile" (dict "type" "RuntimeDefault")) -}}
{{- end -}}

{{- /* What "restricted" asks of a container, and a root file system that nobody writes to; then the
       values. Takes {root}, and component where it has values. */ -}}
{{- define "inference-store.containerSecurity" -}}
{{- $closed := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- $said := list $closed -}}
{{- if .sidecar -}}
{{- $said = list (include "inference-store.ids" (dict "root" .root "uid" 10001) | fromJson) $closed .root.Values.proxy.sidecar.securityContext -}}
{{- else if .component -}}
{{- $said = list $closed .root.Values.pods.securityContext (include "inference-store.own" . | fromJson).securityContext -}}
{{- end -}}
{{- include "inference-store.security" $said -}}
{{- end -}}

{{- /* Which servers' certificates a component looks at. */ -}}
{{- define "inference-store.authorities" -}}
{{- $names := eq .component "proxy" | ternary (list "kafka" "s3") (list "postgres" "kafka" "s3") -}}
{{- $found := dict -}}
{{- range $names -}}
{{- $ca := (index $.root.Values .).ca -}}
{{- if or $ca.configMap $ca.secret -}}{{- $_ := set $found . $ca -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* Which Secrets a component has as files, by the name of the volume. */ -}}
{{- define "inference-store.secretFiles" -}}
{{- $v := .root.Values -}}
{{- $found := dict "kafka-certificate" $v.kafka.clientCertificateSecret "admin-tls" $v.admin.tlsSecret -}}
{{- if ne .component "proxy" -}}{{- $_ := set $found "postgres-certificate" $v.postgres.clientCertificateSecret -}}{{- end -}}
{{- if eq .component "proxy" -}}
{{- $_ := set $found "kafka-certificate" (default $v.kafka.clientCertificateSecret $v.proxy.kafka.clientCertificateSecret) -}}
{{- if not .sidecar -}}
{{- range $v.proxy.upstreamSecrets -}}{{- $_ := set $found (printf "upstream-%s" (replace "." "-" .)) . -}}{{- end -}}
{{- end -}}
{{- else -}}
{{- $_ := set $found "api-tls" $v.api.tlsSecret -}}
{{- end -}}
{{- if and (has .component (list "proxy" "doctor")) $v.proxy.enabled (not .sidecar) -}}
{{- $_ := set $found "proxy-tls" $v.proxy.tlsSecret -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* Certificates, tokens and what else comes as files: their mounts. Takes {root, component}, and
       of a proxy `sidecar`: it is in another's pod. */ -}}
{{- define "inference-store.mounts" -}}
{{- $v := .root.Values -}}
{{- $prefix := include "inference-store.volumePrefix" . -}}
- {name: {{ $prefix }}tmp, mountPath: /tmp}
{{- range $name, $_ := include "inference-store.authorities" . | fromJson }}
- {name: {{ $prefix }}{{ $name }}-ca, mountPath: /etc/inference-store/{{ $name }}-ca, readOnly: true}
{{- end }}
{{- range $name, $secret := include "inference-store.secretFiles" . | fromJson }}
{{- if $secret }}
- {name: {{ $prefix }}{{ $name }}, mountPath: /etc/inference-store/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- if $v.s3.webIdentity.roleArn }}
- {name: {{ $prefix }}web-identity, mountPath: /var/run/secrets/inference-store, readOnly: true}
{{- end }}
{{- if eq .component "proxy" }}
- {name: {{ $prefix }}configuration, mountPath: /etc/inference-store/proxy, readOnly: true}
{{- if include "inference-store.spools" .root }}
- {name: {{ $prefix }}spool, mountPath: /var/spool/inference-store}
{{- end }}
{{- end }}
{{- with (include "inference-store.ofPods" (merge (dict "name" "extraVolumeMounts") .) | fromJson).items }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inference-store.volumes" -}}
{{- $v := .root.Values -}}
{{- $prefix := include "inference-store.volumePrefix" . -}}
- name: {{ $prefix }}tmp
  {{- /* A part of an export is written to it before it is sent: what is over it ends the pod. */}}
  emptyDir: {sizeLimit: {{ ternary "5Gi" "64Mi" (eq .component "retention") }}}
{{- range $name, $ca := include "inference-store.authorities" . | fromJson }}
- name: {{ $prefix }}{{ $name }}-ca
  {{- if $ca.configMap }}
  configMap: {name: {{ $ca.configMap }}, items: [{key: {{ $ca.key }}, path: ca.crt}]}
  {{- else }}
  secret: {secretName: {{ $ca.secret }}, items: [{key: {{ $ca.key }}, path: ca.crt}]}
  {{- end }}
{{- end }}
{{- range $name, $secret := include "inference-store.secretFiles" . | fromJson }}
{{- if $secret }}
- name: {{ $prefix }}{{ $name }}
  secret: {secretName: {{ $secret }}}
{{- end }}
{{- end }}
{{- if $v.s3.webIdentity.roleArn }}
- name: {{ $prefix }}web-identity
  projected:
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ $v.s3.webIdentity.audience | quote }}
          expirationSeconds: {{ toJson $v.s3.webIdentity.expirationSeconds }}
{{- end }}
{{- if eq .component "proxy" }}
- name: {{ $prefix }}configuration
  configMap: {name: {{ .configuration }}}
{{- if include "inference-store.spools" .root }}
- name: {{ $prefix }}spool
  {{- if and $v.proxy.spool.existingClaim (not .sidecar) }}
  persistentVolumeClaim: {claimName: {{ $v.proxy.spool.existingClaim }}}
  {{- else }}
  {{- /* What is over it ends the pod; small files take more room than they have bytes. */}}
  emptyDir: {sizeLimit: {{ mul 3 (int64 $v.proxy.spool.bytes) | quote }}}
  {{- end }}
{{- end }}
{{- end }}
{{- with (include "inference-store.ofPods" (merge (dict "name" "extraVolumes") .) | fromJson).items }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inference-store.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* What every pod of ours has; takes {root, component}. */ -}}
{{- define "inference-store.podBasics" -}}
{{- $v := .root.Values -}}
{{- $own := include "inference-store.own" . | fromJson -}}
{{- $ids := include "inference-store.ids" (dict "root" .root "uid" 10001) | fromJson -}}
serviceAccountName: {{ include "inference-store.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "inference-store.pullSecrets" .root }}
securityContext:
  {{- include "inference-store.security" (list $ids (dict "fsGroup" $ids.runAsUser) $v.pods.podSecurityContext $own.podSecurityContext) | indent 2 }}
{{- range $name := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with default (index $v.pods $name) (index $own $name) }}
{{ $name }}: {{- kindIs "string" . | ternary (printf " %v" .) (toYaml . | nindent 2) }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* In a pod of somebody else's there may be an `admin` already. */ -}}
{{- define "inference-store.adminPort" -}}
{{- if .sidecar -}}proxy-admin{{- else -}}admin{{- end -}}
{{- end -}}
{{- define "inference-store.volumePrefix" -}}
{{- if .sidecar -}}inference-store-{{- end -}}
{{- end -}}

{{- /* Takes a container's context, and kind, path, period and failures. */ -}}
{{- define "inference-store.probe" -}}
{{- $name := printf "%sProbe" .kind -}}
{{- $get := dict "path" (printf "/health/%s" .path) "port" (include "inference-store.adminPort" .) "scheme" (include "inference-store.adminScheme" .root | upper) -}}
{{- $ours := dict "httpGet" $get "periodSeconds" .period "timeoutSeconds" 10 "failureThreshold" .failures -}}
{{- $said := include "inference-store.ofPods" (merge (dict "name" $name) .) | fromJson -}}
{{ $name }}: {{- toYaml (merge $said $ours) | nindent 2 }}
{{- end -}}

{{- /* The resources of a service's container. A limit of memory that is not given follows from what the
       settings allow, beside a fixed part; tests/chart/test_objects.py adds both up. */ -}}
{{- define "inference-store.resources" -}}
{{- $resources := deepCopy (default (index .root.Values .component).resources .resources) -}}
{{- $settings := .root.Values.settings -}}
{{- $bytes := 0 -}}
{{- if eq .component "api" -}}
{{- $bytes = add (mul 512 1048576) (mul 384 1048576 (dig "THUMBNAIL_PROCESSES" 2 $settings)) -}}
{{- else if eq .component "proxy" -}}
{{- $bytes = add (mul 640 1048576) (mul 2 (dig "PROXY_CAPTURE_BYTES" 67108864 $settings)) (dig "PROXY_GRPC_MESSAGE_BYTES" 268435456 $settings) -}}
{{- end -}}
{{- if and $bytes (not (dig "limits" "memory" "" $resources)) -}}
{{- $_ := set $resources "limits" (merge (dict "memory" (printf "%dMi" (div $bytes 1048576))) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* The container of a service; takes {root, component, adminPort, ports}, and where they are not
       the component's own: name, configMap, resources, sidecar. */ -}}
{{- define "inference-store.container" -}}
- name: {{ default .component .name }}
  image: {{ include "inference-store.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: [{{ .component }}]
  {{- include "inference-store.environment" . | nindent 2 }}
  ports:
    {{- range .ports }}
    - {name: {{ .name }}, containerPort: {{ .port }}}
    {{- end }}
    - {name: {{ include "inference-store.adminPort" . }}, containerPort: {{ .adminPort }}}
  {{- include "inference-store.probe" (merge (dict "kind" "startup" "path" "live" "period" 1 "failures" 180) .) | nindent 2 }}
  {{- include "inference-store.probe" (merge (dict "kind" "liveness" "path" "live" "period" 10 "failures" 3) .) | nindent 2 }}
  {{- include "inference-store.probe" (merge (dict "kind" "readiness" "path" "ready" "period" 5 "failures" 2) .) | nindent 2 }}
  {{- if .ports }}
  {{- /* The Service takes 5 s to forget a pod: it answers until then. */}}
  lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
  {{- end }}
  resources: {{- include "inference-store.resources" . | nindent 4 }}
  securityContext: {{- include "inference-store.containerSecurity" . | indent 4 }}
  volumeMounts: {{- include "inference-store.mounts" . | nindent 4 }}
{{- end -}}

{{- /* A service's Deployment; takes {root, component, adminPort, ports}, and for a proxy
       configMap and configuration. */ -}}
{{- define "inference-store.deployment" -}}
{{- $v := .root.Values -}}
{{- $own := index $v .component -}}
{{- $before := (include "inference-store.ofPods" (merge (dict "name" "extraInitContainers") .) | fromJson).items -}}
apiVersion: apps/v1
kind: Deployment
{{ include "inference-store.metadata" (dict "root" .root "component" .component) }}
spec:
  {{- if not (dig "autoscaling" "enabled" false $own) }}
  replicas: {{ toJson $own.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # A new pod is ready before an old one goes: a migration that fails stops nothing that runs.
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector:
    matchLabels: {{- include "inference-store.selector" . | nindent 6 }}
  template:
    {{- include "inference-store.podMetadata" . | nindent 4 }}
    spec:
      {{- include "inference-store.podBasics" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ toJson $own.terminationGracePeriodSeconds }}
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: {{ include "inference-store.ofPods" (merge (dict "name" "spread") $) }}
          labelSelector:
            matchLabels: {{- include "inference-store.selector" $ | nindent 14 }}
        {{- end }}
      {{- if or $before (ne .component "proxy") }}
      initContainers:
        {{- with $before }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- if ne .component "proxy" }}
        - name: migrated
          image: {{ include "inference-store.image" .root }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: [migrate, --check, --wait-seconds, {{ toJson $v.migration.waitSeconds | quote }}]
          {{- include "inference-store.environment" (dict "root" .root "component" "check") | nindent 10 }}
          resources: {{- toYaml $v.migration.resources | nindent 12 }}
          securityContext: {{- include "inference-store.containerSecurity" . | indent 12 }}
          volumeMounts: {{- include "inference-store.mounts" . | nindent 12 }}
        {{- end }}
      {{- end }}
      containers:
        {{- include "inference-store.container" . | nindent 8 }}
        {{- with (include "inference-store.ofPods" (merge (dict "name" "extraContainers") .) | fromJson).items }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes: {{- include "inference-store.volumes" . | nindent 8 }}
{{- end -}}

{{- /* The secrets that were given as values, and, seen by `helm upgrade`, what is in Secrets that
       were named. Files are read again without a restart. */ -}}
{{- define "inference-store.givenSecrets" -}}
{{- $v := .Values -}}
{{- $found := dict -}}
{{- range $name := list $v.postgres.existingSecret $v.kafka.sasl.existingSecret $v.s3.existingSecret $v.auth.existingSecret $v.api.s3ExistingSecret $v.ingester.s3ExistingSecret $v.retention.s3ExistingSecret $v.retention.certificates.existingSecret $v.proxy.s3ExistingSecret $v.proxy.kafka.existingSecret $v.proxy.registry.existingSecret $v.proxy.redactionKey.existingSecret $v.proxy.cloudEventsToken.existingSecret -}}
{{- if $name -}}{{- $_ := set $found $name (lookup "v1" "Secret" $.Release.Namespace $name).data -}}{{- end -}}
{{- end -}}
{{- list $v.postgres.password $v.kafka.sasl.password $v.s3.accessKey $v.s3.secretKey $found | toJson | sha256sum -}}
{{- end -}}

{{- /* Changes when settings or secrets do: the pods are made anew then. */ -}}
{{- define "inference-store.checksum" -}}
{{- list (include "inference-store.settings" .) (include "inference-store.givenSecrets" .) | toJson | sha256sum -}}
{{- end -}}
