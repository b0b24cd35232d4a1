{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The deployments that can be built, as YAML: they warm up, and match build.application and build.deployment. */ -}}
{{- define "serve-warm.buildDeployments" -}}
{{- $build := .Values.build -}}
{{- $found := list -}}
{{- range $application := .Values.applications -}}
{{- if or (not $build.application) (eq .name $build.application) -}}
{{- range .deployments -}}
{{- if and (hasKey (.user_config | default dict) "warmup") (or (not $build.deployment) (eq .name $build.deployment)) -}}
{{- $found = append $found . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "found" $found) -}}
{{- end -}}

{{- /* The name of the application that the built artifact is kept for. */ -}}
{{- define "serve-warm.buildPlace" -}}
{{- $build := .Values.build -}}
{{- $names := list -}}
{{- range $application := (include "serve-warm.applications" . | fromYaml).applications -}}
{{- if or (not $build.application) (eq .name $build.application) -}}
{{- range .deployments -}}
{{- if and (hasKey (.user_config | default dict) "warmup") (or (not $build.deployment) (eq .name $build.deployment)) -}}
{{- $names = append $names .user_config.warmup.application -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- first $names -}}
{{- end -}}

{{- /* Whether a pod of `group` can hold a replica of the built deployment. Takes root and group. */ -}}
{{- define "serve-warm.holdsBuilt" -}}
{{- $offer := include "serve-warm.offer" .group | fromYaml -}}
{{- range (include "serve-warm.buildDeployments" .root | fromYaml).found -}}
{{- if gt (include "serve-warm.fits" (dict "deployment" . "offer" $offer) | int) 0 -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The groups that Jobs build for, as comma-separated indexes of `workers`; -1 is the head, if there are no workers. These are build.groups, or else the first group that can hold a replica. */ -}}
{{- define "serve-warm.buildGroups" -}}
{{- $root := . -}}
{{- $found := list -}}
{{- range $name := .Values.build.groups -}}
{{- range $index, $group := $root.Values.workers -}}
{{- if eq .name $name -}}
{{- $found = append $found $index -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not .Values.build.groups -}}
{{- range $index, $group := .Values.workers -}}
{{- if and (not $found) (include "serve-warm.holdsBuilt" (dict "root" $root "group" .)) -}}
{{- $found = append $found $index -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join "," ($found | default (list (.Values.workers | empty | ternary -1 0))) -}}
{{- end -}}

