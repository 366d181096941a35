{{/* The release's name, which is the name of what it makes. */}}
{{- define "kvtierd.name" -}}
{{- if contains "kvtierd" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-kvtierd" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What pods are found by. Never changes: a DaemonSet's selector cannot. */}}
{{- define "kvtierd.selector" -}}
app.kubernetes.io/name: kvtierd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvtierd.labels" -}}
{{ include "kvtierd.selector" . }}
app.kubernetes.io/part-of: kvtierd
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "kvtierd.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The configuration file. Numbers are written as numbers: %v would make 1e+06 of a million. */}}
{{- define "kvtierd.config" -}}
socket: {{ .Values.socketFolder }}/kvtierd.sock
socket_mode: "0660"
{{- if not (hasKey .Values.config "operator_uids") }}
# Operators are who may exec into the pod, which makes them its user. Root in a worker's pod is none.
operator_uids: []
{{- end }}
{{- if .Values.tls.secretName }}
tcp: ["0.0.0.0:{{ int64 .Values.ports.grpc }}"]
tls_certificate: /etc/kvtierd-tls/tls.crt
tls_key: /etc/kvtierd-tls/tls.key
tls_client_ca: /etc/kvtierd-tls/ca.crt
tls_viewers: {{ toJson .Values.tls.viewers }}
tls_operators: {{ toJson .Values.tls.operators }}
{{- end }}
# Prometheus. Nobody is asked who they are, and it only reads: the NetworkPolicy closes it.
metrics_address: 0.0.0.0:{{ int64 .Values.ports.metrics }}
allow_insecure_metrics: true
backend: {{ .Values.backend }}
pool_bytes: {{ int64 .Values.pool.gibibytes }}GiB
huge_pages: {{ .Values.pool.hugePages }}
{{- if .Values.pool.keepIn }}
pool_path: {{ .Values.pool.keepIn }}/pool
{{- end }}
{{- if ge (int64 .Values.pool.numaNode) 0 }}
numa_node: {{ int64 .Values.pool.numaNode }}
{{- end }}
shutdown_grace: {{ int64 .Values.shutdownGraceSeconds }}s
{{- if not (hasKey .Values.config "log_format") }}
log_format: json
{{- end }}
{{- range $key, $value := .Values.config }}
{{ $key }}: {{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}

{{/* For kvtierctl, where the socket is not where it looks first. */}}
{{- define "kvtierd.socketFlag" -}}
{{- if ne .Values.socketFolder "/run/kvtierd" }}--socket={{ .Values.socketFolder }}/kvtierd.sock, {{ end }}
{{- end }}

{{/*
Memory as requested and limited: the pool and what is beside it, or that alone. What is written of
each cache of a kept pool lies on huge pages as well.
*/}}
{{- define "kvtierd.memory" -}}
{{- if eq .Values.pool.hugePages "require" -}}
hugepages-2Mi: {{ add (int64 .Values.pool.gibibytes) (ternary 1 0 (ne .Values.pool.keepIn "")) }}Gi
memory: {{ int64 .Values.resources.memoryOverheadGibibytes }}Gi
{{- else -}}
memory: {{ add (int64 .Values.pool.gibibytes) (int64 .Values.resources.memoryOverheadGibibytes) }}Gi
{{- end -}}
{{- end }}
