{{/* Certificates: who names which Secret, and what mode "helm" makes. */}}
{{- define "retire.tlsSecret.operator" -}}
{{- if eq .Values.tls.mode "existing" -}}
{{- required "tls.existing.operatorSecret must name a Secret when tls.mode is existing" .Values.tls.existing.operatorSecret -}}
{{- else -}}{{ include "retire.fullname" . }}-operator-tls{{- end -}}
{{- end -}}

{{- define "retire.tlsSecret.sidecar" -}}
{{- if eq .Values.tls.mode "existing" -}}
{{- required "tls.existing.sidecarSecret must name a Secret when tls.mode is existing" .Values.tls.existing.sidecarSecret -}}
{{- else -}}{{ include "retire.fullname" . }}-sidecar-tls{{- end -}}
{{- end -}}

{{- define "retire.tlsSecret.registry" -}}
{{- if eq .Values.tls.mode "existing" -}}
{{- required "tls.existing.registrySecret must name a Secret when tls.mode is existing and registry.bundled.tls is on" .Values.tls.existing.registrySecret -}}
{{- else -}}{{ include "retire.fullname" . }}-registry-tls{{- end -}}
{{- end -}}

{{/* Who has a certificate in this release: a JSON list. */}}
{{- define "retire.tlsHolders" -}}
{{- $holders := list -}}
{{- if .Values.operator.enabled }}{{ $holders = append $holders "operator" }}{{ end -}}
{{- if .Values.node.enabled }}{{ $holders = append $holders "sidecar" }}{{ end -}}
{{- if include "retire.registryTls" . }}{{ $holders = append $holders "registry" }}{{ end -}}
{{- $holders | toJson -}}
{{- end -}}

{{/* Call with (list . "operator"): subject alternative names as a JSON list. */}}
{{- define "retire.tlsNames" -}}
{{- $root := index . 0 -}}
{{- if eq (index . 1) "registry" -}}
{{- $host := printf "%s-registry" (include "retire.fullname" $root) -}}
{{- $ns := $root.Release.Namespace -}}
{{- list (printf "%s.%s.svc" $host $ns) (printf "%s.%s.svc.%s" $host $ns $root.Values.tls.clusterDomain) (printf "%s.%s" $host $ns) $host "localhost" | toJson -}}
{{- else -}}
{{- list (printf "%s.retire.internal" (index . 1)) | toJson -}}
{{- end -}}
{{- end -}}

{{- define "retire.annotation.rotation" -}}serving.retire.dev/tls-rotation{{- end -}}
{{- define "retire.annotation.caRotation" -}}serving.retire.dev/ca-rotation{{- end -}}

{{/*
The authority as JSON {cert, key, bundle, signerCert, signerKey}: kept as long as tls.caRotation stays. A new one is added to the bundle at once
and signs from the next tls.rotation on, so that every process trusts it before any process shows it.
*/}}
{{- define "retire.authority" -}}
{{- $name := printf "%s-ca" (include "retire.fullname" .) -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace $name -}}
{{- $result := dict -}}
{{- if $kept -}}
{{- $result = dict "cert" (index $kept.data "tls.crt" | b64dec) "key" (index $kept.data "tls.key" | b64dec) "bundle" (index $kept.data "ca.crt" | b64dec) -}}
{{- end -}}
{{- $asked := .Values.tls.caRotation | toString -}}
{{- $had := "" -}}
{{- if $kept }}{{ $had = get (default dict $kept.metadata.annotations) (include "retire.annotation.caRotation" .) }}{{ end -}}
{{- if ne $had $asked -}}
{{- $made := genCA (printf "%s authority %s" (include "retire.fullname" .) $asked) (int .Values.tls.caDays) -}}
{{- $bundle := $made.Cert -}}
{{- with $result.cert }}{{ $bundle = printf "%s%s" $made.Cert . }}{{ end -}}
{{- $result = dict "cert" $made.Cert "key" $made.Key "bundle" $bundle -}}
{{- end -}}
{{- $result | toJson -}}
{{- end -}}

{{/* Call with (list . holder authority): the kept certificate, or a new one when tls.rotation was raised. JSON {cert, key}. */}}
{{- define "retire.certificate" -}}
{{- $root := index . 0 -}}
{{- $holder := index . 1 -}}
{{- $authority := index . 2 -}}
{{- $kept := lookup "v1" "Secret" $root.Release.Namespace (printf "%s-%s-tls" (include "retire.fullname" $root) $holder) -}}
{{- $had := "" -}}
{{- if $kept }}{{ $had = get (default dict $kept.metadata.annotations) (include "retire.annotation.rotation" $root) }}{{ end -}}
{{- if and $kept (eq $had ($root.Values.tls.rotation | toString)) -}}
{{- dict "cert" (index $kept.data "tls.crt" | b64dec) "key" (index $kept.data "tls.key" | b64dec) | toJson -}}
{{- else -}}
{{- $names := include "retire.tlsNames" (list $root $holder) | fromJsonArray -}}
{{- $ca := buildCustomCert ($authority.cert | b64enc) ($authority.key | b64enc) -}}
{{- $made := genSignedCert (first $names) nil $names (int $root.Values.tls.certificateDays) $ca -}}
{{- dict "cert" $made.Cert "key" $made.Key | toJson -}}
{{- end -}}
{{- end -}}
