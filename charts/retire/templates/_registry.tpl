{{/* The registry's address, Secrets and passwords. */}}
{{- define "retire.bundled" -}}
{{- if eq .Values.registry.mode "bundled" }}true{{ end -}}
{{- end -}}

{{/* Not empty when this release runs a registry that speaks TLS. */}}
{{- define "retire.registryTls" -}}
{{- if and (include "retire.bundled" .) .Values.registry.bundled.tls }}true{{ end -}}
{{- end -}}

{{- define "retire.registryCaSecret" -}}
{{- if eq .Values.registry.mode "external" -}}{{ .Values.registry.external.caSecret }}
{{- else if include "retire.registryTls" . -}}{{ include "retire.tlsSecret.registry" . }}
{{- end -}}
{{- end -}}

{{- define "retire.registryClients" -}}
{{- if and (eq .Values.registry.mode "external") .Values.registry.external.existingSecret -}}
{{- .Values.registry.external.existingSecret -}}
{{- else -}}{{ include "retire.fullname" . }}-registry-clients{{- end -}}
{{- end -}}

{{/* Call with (list . "sidecar"). */}}
{{- define "retire.env.registry" -}}
- name: RETIRE_REGISTRY_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "retire.registryClients" (index . 0) }}
      key: {{ index . 1 }}-url
# Stated, because these users may not read the server's configuration.
- name: RETIRE_REGISTRY_DURABILITY
  value: {{ ternary "fsync-always" (index . 0).Values.registry.external.durability (eq (index . 0).Values.registry.mode "bundled") }}
{{- end -}}

{{/* Call with (list . "sidecar" password). */}}
{{- define "retire.registryUrl" -}}
{{- $root := index . 0 -}}
{{- $tls := include "retire.registryTls" $root -}}
{{- $host := printf "%s-registry.%s.svc" (include "retire.fullname" $root) $root.Release.Namespace -}}
{{- printf "%s://%s:%s@%s:6379/0%s" (ternary "rediss" "redis" (not (empty $tls))) (index . 1) (index . 2) $host (ternary "?ssl_ca_certs=/etc/retire/registry-tls/ca.crt" "" (not (empty $tls))) -}}
{{- end -}}

{{/* Passwords by role, as JSON: given, else kept, else new. Only for the one file that renders both Secrets. */}}
{{- define "retire.passwords" -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace (printf "%s-registry-server" (include "retire.fullname" .)) -}}
{{- $had := "" -}}
{{- if $kept }}{{ $had = get (default dict $kept.metadata.annotations) "serving.retire.dev/password-rotation" }}{{ end -}}
{{- $keep := eq $had (.Values.registry.bundled.passwordRotation | toString) -}}
{{- $result := dict -}}
{{- range $role := list "operator" "sidecar" "reader" -}}
{{- $password := get $.Values.registry.bundled.passwords $role -}}
{{- if and (not $password) $keep }}{{ $password = index $kept.data (printf "%s-password" $role) | b64dec }}{{ end -}}
{{- $_ := set $result $role (default (randAlphaNum 40) $password) -}}
{{- end -}}
{{- $result | toJson -}}
{{- end -}}

{{/* Durable before it answers, never evicts, no user but those of the ACL file. */}}
{{- define "retire.valkeyConf" -}}
{{- $tls := include "retire.registryTls" . -}}
bind * -::*
{{- if $tls }}
port 0
tls-port 6379
tls-cert-file /etc/retire/tls/tls.crt
tls-key-file /etc/retire/tls/tls.key
tls-ca-cert-file /etc/retire/tls/ca.crt
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
tls-auto-reload-interval 30
{{- else }}
port 6379
{{- end }}
dir /data
databases 1
save ""
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-load-truncated yes
maxmemory {{ .Values.registry.bundled.maxMemory }}
maxmemory-policy noeviction
aclfile /etc/valkey-users/users.acl
{{- end -}}
