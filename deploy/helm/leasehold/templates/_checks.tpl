{{/* Refuses texts whose form is wrong. The schema leaves them to this, which says what to write. */}}
{{- define "leasehold.forms" -}}
{{- $values := .Values }}
{{- with $values.image.digest }}
{{- if not (regexMatch "^sha256:[0-9a-f]{64}$" .) }}
{{- printf "invalid image.digest %q: expected sha256: and 64 hexadecimal digits" . | fail }}
{{- end }}
{{- end }}
{{- with $values.agent.user }}
{{- if not (regexMatch "^(none|[1-9][0-9]*(:[0-9]+)?)$" .) }}
{{- printf "invalid agent.user %q: use UID:GID without root, for example 10001:10001, or none" . | fail }}
{{- end }}
{{- end }}
{{- with $values.agent.coordinator }}
{{- if not (regexMatch "^[^/]+:[0-9]+$" .) }}
{{- printf "invalid agent.coordinator %q: expected HOST:PORT" . | fail }}
{{- end }}
{{- end }}
{{- range $name := list "podMonitor" "serviceMonitor" "agents" }}
{{- $interval := (index $values.monitoring $name).interval | default "" }}
{{- if not (regexMatch "^([0-9]+(ms|s|m|h))+$" $interval) }}
{{- printf "invalid monitoring.%s.interval %q: use a number with a unit, for example 15s" $name $interval | fail }}
{{- end }}
{{- end }}
{{- range $name := list "apiServerAddresses" "hostNetworkNodes" }}
{{- range index $values.networkPolicy $name }}
{{- if not (regexMatch "^[0-9a-fA-F.:]+/[0-9]{1,3}$" .) }}
{{- printf "invalid address %q in networkPolicy.%s: expected ADDRESS/BITS, for example 192.0.2.7/32" . $name | fail }}
{{- end }}
{{- end }}
{{- end }}
{{- $served := dict "namespaces" $values.namespaces }}
{{- $excluded := dict "webhook.excludedNamespaces" $values.webhook.excludedNamespaces }}
{{- $monitoring := dict "monitoring.namespace" (compact (list $values.monitoring.namespace)) }}
{{- range $value, $names := merge $served $excluded $monitoring }}
{{- range $names }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" .) }}
{{- printf "invalid namespace %q in %s: use lower-case letters, digits and hyphens" . $value | fail }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuses values that are right each by itself, but not together or not in this cluster. */}}
{{- define "leasehold.checks" -}}
{{- $values := .Values }}
{{- $own := .Release.Namespace }}

{{- include "leasehold.forms" . }}

{{- if has $own (list "default" "kube-system") }}
{{- printf "the release's namespace is %q: the coordinator needs one of its own; use --namespace leasehold-system --create-namespace" $own | fail }}
{{- end }}

{{- if has $own $values.namespaces }}
{{- printf "namespaces: %q is the release's own namespace, whose pods never get agents; take it out" $own | fail }}
{{- end }}
{{- if and $values.fence.enabled (has "kube-system" $values.namespaces) }}
{{- fail "namespaces: the fence refuses all that the coordinator does in \"kube-system\"; take it out, or set fence.enabled to false" }}
{{- end }}
{{- if and $values.namespaces $values.webhook.excludedNamespaces }}
{{- fail "webhook.excludedNamespaces is for installations that serve all namespaces; leave it empty, and name in `namespaces` only those that are to be served" }}
{{- end }}

{{- range $name := list "fence" "podRegister" }}
{{- if and (index $values $name).enabled (semverCompare "<1.30.0-0" $.Capabilities.KubeVersion.Version) }}
{{- printf "%s.enabled needs Kubernetes 1.30 or newer, for ValidatingAdmissionPolicies, and this is %s; set it to false" $name $.Capabilities.KubeVersion.Version | fail }}
{{- end }}
{{- end }}

{{- with $values.webhook.clientAuthorities }}
{{- if and .commonName (not .configMap) }}
{{- fail "webhook.clientAuthorities.commonName needs webhook.clientAuthorities.configMap: name the ConfigMap with the authorities as ca.crt, for example leasehold-webhook-clients" }}
{{- end }}
{{- end }}

{{- if and $values.certificates.issuerRef.name (ne $values.certificates.source "cert-manager") }}
{{- fail "certificates.issuerRef counts only with cert-manager; set certificates.source to cert-manager, or leave certificates.issuerRef.name empty" }}
{{- end }}

{{- with $values.networkPolicy }}
{{- if and (not .enabled) (or .apiServerAddresses .hostNetworkNodes .egress.enabled) }}
{{- fail "networkPolicy.enabled is false, so that apiServerAddresses, hostNetworkNodes and egress limit nothing; set it to true, or leave them out" }}
{{- end }}
{{- range $name := list "podMonitor" "serviceMonitor" }}
{{- if and $values.networkPolicy.enabled (index $values.monitoring $name).enabled (not $values.monitoring.namespace) }}
{{- printf "monitoring.%s needs monitoring.namespace: name the namespace that Prometheus runs in, for example monitoring, or the network policy keeps it from the metrics" $name | fail }}
{{- end }}
{{- end }}
{{- end }}
{{- with $values.monitoring }}
{{- if and .podMonitor.enabled .serviceMonitor.enabled }}
{{- fail "monitoring.podMonitor and monitoring.serviceMonitor have each replica scraped twice; set one of them to enabled: false" }}
{{- end }}
{{- end }}

{{- if and $values.priorityClass.create (not $values.priorityClass.name) }}
{{- fail "priorityClass.name is empty: name the class that is to be made, or set priorityClass.create to false" }}
{{- end }}

{{- $seen := dict }}
{{- range include "leasehold.environment" . | fromYamlArray }}
{{- if hasKey $seen .name }}
{{- printf "extraEnv: %s is set by the chart already; use its own value for that, or name each variable once" .name | fail }}
{{- end }}
{{- $_ := set $seen .name true }}
{{- end }}
{{- range $label, $_ := $values.podLabels }}
{{- if has $label (list "app.kubernetes.io/name" "app.kubernetes.io/component" "app.kubernetes.io/part-of") }}
{{- printf "podLabels: %s is set by the chart; take it out" $label | fail }}
{{- end }}
{{- end }}
{{- end }}
