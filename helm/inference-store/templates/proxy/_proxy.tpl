{{- /* Settings of a proxy, as a ConfigMap's data: of what everybody has the log, Kafka, S3, TLS of the
       admin port and what is in `settings`; nothing of Postgres and of the api. Takes {root}, and
       `sidecar`: it is in another's pod. */ -}}
{{- define "inference-store.proxySettings" -}}
{{- $v := .root.Values -}}
{{- $p := $v.proxy -}}
{{- $s := dict -}}
{{- range $name, $value := include "inference-store.allSettings" .root | fromJson -}}
{{- if regexMatch "^(LOG|KAFKA|S3|AWS|ADMIN|PROXY)_" $name -}}{{- $_ := set $s $name $value -}}{{- end -}}
{{- end -}}
{{- $s = merge $s (include "inference-store.ownProxySettings" . | fromJson) -}}
{{- with $p.kafka.username -}}
{{- $_ := set $s (eq $v.kafka.sasl.mechanism "OAUTHBEARER" | ternary "KAFKA_OAUTH_CLIENT_ID" "KAFKA_SASL_USERNAME") . -}}
{{- end -}}
{{- if $p.kafka.clientCertificateSecret -}}
{{- $_ := set $s "KAFKA_CERTIFICATE_FILE" "/etc/inference-store/kafka-certificate/tls.crt" -}}
{{- $_ := set $s "KAFKA_KEY_FILE" "/etc/inference-store/kafka-certificate/tls.key" -}}
{{- end -}}
{{- include "inference-store.data" (dict "root" .root "settings" $s) -}}
{{- end -}}

{{- /* Those that a proxy has alone, and that the chart makes, as JSON. Takes {root}, and `sidecar`. */ -}}
{{- define "inference-store.ownProxySettings" -}}
{{- $p := .root.Values.proxy -}}
{{- $own := dict "PROXY_HOST" "0.0.0.0" "ADMIN_HOST" "0.0.0.0" "PROXY_ADMIN_PORT" "9104" -}}
{{- $_ := set $own "PROXY_PORT" "8090" -}}
{{- $_ := set $own "PROXY_GRPC_PORT" "8091" -}}
{{- if .sidecar -}}
{{- $_ := set $own "PROXY_PORT" (include "inference-store.text" $p.sidecar.port) -}}
{{- $_ := set $own "PROXY_GRPC_PORT" (include "inference-store.text" $p.sidecar.grpcPort) -}}
{{- $_ := set $own "PROXY_GRACE_SECONDS" (include "inference-store.text" $p.sidecar.graceSeconds) -}}
{{- else -}}
{{- /* 5 s go to the Service, which has to forget the pod; 10 s to the last report. */ -}}
{{- $_ := set $own "PROXY_GRACE_SECONDS" (include "inference-store.text" (sub (int64 $p.terminationGracePeriodSeconds) 15)) -}}
{{- end -}}
{{- $_ := set $own "PROXY_CONFIG" "/etc/inference-store/proxy/proxy.yaml" -}}
{{- if and $p.tlsSecret (not .sidecar) -}}
{{- $_ := set $own "PROXY_TLS_CERTIFICATE_FILE" "/etc/inference-store/proxy-tls/tls.crt" -}}
{{- $_ := set $own "PROXY_TLS_KEY_FILE" "/etc/inference-store/proxy-tls/tls.key" -}}
{{- end -}}
{{- with include "inference-store.registryUrl" . -}}
{{- $_ := set $own "PROXY_REGISTRY_URL" . -}}
{{- /* Outlives the container, not the pod. */ -}}
{{- $_ := set $own "PROXY_REGISTRY_FILE" "/tmp/registrations.json" -}}
{{- end -}}
{{- if include "inference-store.spools" .root -}}
{{- $_ := set $own "PROXY_SPOOL" $p.spool.mode -}}
{{- $_ := set $own "PROXY_SPOOL_DIRECTORY" "/var/spool/inference-store" -}}
{{- $_ := set $own "PROXY_SPOOL_BYTES" (include "inference-store.text" $p.spool.bytes) -}}
{{- $_ := set $own "PROXY_SPOOL_FSYNC" (ternary "on" "off" $p.spool.fsync) -}}
{{- end -}}
{{- toJson $own -}}
{{- end -}}

{{- /* Not empty: captures may go to disk. YAML reads the bare word off as a boolean. */ -}}
{{- define "inference-store.spools" -}}
{{- if has .Values.proxy.spool.mode (list "overflow" "all") -}}yes{{- end -}}
{{- end -}}

{{- /* The configuration's file; takes {root}, and `sidecar`. */ -}}
{{- define "inference-store.proxyConfiguration" -}}
{{- $p := .root.Values.proxy -}}
{{- $upstreams := $p.upstreams -}}
{{- if .sidecar -}}
{{- $one := dict "name" "model-server" "protocols" $p.sidecar.protocols -}}
{{- with $p.sidecar.upstream -}}{{- $_ := set $one "url" . -}}{{- end -}}
{{- with $p.sidecar.upstreamGrpc -}}{{- $_ := set $one "grpc" . -}}{{- end -}}
{{- $upstreams = list $one -}}
{{- end -}}
{{- $models := $p.models -}}
{{- if not .sidecar -}}
{{- /* What `helm test` asks for is captured, whatever the rules of all others. */ -}}
{{- $models = prepend $models (dict "model" "inference-store-doctor") -}}
{{- end -}}
{{- toYaml (dict "upstreams" $upstreams "models" $models) -}}
{{- end -}}

{{- /* Which ConfigMap has it; takes {root}, and `sidecar`. */ -}}
{{- define "inference-store.proxyConfigMap" -}}
{{- $name := printf "%s-proxy" (include "inference-store.fullname" .root) -}}
{{- if .sidecar -}}{{- $name }}-sidecar-configuration
{{- else -}}{{- default (printf "%s-configuration" $name) .root.Values.proxy.existingConfigMap -}}
{{- end -}}
{{- end -}}

{{- define "inference-store.proxyScheme" -}}
{{- if .Values.proxy.tlsSecret }}https{{ else }}http{{ end -}}
{{- end -}}

{{- /* Not empty: `helm test` has somewhere to send a call. With a file of one's own only who wrote
       it knows: then it is sent where a path is given. */ -}}
{{- define "inference-store.proxyTested" -}}
{{- $p := .Values.proxy -}}
{{- $rest := $p.test.path -}}
{{- range $p.upstreams -}}{{- if or .url .omi -}}{{- $rest = "yes" -}}{{- end -}}{{- end -}}
{{- if and $p.enabled $rest -}}yes{{- end -}}
{{- end -}}

{{- /* Not empty: all that an inference passes through is here, so that `helm test` can send one. */ -}}
{{- define "inference-store.tested" -}}
{{- if and .Values.api.enabled .Values.ingester.enabled -}}yes{{- end -}}
{{- end -}}
