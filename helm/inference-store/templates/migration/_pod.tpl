{{- define "inference-store.migration" -}}
{{- $v := .root.Values -}}
metadata:
  labels:
    {{- include "inference-store.labels" . | nindent 4 }}
    {{- with $v.pods.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "inference-store.checksum" .root }}
    {{- with $v.pods.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # Each try is a pod of its own, which stays: its log says why it failed.
  restartPolicy: Never
  {{- include "inference-store.podBasics" . | nindent 2 }}
  containers:
    - name: migrate
      image: {{ include "inference-store.image" .root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args: [migrate, --wait-seconds, {{ $v.migration.waitSeconds | quote }}]
      {{- include "inference-store.environment" . | nindent 6 }}
      resources: {{- toYaml $v.migration.resources | nindent 8 }}
      securityContext: {{- include "inference-store.containerSecurity" . | indent 8 }}
      volumeMounts: {{- include "inference-store.mounts" . | nindent 8 }}
  volumes: {{- include "inference-store.volumes" . | nindent 4 }}
{{- end -}}
