{{- /* A proxy inside another's pod, beside the model server: what the pod's template gets, as YAML
       with `metadata` and `spec`. Takes {root}; from a chart that has this one among its
       dependencies: (dict "root" (index .Subcharts "inference-store")). */ -}}
{{- define "inference-store.proxySidecar" -}}
{{- $own := .root.Values.proxy.sidecar -}}
{{- $full := include "inference-store.fullname" .root -}}
{{- $context := dict "root" .root "component" "proxy" "sidecar" true "name" $own.containerName "adminPort" 9104 -}}
{{- $_ := set $context "ports" (list (dict "name" $own.portName "port" $own.port) (dict "name" $own.grpcPortName "port" $own.grpcPort)) -}}
{{- $_ := set $context "configMap" (printf "%s-proxy-sidecar" $full) -}}
{{- $_ := set $context "configuration" (include "inference-store.proxyConfigMap" $context) -}}
{{- $_ := set $context "resources" $own.resources -}}
metadata:
  labels: {inference-store/proxy: sidecar}
spec:
  {{- if hasPrefix "inference-store" $full }}
  # Else Kubernetes sets variables of our Services that read as settings, such as INFERENCE_STORE_API_PORT.
  enableServiceLinks: false
  {{- end }}
  {{- include "inference-store.pullSecrets" .root | indent 2 }}
  {{ $own.native | ternary "initContainers" "containers" }}: {{- include "inference-store.container" $context | nindent 4 }}
    {{- if $own.native }}
      restartPolicy: Always
    {{- end }}
  volumes: {{- include "inference-store.volumes" $context | nindent 4 }}
{{- end -}}
