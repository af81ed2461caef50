{{- define "courser.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "courser.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "courser.labels" -}}
{{ include "courser.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "courser.secret" -}}
{{- .Values.existingSecret | default (include "courser.name" .) }}
{{- end }}

{{- /* With TLS, a ping would have to trust the certificate for the address 127.0.0.1. */}}
{{- define "courser.probe" -}}
{{- if .Values.tlsSecret -}}
tcpSocket:
  port: courser
{{- else -}}
exec:
  command: ["courser", "ping", "--url", "127.0.0.1:8090", "-o", "jsonl"]
{{- end }}
{{- end }}
