{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The settings of every deployment that warms up, as YAML. */ -}}
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

{{- /* The applications, with the settings of serve-warm.warmup in each deployment that has user_config.warmup. A loop instead of sprig's merge, which treats `false` and 0 as unset. */ -}}
{{- define "serve-warm.applications" -}}
{{- $settings := include "serve-warm.warmup" . | fromYaml -}}
{{- $applications := list -}}
{{- range .Values.applications -}}
{{- $application := deepCopy . -}}
{{- range $deployment := $application.deployments -}}
{{- if hasKey ($deployment.user_config | default dict) "warmup" -}}
{{- $own := $deployment.user_config.warmup | default dict -}}
{{- $seats := include "serve-warm.seatSettings" (dict "root" $ "deployment" .) | fromYaml -}}
{{- range $name, $value := $settings -}}
{{- if not (hasKey $own $name) -}}
{{- $_ := set $own $name $value -}}
{{- end -}}
{{- end -}}
{{- if $seats -}}
{{- $_ := set $own "seats" $seats -}}
{{- end -}}
{{- if and $own.artifact (not $own.application) -}}
{{- /* The container that signs runs no model code, so it cannot derive the name as replicas do. The name does not depend on build.enabled, so that artifacts are still found without the Job. */ -}}
{{- $_ := set $own "application" (regexReplaceAll "[:.][^:.]*$" $application.import_path "") -}}
{{- end -}}
{{- $_ := set $deployment.user_config "warmup" $own -}}
{{- if gt (include "serve-warm.seatsWanted" (dict "root" $ "deployment" .) | int) 0 -}}
{{- include "serve-warm.addSeatHook" (dict "application" $application "deployment" $deployment) -}}
{{- end -}}
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
  host: {{ $serve.host | quote }}
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
