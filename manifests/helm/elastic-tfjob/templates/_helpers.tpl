{{/*
The operator's image.
*/}}
{{- define "elastic-tfjob.image" -}}
{{ .Values.image.registry }}/{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/*
The objects of a manifest under files/, which kustomize uses too: those that belong to a namespace get the release's, and
so does each ServiceAccount that a binding names. Takes a list: the root context and the file's name.
*/}}
{{- define "elastic-tfjob.manifest" -}}
{{- $namespace := (index . 0).Release.Namespace }}
{{- $text := (index . 0).Files.Get (index . 1) | required (printf "%s is not in the chart" (index . 1)) }}
{{- $everywhere := list "ClusterRole" "ClusterRoleBinding" "CustomResourceDefinition" "PriorityClass"
  "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding" }}
{{- $root := index . 0 }}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . }}
{{- if hasKey $object "Error" }}{{ fail $object.Error }}{{ end }}
{{- if not (has $object.kind $everywhere) }}
{{- $_ := set $object.metadata "namespace" $namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $namespace }}
{{- end }}
{{- if eq $object.kind "CustomResourceDefinition" }}
{{- $keep := dict "helm.sh/resource-policy" "keep" }}
{{- $_ := set $object.metadata "annotations" (merge $keep ($object.metadata.annotations | default dict)) }}
{{- end }}
{{- if has $object.kind (list "ServiceMonitor" "PodMonitor" "PrometheusRule") }}
{{- include "elastic-tfjob.monitoring" (list $root $object) }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{/*
What the values say of an object that the Prometheus Operator reads: labels by which a Prometheus selects it, annotations,
another namespace, and how often is scraped. Takes a list: the root context and the object, which it changes.
*/}}
{{- define "elastic-tfjob.monitoring" -}}
{{- $object := index . 1 }}
{{- $values := (index . 0).Values.prometheus }}
{{- $_ := set $object.metadata "labels" (merge ($object.metadata.labels | default dict) ($values.labels | default dict)) }}
{{- with $values.annotations }}
{{- $_ := set $object.metadata "annotations" . }}
{{- end }}
{{- with $values.namespace }}
{{- $_ := set $object.metadata "namespace" . }}
{{- end }}
{{- if and $values.namespace (eq $object.kind "ServiceMonitor") }}
{{- $_ := set $object.spec "namespaceSelector" (dict "matchNames" (list (index $ 0).Release.Namespace)) }}
{{- end }}
{{- with $values.interval }}
{{- $interval := . }}
{{- range concat ($object.spec.endpoints | default list) ($object.spec.podMetricsEndpoints | default list) }}
{{- $_ := set . "interval" $interval }}
{{- end }}
{{- end }}
{{- end }}