{{- /* The name of a Job, short enough for a suffix of 9 characters. Kubernetes allows 63 characters, because the Job's name is also a label of the Job's pods. */ -}}
{{- define "serve-warm.jobName" -}}
{{- $name := .name -}}
{{- if gt (len $name) 54 -}}
{{- $name = printf "%s-%s" (trunc 45 $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- /* The spec of a build Job. Takes root, context (as for Ray's pods) and name (of its ConfigMap). */ -}}
{{- define "serve-warm.buildSpec" -}}
{{- $values := .root.Values -}}
{{- $build := $values.build -}}
{{- $group := .context.group -}}
{{- $name := .name -}}
{{- /* The container that runs model code has the rights of a replica, but separate trust files. */ -}}
{{- $env := $build.env | default list -}}
{{- $own := list -}}
{{- range $env -}}
{{- $own = append $own .name -}}
{{- end -}}
{{- range $group.env -}}
{{- if not (has .name $own) -}}
{{- $env = append $env . -}}
{{- end -}}
{{- end -}}
{{- $sources := concat ($values.envFrom | default list) ($group.envFrom | default list) -}}
{{- $builds := dict "root" .root "group" $group "replicas" "yes" "probed" false "publishes" false "trust" "" "token" $values.artifact.tokenSecret "env" $env -}}
{{- $credentials := $build.credentialsSecret | default $values.artifact.credentialsSecret -}}
backoffLimit: {{ $build.backoffLimit }}
activeDeadlineSeconds: {{ include "serve-warm.buildSeconds" .root }}
ttlSecondsAfterFinished: {{ $build.ttlSecondsAfterFinished }}
template:
  metadata:
    labels:
      {{- include "serve-warm.podLabels" (dict "root" .root "component" "artifact-build") | nindent 6 }}
      {{- with $build.labels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ include "serve-warm.buildServiceAccountName" .root }}
    automountServiceAccountToken: false
    securityContext:
      {{- toYaml $values.podSecurityContext | nindent 6 }}
    {{- with $values.image.pullSecrets }}
    imagePullSecrets:
      {{- range . }}
      - name: {{ . }}
      {{- end }}
    {{- end }}
    {{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "schedulerName" "resourceClaims" }}
    {{- with index $group $field }}
    {{ $field }}:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    initContainers:
      {{- include "serve-warm.foldersContainer" .context | nindent 6 }}
      {{- with $group.initContainers }}
      {{- include "serve-warm.ownContainers" (dict "root" $.root "group" $group "containers" .) | trim | nindent 6 }}
      {{- end }}
      # A key for the round trip in this pod. The build also trusts this key, and nobody else does.
      - name: round-trip-key
        image: {{ include "serve-warm.image" .context }}
        imagePullPolicy: {{ include "serve-warm.pullPolicy" .context }}
        command:
          - /bin/sh
          - -c
          - |
            set -e
            umask 077
            cp -RL /etc/serve_warm/* /run/trust/
            echo >> /run/trust/trust.toml
            serve-warm keygen /run/trust/round-trip.key --name round-trip >> /run/trust/trust.toml
        resources:
          requests: {cpu: 10m, memory: 128Mi}
          limits: {memory: 512Mi}
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          - {name: serve-warm-scratch, mountPath: /run/trust, subPath: trust}
          {{- if .context.trust }}
          - {name: serve-warm-trust, mountPath: /etc/serve_warm, readOnly: true}
          {{- end }}
      # Runs model code, so it has neither the signing key nor credentials to write to the store.
      - name: build
        image: {{ include "serve-warm.image" .context }}
        imagePullPolicy: {{ include "serve-warm.pullPolicy" .context }}
        command:
          - serve-warm
          - build
          - /etc/serve_warm_build/serve.yaml
          - --store=file:///run/unsigned
          - --unsigned
          - --key=/etc/serve_warm/round-trip.key
          - {{ printf "--image=%s" (include "serve-warm.image" .context) | quote }}
          {{- with $build.sourceCommit }}
          - {{ printf "--source-commit=%s" . | quote }}
          {{- end }}
          {{- with $build.builder }}
          - {{ printf "--builder=%s" . | quote }}
          {{- end }}
          {{- with $build.deployment }}
          - {{ printf "--deployment=%s" . | quote }}
          {{- end }}
          {{- if eq ($values.warmup.cpu | default "native") "portable" }}
          - --portable-cpu
          {{- end }}
        env:
          {{- include "serve-warm.env" $builds | trim | nindent 10 }}
        {{- if or $values.artifact.credentialsSecret $sources }}
        envFrom:
          {{- with $values.artifact.credentialsSecret }}
          - secretRef: {name: {{ . }}}
          {{- end }}
          {{- with $sources }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- end }}
        resources:
          {{- toYaml ($build.resources | default $group.resources | default dict) | nindent 10 }}
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          {{- include "serve-warm.volumeMounts" $builds | nindent 10 }}
          - {name: serve-warm-scratch, mountPath: /etc/serve_warm, subPath: trust, readOnly: true}
          - {name: serve-warm-scratch, mountPath: /run/unsigned, subPath: unsigned}
          - {name: build, mountPath: /etc/serve_warm_build, readOnly: true}
          - {name: shm, mountPath: /dev/shm}
      # serve_warm requires a key that only its user can read, but the kubelet lets the group read a
      # Secret.
      - name: signing-key
        image: {{ include "serve-warm.image" .context }}
        imagePullPolicy: {{ include "serve-warm.pullPolicy" .context }}
        command: [/bin/sh, -c, umask 077 && cat /run/key-secret/{{ $build.keySecret.key }} > /run/key/signing.key]
        resources:
          requests: {cpu: 10m, memory: 16Mi}
          limits: {memory: 64Mi}
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          - {name: key-secret, mountPath: /run/key-secret, readOnly: true}
          - {name: key, mountPath: /run/key}
    containers:
      # Runs no model code. Shares only the artifact, read-only, with the container that runs model code, but
      # neither /tmp nor HOME.
      - name: sign
        image: {{ include "serve-warm.image" .context }}
        imagePullPolicy: {{ include "serve-warm.pullPolicy" .context }}
        command:
          - serve-warm
          - sign
          - file:///run/unsigned
          - --unsigned
          - --key=/run/key/signing.key
          - {{ printf "--publish=%s" (include "serve-warm.store" .root) | quote }}
          - --if-published={{ $build.ifPublished }}
          # These values do not come from the build, where model code could set anything.
          - {{ printf "--application=%s" (include "serve-warm.buildPlace" .root) | quote }}
          {{- range (include "serve-warm.buildDeployments" .root | fromYaml).found }}
          - {{ printf "--deployment=%s" .name | quote }}
          {{- end }}
          - {{ printf "--image=%s" (include "serve-warm.image" .context) | quote }}
          {{- with $build.sourceCommit }}
          - {{ printf "--source-commit=%s" . | quote }}
          {{- end }}
          {{- with $build.builder }}
          - {{ printf "--builder=%s" . | quote }}
          {{- end }}
        env:
          - {name: HOME, value: /tmp}
          {{- include "serve-warm.storeEnv" (dict "root" .root "token" .context.token) | trim | nindent 10 }}
          {{- with $values.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          {{- with $build.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- if or $credentials $values.envFrom }}
        envFrom:
          {{- if $credentials }}
          - secretRef: {name: {{ $credentials }}}
          {{- end }}
          {{- with $values.envFrom }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- end }}
        resources:
          requests: {cpu: 100m, memory: 256Mi}
          limits: {memory: 2Gi}
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          - {name: sign-tmp, mountPath: /tmp}
          - {name: serve-warm-scratch, mountPath: /run/unsigned, subPath: unsigned, readOnly: true}
          - {name: key, mountPath: /run/key, readOnly: true}
          {{- if .context.trust }}
          - {name: serve-warm-trust, mountPath: /etc/serve_warm, readOnly: true}
          {{- end }}
          {{- with ($values.artifact.volume | default dict).persistentVolumeClaim }}
          - name: serve-warm-artifacts
            mountPath: /srv/serve_warm/artifacts
            {{- with .subPath }}
            subPath: {{ . }}
            {{- end }}
          {{- end }}
          {{- range $values.extraVolumeMounts }}
          - {{- toYaml (merge (dict "readOnly" true) .) | nindent 12 }}
          {{- end }}
    volumes:
      {{- include "serve-warm.volumes" .context | nindent 6 }}
      - name: build
        configMap:
          name: {{ $name }}
      - name: key-secret
        secret:
          secretName: {{ $build.keySecret.name }}
          # Root owns the file. This user reads it through fsGroup; if fsGroup is unset, everyone can read it.
          defaultMode: {{ $values.podSecurityContext.fsGroup | empty | ternary 292 288 }}
      - name: key
        emptyDir: {medium: Memory, sizeLimit: 1Mi}
      - name: sign-tmp
        emptyDir: {}
      - name: shm
        emptyDir: {medium: Memory}
{{- end -}}
