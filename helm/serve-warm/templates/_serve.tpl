{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The settings that every warming deployment gets, as YAML. */ -}}
{{- define "serve-warm.warmup" -}}
{{- $settings := dict -}}
{{- range $name, $value := .Values.warmup -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- end -}}
{{- with include "serve-warm.store" . -}}
{{- $_ := set $settings "artifact" . -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- /* The applications, with those settings in each deployment that has user_config.warmup. A loop and not
       sprig's merge, which takes `false` and 0 for unset. */ -}}
{{- define "serve-warm.applications" -}}
{{- $settings := include "serve-warm.warmup" . | fromYaml -}}
{{- $applications := list -}}
{{- range .Values.applications -}}
{{- $application := deepCopy . -}}
{{- range $deployment := $application.deployments -}}
{{- if hasKey ($deployment.user_config | default dict) "warmup" -}}
{{- $own := $deployment.user_config.warmup | default dict -}}
{{- range $name, $value := $settings -}}
{{- if not (hasKey $own $name) -}}
{{- $_ := set $own $name $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $deployment.user_config "warmup" $own -}}
{{- end -}}
{{- end -}}
{{- $applications = append $applications $application -}}
{{- end -}}
{{- dict "applications" $applications | toYaml -}}
{{- end -}}

{{- define "serve-warm.serveConfig" -}}
{{- $serve := .Values.serve -}}
proxy_location: {{ $serve.proxyLocation }}
http_options:
  host: 0.0.0.0
  port: {{ $serve.port }}
  {{- with $serve.httpOptions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $serve.loggingConfig }}
logging_config:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "serve-warm.applications" . }}
{{- end -}}
