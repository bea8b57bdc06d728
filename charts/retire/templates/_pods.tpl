{{/* What every pod has in common: the restricted profile, placement, pull secrets. */}}
{{- define "retire.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "retire.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Call with (list . .Values.operator "operator"). */}}
{{- define "retire.placement" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if hasKey $part "topologySpreadConstraints" }}
topologySpreadConstraints:
  {{- with $part.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "retire.selectorLabels" (list $root (index . 2)) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "retire.env.podIp" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end -}}

{{/* Certificates of one process, and the authority of the registry. */}}
{{- define "retire.env.tls" -}}
- name: RETIRE_TLS_CERT
  value: /etc/retire/tls/tls.crt
- name: RETIRE_TLS_KEY
  value: /etc/retire/tls/tls.key
- name: RETIRE_TLS_CA
  value: /etc/retire/tls/ca.crt
{{- end -}}

{{- define "retire.mounts.tls" -}}
- name: tls
  mountPath: /etc/retire/tls
  readOnly: true
{{- if include "retire.registryCaSecret" . }}
- name: registry-tls
  mountPath: /etc/retire/registry-tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* Call with (list . "secret of the process"). Mode 0440 and fsGroup: readable by 65532 only. */}}
{{- define "retire.volumes.tls" -}}
{{- $root := index . 0 -}}
- name: tls
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
{{- with include "retire.registryCaSecret" $root }}
- name: registry-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- end -}}

{{/* The Kubernetes API for one container instead of the whole pod: token, authority, namespace. */}}
{{- define "retire.volumes.kubeApi" -}}
- name: kube-api
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end -}}

{{- define "retire.mounts.kubeApi" -}}
- name: kube-api
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}
