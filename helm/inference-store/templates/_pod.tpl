{{- /* What "restricted" asks of a container, and a root file system that nobody writes to. */ -}}
{{- define "inference-store.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Certificates and tokens as files: their mounts. */ -}}
{{- define "inference-store.mounts" -}}
{{- $v := .Values -}}
- {name: tmp, mountPath: /tmp}
{{- range $name := list "postgres" "kafka" "s3" }}
{{- $ca := (index $v $name).ca }}
{{- if or $ca.configMap $ca.secret }}
- {name: {{ $name }}-ca, mountPath: /etc/inference-store/{{ $name }}-ca, readOnly: true}
{{- end }}
{{- end }}
{{- if $v.kafka.clientCertificateSecret }}
- {name: kafka-certificate, mountPath: /etc/inference-store/kafka-certificate, readOnly: true}
{{- end }}
{{- if $v.admin.tlsSecret }}
- {name: admin-tls, mountPath: /etc/inference-store/admin-tls, readOnly: true}
{{- end }}
{{- if $v.api.tlsSecret }}
- {name: api-tls, mountPath: /etc/inference-store/api-tls, readOnly: true}
{{- end }}
{{- if $v.s3.webIdentity.roleArn }}
- {name: web-identity, mountPath: /var/run/secrets/inference-store, readOnly: true}
{{- end }}
{{- with $v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inference-store.volumes" -}}
{{- $v := .Values -}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- range $name := list "postgres" "kafka" "s3" }}
{{- $ca := (index $v $name).ca }}
{{- if $ca.configMap }}
- name: {{ $name }}-ca
  configMap: {name: {{ $ca.configMap }}, items: [{key: {{ $ca.key }}, path: ca.crt}]}
{{- else if $ca.secret }}
- name: {{ $name }}-ca
  secret: {secretName: {{ $ca.secret }}, items: [{key: {{ $ca.key }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- with $v.kafka.clientCertificateSecret }}
- name: kafka-certificate
  secret: {secretName: {{ . }}}
{{- end }}
{{- with $v.admin.tlsSecret }}
- name: admin-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- with $v.api.tlsSecret }}
- name: api-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- if $v.s3.webIdentity.roleArn }}
- name: web-identity
  projected:
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ $v.s3.webIdentity.audience | quote }}
          expirationSeconds: {{ $v.s3.webIdentity.expirationSeconds }}
{{- end }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "inference-store.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* What every pod of ours has; takes {root, component}. */ -}}
{{- define "inference-store.podBasics" -}}
{{- $v := .root.Values -}}
serviceAccountName: {{ include "inference-store.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "inference-store.pullSecrets" .root }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $v.pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $v.pods $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "inference-store.probe" -}}
httpGet:
  path: {{ .path }}
  port: admin
  scheme: {{ include "inference-store.adminScheme" .root | upper }}
periodSeconds: {{ .period }}
timeoutSeconds: 10
failureThreshold: {{ .failures }}
{{- end -}}

{{- /* A service's Deployment; takes {root, component, adminPort, ports}. */ -}}
{{- define "inference-store.deployment" -}}
{{- $v := .root.Values -}}
{{- $own := index $v .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "inference-store.fullname" .root }}-{{ .component }}
  labels: {{- include "inference-store.labels" . | nindent 4 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false $own) }}
  replicas: {{ $own.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # A new pod is ready before an old one goes: a migration that fails stops nothing that runs.
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector:
    matchLabels: {{- include "inference-store.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "inference-store.labels" . | nindent 8 }}
        {{- with merge (dict) $own.podLabels $v.pods.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/settings: {{ include "inference-store.checksum" .root }}
        {{- with $v.pods.annotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "inference-store.podBasics" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ $own.terminationGracePeriodSeconds }}
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: {{ $v.pods.spread }}
          labelSelector:
            matchLabels: {{- include "inference-store.selector" $ | nindent 14 }}
        {{- end }}
      initContainers:
        - name: migrated
          image: {{ include "inference-store.image" .root }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: [migrate, --check, --wait-seconds, {{ $v.migration.waitSeconds | quote }}]
          {{- include "inference-store.environment" (dict "root" .root "component" "check") | nindent 10 }}
          resources: {{- toYaml $v.migration.resources | nindent 12 }}
          securityContext: {{- include "inference-store.containerSecurity" . | nindent 12 }}
          volumeMounts: {{- include "inference-store.mounts" .root | nindent 12 }}
      containers:
        - name: {{ .component }}
          image: {{ include "inference-store.image" .root }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: [{{ .component }}]
          {{- include "inference-store.environment" . | nindent 10 }}
          ports:
            {{- range $name, $port := .ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}}
            {{- end }}
            - {name: admin, containerPort: {{ .adminPort }}}
          startupProbe: {{- include "inference-store.probe" (dict "root" .root "path" "/health/live" "period" 1 "failures" 180) | nindent 12 }}
          livenessProbe: {{- include "inference-store.probe" (dict "root" .root "path" "/health/live" "period" 10 "failures" 3) | nindent 12 }}
          readinessProbe: {{- include "inference-store.probe" (dict "root" .root "path" "/health/ready" "period" 5 "failures" 2) | nindent 12 }}
          {{- with .lifecycle }}
          lifecycle: {{- toYaml . | nindent 12 }}
          {{- end }}
          resources: {{- toYaml $own.resources | nindent 12 }}
          securityContext: {{- include "inference-store.containerSecurity" . | nindent 12 }}
          volumeMounts: {{- include "inference-store.mounts" .root | nindent 12 }}
      volumes: {{- include "inference-store.volumes" .root | nindent 8 }}
{{- end -}}

{{- /* Changes when settings or the secrets given as values do: the pods are made anew then. */ -}}
{{- define "inference-store.checksum" -}}
{{- $v := .Values -}}
{{- list (include "inference-store.settings" .) $v.postgres.password $v.kafka.sasl.password $v.s3.accessKey $v.s3.secretKey | toJson | sha256sum -}}
{{- end -}}
