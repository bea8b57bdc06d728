{{/*
ACL rules by role, word for word those of retire.registry.acl; tests/chart compares them. Call with (list "sidecar" password).
*/}}
{{- define "retire.aclUser" -}}
{{- $connection := "auth hello ping select echo client|setinfo client|setname client|id cluster|slots cluster|shards cluster|nodes cluster|myid command readonly info time" -}}
{{- $reads := "eval_ro evalsha_ro get exists hget hmget hgetall hkeys hexists zrange xrange xread" -}}
{{- $writes := "eval evalsha hset hdel hincrby zadd zrem xadd pexpire waitaof" -}}
{{- $administers := "set del" -}}
{{- $tenant := list "meta" "scopes" "children" "joins" "leases" "pins" "pinends" "events" "idem:*" -}}
{{- $role := index . 0 -}}
{{- $patterns := list -}}
{{- $commands := "" -}}
{{- if eq $role "operator" -}}
{{- $patterns = list "~retire:*" -}}
{{- $commands = printf "%s %s %s %s" $connection $reads $writes $administers -}}
{{- else if eq $role "sidecar" -}}
{{- $patterns = list "~retire:registry" -}}
{{- range $tenant }}{{ $patterns = append $patterns (printf "~retire:{*}:%s" .) }}{{ end -}}
{{- $patterns = append $patterns "%R~retire:{*}:quota" -}}
{{- $commands = printf "%s %s %s" $connection $reads $writes -}}
{{- else -}}
{{- $patterns = list "%R~retire:*" -}}
{{- $commands = printf "%s %s" $connection $reads -}}
{{- end -}}
{{- $granted := list -}}
{{- range splitList " " $commands }}{{ $granted = append $granted (printf "+%s" .) }}{{ end -}}
user {{ $role }} reset on #{{ index . 1 | sha256sum }} resetchannels {{ join " " $patterns }} {{ join " " $granted }}
{{- end -}}
