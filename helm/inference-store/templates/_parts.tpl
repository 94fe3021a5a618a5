{{- /* What comes with each service: account, admin Service, disruption budget, ServiceMonitor.
       Takes {root, component, adminPort}. */ -}}
{{- define "inference-store.account" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "inference-store.serviceAccount" . }}
  labels: {{- include "inference-store.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- end -}}

{{- define "inference-store.adminService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "inference-store.fullname" .root }}-{{ .component }}-admin
  labels:
    {{- include "inference-store.labels" . | nindent 4 }}
    inference-store/port: admin
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "inference-store.selector" . | nindent 4 }}
  ports:
    - {name: admin, port: {{ .adminPort }}, targetPort: admin}
{{- end -}}

{{- define "inference-store.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "inference-store.fullname" .root }}-{{ .component }}
  labels: {{- include "inference-store.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "inference-store.selector" . | nindent 6 }}
{{- end -}}
