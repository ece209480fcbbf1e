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
---
{{ toYaml $object }}
{{- end }}
{{- end }}
