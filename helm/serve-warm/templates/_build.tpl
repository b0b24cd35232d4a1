{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The spec of the build Job. Takes root, context (as the pods of Ray) and name, of its ConfigMap. */ -}}
{{- define "serve-warm.buildSpec" -}}
{{- $values := .root.Values -}}
{{- $build := $values.build -}}
{{- $group := .context.group -}}
{{- $name := .name -}}
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
    {{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
    {{- with index $group $field }}
    {{ $field }}:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    initContainers:
      {{- include "serve-warm.foldersContainer" .context | nindent 6 }}
      # serve_warm takes a key that its user alone can read. Kubelet lets the group read a Secret.
      - name: signing-key
        image: {{ include "serve-warm.image" .root }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
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
      - name: build
        image: {{ include "serve-warm.image" .root }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command:
          - serve-warm
          - build
          - /etc/serve_warm_build/serve.yaml
          - {{ printf "--store=%s" (include "serve-warm.store" .root) | quote }}
          - --key=/run/key/signing.key
          - --if-published={{ $build.ifPublished }}
          {{- with $build.deployment }}
          - {{ printf "--deployment=%s" . | quote }}
          {{- end }}
          {{- if eq ($values.warmup.cpu | default "native") "portable" }}
          - --portable-cpu
          {{- end }}
        env:
          {{- include "serve-warm.env" .context | trim | nindent 10 }}
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
          {{- toYaml ($build.resources | default $group.resources) | nindent 10 }}
        securityContext:
          {{- toYaml $values.containerSecurityContext | nindent 10 }}
        volumeMounts:
          {{- include "serve-warm.volumeMounts" .context | nindent 10 }}
          - {name: build, mountPath: /etc/serve_warm_build, readOnly: true}
          - {name: key, mountPath: /run/key, readOnly: true}
          - {name: shm, mountPath: /dev/shm}
    volumes:
      {{- include "serve-warm.volumes" .context | nindent 6 }}
      - name: build
        configMap:
          name: {{ $name }}
      - name: key-secret
        secret:
          secretName: {{ $build.keySecret.name }}
          # Of root; readable for this user by the group of fsGroup, or for all where there is none.
          defaultMode: {{ $values.podSecurityContext.fsGroup | empty | ternary 292 288 }}
      - name: key
        emptyDir: {medium: Memory, sizeLimit: 1Mi}
      - name: shm
        emptyDir: {medium: Memory}
{{- end -}}
