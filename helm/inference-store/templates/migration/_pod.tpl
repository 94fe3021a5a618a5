{{- define "inference-store.migration" -}}
{{- $v := .root.Values -}}
{{ include "inference-store.podMetadata" . }}
spec:
  # Each try is a pod of its own, which stays: its log says why it failed.
  restartPolicy: Never
  {{- include "inference-store.podBasics" . | nindent 2 }}
  containers:
    - name: migrate
      image: {{ include "inference-store.image" .root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args: [migrate, --wait-seconds, {{ toJson $v.migration.waitSeconds | quote }}]
      {{- include "inference-store.environment" . | nindent 6 }}
      resources: {{- toYaml $v.migration.resources | nindent 8 }}
      securityContext: {{- include "inference-store.containerSecurity" . | indent 8 }}
      volumeMounts: {{- include "inference-store.mounts" . | nindent 8 }}
  volumes: {{- include "inference-store.volumes" . | nindent 4 }}
{{- end -}}
