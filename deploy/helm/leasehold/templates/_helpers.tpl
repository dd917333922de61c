{{/* The labels of every object. They are in no selector. */}}
{{- define "leasehold.labels" -}}
app.kubernetes.io/part-of: leasehold
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels of the coordinator's objects. */}}
{{- define "leasehold.coordinatorLabels" -}}
app.kubernetes.io/component: coordinator
{{ include "leasehold.selector" . }}
{{ include "leasehold.labels" . }}
{{- end }}

{{/* The label by which the coordinator's pods are selected. */}}
{{- define "leasehold.selector" -}}
app.kubernetes.io/name: leasehold-coordinator
{{- end }}

{{/* The subjects of a binding: the coordinator. */}}
{{- define "leasehold.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: leasehold-coordinator
    namespace: {{ .Release.Namespace }}
{{- end }}

{{/* The user's name of the coordinator at the API server. */}}
{{- define "leasehold.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:leasehold-coordinator
{{- end }}

{{/* The coordinator's image. */}}
{{- define "leasehold.image" -}}
{{- with .Values.image }}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The agent's image; empty for the one that the coordinator names by itself. Beside a coordinator from
another registry, or with another tag, it is the one beside. A digest is of one image, so the agent's
has the chart's version then.
*/}}
{{- define "leasehold.agentImage" -}}
{{- if .Values.agent.image -}}
{{ .Values.agent.image }}
{{- else if or .Values.image.tag (ne .Values.image.repository "registry.invalid/leasehold/coordinator") }}
{{- if hasSuffix "/coordinator" .Values.image.repository }}
{{- $tag := empty .Values.image.digest | ternary .Values.image.tag "" | default .Chart.AppVersion }}
{{- trimSuffix "coordinator" .Values.image.repository }}agent:{{ $tag }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" where the coordinator reads nodes. */}}
{{- define "leasehold.readsNodes" -}}
{{- $always := eq .Values.readNodes "always" }}
{{- $all := and (eq .Values.readNodes "auto") (empty .Values.namespaces) }}
{{- if or $always $all }}true{{ end }}
{{- end }}

{{/* What the API server calls. */}}
{{- define "leasehold.webhookService" -}}
service:
  name: leasehold-coordinator
  namespace: {{ .Release.Namespace }}
  port: 443
{{- end }}

{{/* The namespaces whose pods are asked about. */}}
{{- define "leasehold.podNamespaces" -}}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      {{- if .Values.namespaces }}
      operator: In
      values: {{ toJson .Values.namespaces }}
      {{- else }}
      # The coordinator never waits for itself.
      operator: NotIn
      values: {{ prepend .Values.webhook.excludedNamespaces .Release.Namespace | toJson }}
      {{- end }}
{{- end }}

{{/* The namespaces whose classes and pipelines are asked about, where that is not all. */}}
{{- define "leasehold.servedNamespaces" -}}
{{- if .Values.namespaces }}
{{- include "leasehold.podNamespaces" . }}
{{- end }}
{{- end }}

{{/* Whom the API server trusts: cert-manager writes it. */}}
{{- define "leasehold.injectedAuthority" -}}
{{- if eq .Values.certificates.source "cert-manager" -}}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/leasehold-coordinator
{{- end }}
{{- end }}
