{{- /* A server for trying out: a Service and the frame of a StatefulSet.
       Takes {root, component, port, mountPath, writable}: what it writes beside its data, which goes
       with its pod; the container's own lines come from the caller. */ -}}
{{- define "inference-store.devService" -}}
apiVersion: v1
kind: Service
{{ include "inference-store.metadata" (dict "root" .root "component" .component) }}
spec:
  selector: {{- include "inference-store.selector" . | nindent 4 }}
  ports:
    - {name: {{ .component }}, port: {{ .port }}, targetPort: {{ .component }}}
{{- end -}}

{{- define "inference-store.devServer" -}}
{{- $dev := .root.Values.dev -}}
{{- $own := index $dev .component -}}
{{- $ids := include "inference-store.ids" (dict "root" .root "uid" $own.uid) | fromJson -}}
apiVersion: apps/v1
kind: StatefulSet
{{ include "inference-store.metadata" (dict "root" .root "component" .component) }}
spec:
  replicas: 1
  serviceName: {{ include "inference-store.fullname" .root }}-{{ .component }}
  selector:
    matchLabels: {{- include "inference-store.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "inference-store.selector" . | nindent 8 }}
    spec:
      serviceAccountName: {{ include "inference-store.fullname" .root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- include "inference-store.pullSecrets" .root | indent 6 }}
      terminationGracePeriodSeconds: 60
      securityContext:
        {{- include "inference-store.security" (list $ids (dict "fsGroup" $ids.runAsUser)) | indent 8 }}
        fsGroupChangePolicy: OnRootMismatch
      {{- with .initContainers }}
      initContainers: {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ $own.image }}
          ports:
            - {name: {{ .component }}, containerPort: {{ .port }}}
          {{- .container | nindent 10 }}
          resources: {{- toYaml $own.resources | nindent 12 }}
          securityContext: {{- include "inference-store.containerSecurity" (dict "root" .root) | indent 12 }}
          volumeMounts:
            - {name: data, mountPath: {{ .mountPath }}}
            - {name: tmp, mountPath: /tmp}
            {{- range .writable }}
            - {name: tmp, mountPath: {{ . }}, subPath: {{ base . }}}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {}}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $dev.storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ $dev.size }}}}
{{- end -}}
