{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "serve-warm.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}

{{- define "serve-warm.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The labels that select the pods of this release. They have no version, because a changed pod template makes KubeRay replace the cluster. They have no app.kubernetes.io/name, because KubeRay's Services select pods by it. */ -}}
{{- define "serve-warm.podLabels" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* The image of a pod: the image of `group`, or else of all pods. A tag or a digest of the group replaces both the tag and the digest of all pods. */ -}}
{{- define "serve-warm.image" -}}
{{- $image := .root.Values.image -}}
{{- $own := .group.image | default dict -}}
{{- $version := or $own.tag $own.digest | empty | ternary $image $own -}}
{{- $own.repository | default $image.repository -}}
{{- with $version.tag }}:{{ . }}{{ end -}}
{{- with $version.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "serve-warm.pullPolicy" -}}
{{- (.group.image | default dict).pullPolicy | default .root.Values.image.pullPolicy -}}
{{- end -}}

{{- define "serve-warm.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "serve-warm.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "serve-warm.buildServiceAccountName" -}}
{{- if .Values.build.serviceAccount.create -}}
{{- default (printf "%s-build" (include "serve-warm.fullname" .)) .Values.build.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.build.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "serve-warm.store" -}}
{{- if .Values.artifact.store -}}
{{- .Values.artifact.store -}}
{{- else if .Values.artifact.volume -}}
file:///srv/serve_warm/artifacts
{{- end -}}
{{- end -}}

{{- /* Whether the chart creates the trust ConfigMap. */ -}}
{{- define "serve-warm.ownTrust" -}}
{{- $trust := .Values.trust -}}
{{- if or $trust.keys $trust.pinned $trust.unsignedOk -}}yes{{- end -}}
{{- end -}}

{{- define "serve-warm.trustConfigMap" -}}
{{- if .Values.trust.configMap -}}
{{- .Values.trust.configMap -}}
{{- else if include "serve-warm.ownTrust" . -}}
{{- printf "%s-trust" (include "serve-warm.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "serve-warm.trustToml" -}}
{{- $trust := .Values.trust -}}
{{- with $trust.pinned }}
pinned = {{ toJson . }}
{{- end }}
{{- with $trust.denied }}
denied = {{ toJson . }}
{{- end }}
{{- with $trust.maxAgeDays }}
max_age_days = {{ . }}
{{- end }}
{{- if ne ($trust.rollback | default "warn") "warn" }}
rollback = {{ toJson $trust.rollback }}
{{- end }}
{{- with $trust.require }}
require = { {{- range $index, $name := keys . | sortAlpha }}{{ if $index }}, {{ end }}{{ $name }} = {{ toJson (index $trust.require $name) }}{{ end -}} }
{{- end }}
{{- range $trust.keys }}

[[keys]]
name = {{ .name | toJson }}
pem = {{ printf "%s\n" (trim .pem) | toJson }}
{{- with .deployments }}
deployments = {{ toJson . }}
{{- end }}
{{- with .stores }}
stores = {{ toJson . }}
{{- end }}
{{- end }}
{{- range $trust.unsignedOk }}

[[unsigned_ok]]
store = {{ .store | toJson }}
reason = {{ .reason | toJson }}
{{- end }}
{{- end -}}
