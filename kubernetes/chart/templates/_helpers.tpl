{{- define "gpuwarden.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuwarden.fullname" -}}
{{- $name := include "gpuwarden.name" . -}}
{{- $joined := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $joined .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuwarden.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "gpuwarden.serviceAccount" -}}
{{- default (.Values.serviceAccount.create | ternary (include "gpuwarden.fullname" .) "default") .Values.serviceAccount.name -}}
{{- end -}}

{{- define "gpuwarden.selector" -}}
app.kubernetes.io/name: {{ include "gpuwarden.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gpuwarden.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "gpuwarden.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "gpuwarden.image" -}}
{{- $tag := printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- if .Values.image.digest }}{{ $tag }}@{{ .Values.image.digest }}{{ else }}{{ $tag }}{{ end -}}
{{- end -}}

{{/* What the container may do: root, since an engine gives capabilities to no other user, and of root's rights those alone that a value asks for. */}}
{{- define "gpuwarden.securityContext" -}}
{{- if eq .Values.platform "gke" }}
privileged: true
runAsUser: 0
readOnlyRootFilesystem: true
{{- else }}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
  {{- with concat (.Values.kernelLog.enabled | ternary (list "SYSLOG") list) (.Values.jobs.signal | ternary (list "KILL" "SYS_PTRACE" "DAC_READ_SEARCH") list) }}
  add: [{{ join ", " . }}]
  {{- end }}
{{- end }}
{{- end -}}

{{/* The values; on GKE, which has no GPU Feature Discovery, GKE's own label in place of that one's. */}}
{{- define "gpuwarden.nodes" -}}
{{- $selector := .Values.nodeSelector -}}
{{- $affinity := .Values.affinity -}}
{{- if eq .Values.platform "gke" -}}
{{- $selector = omit $selector "nvidia.com/gpu.present" -}}
{{- if not $affinity -}}
{{- $terms := list (dict "matchExpressions" (list (dict "key" "cloud.google.com/gke-accelerator" "operator" "Exists"))) -}}
{{- $affinity = dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "selector" $selector "affinity" $affinity) -}}
{{- end -}}

{{/* gpuwarden.toml, of the values. */}}
{{- define "gpuwarden.toml" -}}
mode = {{ .Values.mode | quote }}
{{- if .Values.hostMounts.enabled }}
[paths]
host = "/host"
{{- else }}
[collectors.storage] # the mounts of the node are not here: hostMounts.enabled
enabled = false
{{- end }}
[publish]
listen = "{{ .Values.listen }}:{{ .Values.port }}"
{{- if .Values.webConfig.secretName }}
web_config = "/etc/gpuwarden-web/web-config.yml"
{{- end }}
{{- if or .Values.kubernetes.enabled .Values.kubernetes.podLabels }}
[kubernetes]
{{- if .Values.kubernetes.enabled }}
enabled = true
{{- if eq .Values.platform "gke" }}
pool = "cloud.google.com/gke-accelerator"
{{- end }}
{{- end }}
{{- if .Values.kubernetes.podLabels }}
pod_labels = true
{{- end }}
{{- end }}
{{- end -}}
