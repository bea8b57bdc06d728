{{/* Egress rules that several pods need. */}}
{{- define "retire.egress.dns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- define "retire.egress.apiServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- end -}}

{{- define "retire.egress.registry" -}}
{{- if include "retire.bundled" . -}}
- to:
    - podSelector:
        matchLabels:
          {{- include "retire.selectorLabels" (list . "registry") | nindent 10 }}
  ports:
    - {port: 6379, protocol: TCP}
{{- else -}}
- ports:
    {{- range .Values.registry.external.ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.registry.external.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- end -}}
{{- end -}}
