{{- /* What belongs to a service. Each takes {root, component}. */ -}}
{{- define "inference-store.account" -}}
apiVersion: v1
kind: ServiceAccount
{{ include "inference-store.metadata" (dict "root" .root "component" .component "name" (include "inference-store.serviceAccount" .) "annotations" (index .root.Values .component).serviceAccount.annotations) }}
automountServiceAccountToken: false
{{- end -}}

{{- define "inference-store.adminService" -}}
apiVersion: v1
kind: Service
{{ include "inference-store.metadata" (dict "root" .root "component" .component "name" (printf "%s-%s-admin" (include "inference-store.fullname" .root) .component) "labels" (dict "inference-store/port" "admin")) }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "inference-store.selector" . | nindent 4 }}
  ports:
    - {name: admin, port: {{ .adminPort }}, targetPort: admin}
{{- end -}}

{{- /* Takes `budget` too. */ -}}
{{- define "inference-store.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
{{ include "inference-store.metadata" (dict "root" .root "component" .component) }}
spec:
  {{- toYaml (default (dict "maxUnavailable" 1) (omit .budget "enabled")) | nindent 2 }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "inference-store.selector" . | nindent 6 }}
{{- end -}}

{{- define "inference-store.autoscaler" -}}
{{- $own := (index .root.Values .component).autoscaling -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
{{ include "inference-store.metadata" (dict "root" .root "component" .component) }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "inference-store.fullname" .root }}-{{ .component }}}
  minReplicas: {{ toJson $own.minReplicas }}
  maxReplicas: {{ toJson $own.maxReplicas }}
  metrics:
    {{- if eq .component "ingester" }}
    - type: Pods
      pods:
        metric: {name: inference_store_ingester_lag_events}
        target: {type: AverageValue, averageValue: {{ toJson $own.targetLagEvents | quote }}}
  behavior:
    # Every start and end of an ingester is a rebalance of all.
    scaleDown: {stabilizationWindowSeconds: 600}
    {{- else }}
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ toJson $own.targetCPUUtilizationPercentage }}}}
    {{- end }}
{{- end -}}

{{- /* The Service that callers have. A gateway has to be told that gRPC without TLS is HTTP/2; with it the
       two agree by ALPN. */ -}}
{{- define "inference-store.service" -}}
{{- $own := index .root.Values .component -}}
{{- $service := $own.service -}}
{{- $plain := dict "http" (eq .component "proxy" | ternary "http" "") "grpc" "kubernetes.io/h2c" -}}
apiVersion: v1
kind: Service
{{ include "inference-store.metadata" (dict "root" .root "component" .component "annotations" $service.annotations) }}
spec:
  type: {{ $service.type }}
  {{- with $service.loadBalancerSourceRanges }}
  loadBalancerSourceRanges: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range default list $own.upstreams }}
  {{- if .cloud_events }}
  # A call's two events have to reach one pod; a logger opens a connection for each.
  sessionAffinity: ClientIP
  {{- break }}
  {{- end }}
  {{- end }}
  selector: {{- include "inference-store.selector" . | nindent 4 }}
  ports:
    {{- range $name := list "http" "grpc" }}
    {{- $port := eq $name "http" | ternary "port" "grpcPort" }}
    {{- if hasKey $service $port }}
    - name: {{ $name }}
      port: {{ toJson (index $service $port) }}
      targetPort: {{ $name }}
      {{- with index $service (eq $name "http" | ternary "nodePort" "grpcNodePort") }}
      nodePort: {{ toJson . }}
      {{- end }}
      {{- with empty $own.tlsSecret | ternary (index $plain $name) "https" }}
      appProtocol: {{ . }}
      {{- end }}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "inference-store.ingress" -}}
{{- $own := (index .root.Values .component).ingress -}}
{{- $service := printf "%s-%s" (include "inference-store.fullname" .root) .component -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
{{ include "inference-store.metadata" (dict "root" .root "component" .component "annotations" $own.annotations) }}
spec:
  {{- with $own.className }}
  ingressClassName: {{ . }}
  {{- end }}
  rules:
    {{- range $host := $own.hosts }}
    {{- $host = kindIs "map" $host | ternary $host (dict "host" $host) }}
    - host: {{ $host.host | quote }}
      http:
        paths:
          {{- range default (list dict) $host.paths }}
          - path: {{ default "/" .path }}
            pathType: {{ default "Prefix" .pathType }}
            backend: {service: {name: {{ $service }}, port: {name: http}}}
          {{- end }}
    {{- end }}
  {{- with $own.tls }}
  tls: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* Takes `route` and `protocol` too. */ -}}
{{- define "inference-store.route" -}}
apiVersion: gateway.networking.k8s.io/v1
kind: {{ .protocol }}Route
{{ include "inference-store.metadata" (dict "root" .root "component" .component "annotations" .route.annotations) }}
spec:
  parentRefs: {{- toYaml .route.parentRefs | nindent 4 }}
  {{- with .route.hostnames }}
  hostnames: {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    - backendRefs:
        - name: {{ include "inference-store.fullname" .root }}-{{ .component }}
          port: {{ toJson (index (index .root.Values .component).service (eq .protocol "HTTP" | ternary "port" "grpcPort")) }}
{{- end -}}
