{{/* The coordinator's variables. Every flag of it is one. */}}
{{- define "leasehold.environment" -}}
{{- $anywhere := .Values.ipv6 | ternary "[::]" "0.0.0.0" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: LEASEHOLD_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: LEASEHOLD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: LEASEHOLD_SERVICE
  value: leasehold-coordinator
- name: LEASEHOLD_LISTEN
  value: {{ printf "%s:7400" $anywhere | quote }}
- name: LEASEHOLD_HTTP_LISTEN
  value: {{ printf "%s:7401" $anywhere | quote }}
- name: LEASEHOLD_WEBHOOK_LISTEN
  value: {{ printf "%s:7403" $anywhere | quote }}
- name: LEASEHOLD_ADVERTISE
  value: {{ .Values.ipv6 | ternary "[$(POD_IP)]:7400" "$(POD_IP):7400" | quote }}
- name: LEASEHOLD_LOG_FORMAT
  value: {{ .Values.logFormat }}
- name: RUST_LOG
  value: {{ .Values.logLevel | quote }}
{{- with .Values.namespaces }}
- name: LEASEHOLD_WATCH_NAMESPACE
  value: {{ join "," . | quote }}
{{- end }}
{{- with include "leasehold.agentImage" . }}
- name: LEASEHOLD_AGENT_IMAGE
  value: {{ quote . }}
{{- end }}
{{- $secrets := list }}
{{- range .Values.agent.pullSecrets }}{{ $secrets = append $secrets .name }}{{ end }}
{{- with $secrets }}
- name: LEASEHOLD_AGENT_PULL_SECRETS
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.agent.user }}
- name: LEASEHOLD_AGENT_USER
  value: {{ quote . }}
{{- end }}
{{- with .Values.agent.coordinator }}
- name: LEASEHOLD_AGENT_COORDINATOR
  value: {{ quote . }}
{{- end }}
{{- if eq .Values.certificates.source "cert-manager" }}
- name: LEASEHOLD_TLS_CERT
  value: /etc/leasehold/tls/tls.crt
- name: LEASEHOLD_TLS_KEY
  value: /etc/leasehold/tls/tls.key
{{- end }}
{{- with .Values.webhook.clientAuthorities }}
{{- if .configMap }}
- name: LEASEHOLD_WEBHOOK_CLIENT_CA
  value: /etc/leasehold/webhook-clients/ca.crt
{{- end }}
{{- with .commonName }}
- name: LEASEHOLD_WEBHOOK_CLIENT_NAME
  value: {{ quote . }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
