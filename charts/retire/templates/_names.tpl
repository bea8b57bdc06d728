{{/* Names, labels and images. */}}
{{- define "retire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 characters leave room for every suffix within the 63 of a label. */}}
{{- define "retire.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "retire.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "retire.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Call with (list . "component"). */}}
{{- define "retire.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "retire.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "retire.labels" -}}
{{- $root := index . 0 -}}
{{ include "retire.selectorLabels" . }}
app.kubernetes.io/part-of: retire
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a pod: no versions, so that an upgrade of the chart alone restarts nothing. */}}
{{- define "retire.podLabels" -}}
{{ include "retire.selectorLabels" . }}
app.kubernetes.io/part-of: retire
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Peers of NetworkPolicies: pods of every release of the namespace, so that pools share one registry. */}}
{{- define "retire.peerLabels" -}}
app.kubernetes.io/part-of: retire
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* Call with (list . .Values.image.operator). */}}
{{- define "retire.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- with $image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "retire.operatorAccount" -}}{{ include "retire.fullname" . }}-operator{{- end -}}
{{- define "retire.nodeAccount" -}}{{ include "retire.fullname" . }}-node{{- end -}}
