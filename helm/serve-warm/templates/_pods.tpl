{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Folders. serve_warm loads only from folders that nobody else can change. The root of an emptyDir has mode 0777 and belongs to root, so an unprivileged container cannot fix it. An init container makes folders of mode 0700 in it, and the other containers mount those by subPath. */ -}}
{{- define "serve-warm.volumes" -}}
{{- $values := .root.Values -}}
- name: serve-warm-state
  emptyDir: {}
- name: serve-warm-scratch
  {{- if $values.scratchSizeLimit }}
  emptyDir:
    sizeLimit: {{ $values.scratchSizeLimit }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- if .replicas }}
- name: serve-warm-cache
  {{- if .publishes }}
  # The Job's own volume, because a claim of the workers may be bound to another node.
  emptyDir: {}
  {{- else if ($values.cache | default dict).hostPath }}
  hostPath:
    path: {{ ($values.cache | default dict).hostPath.path }}
    # The pod also starts if the folder does not exist yet.
    type: DirectoryOrCreate
  {{- else if ($values.cache | default dict).persistentVolumeClaim }}
  persistentVolumeClaim:
    claimName: {{ ($values.cache | default dict).persistentVolumeClaim.claimName }}
  {{- else if ($values.cache | default dict).ephemeral }}
  # A volume of this pod only, from a storage class; it is deleted with the pod.
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- with ($values.cache | default dict).ephemeral.storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests: {storage: {{ ($values.cache | default dict).ephemeral.size }}}
  {{- else if ($values.cache | default dict).emptyDir }}
  emptyDir:
    {{- toYaml ($values.cache | default dict).emptyDir | nindent 4 }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- with .trust }}
- name: serve-warm-trust
  configMap:
    name: {{ . }}
{{- end }}
{{- with ($values.artifact.volume | default dict).image }}
- name: serve-warm-artifacts
  image:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- with ($values.artifact.volume | default dict).persistentVolumeClaim }}
- name: serve-warm-artifacts
  persistentVolumeClaim:
    claimName: {{ .claimName }}
{{- end }}
{{- end }}
{{- with concat ($values.extraVolumes | default list) (.group.extraVolumes | default list) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The folder on the cache volume. Each user has one, because several users may share a node or a claim. */ -}}
{{- define "serve-warm.cacheFolder" -}}
serve_warm-{{ .Values.podSecurityContext.runAsUser | default "pod" }}
{{- end -}}

{{- define "serve-warm.volumeMounts" -}}
{{- $values := .root.Values -}}
- {name: serve-warm-state, mountPath: /run/serve_warm}
- {name: serve-warm-scratch, mountPath: /tmp, subPath: tmp}
{{- range $values.writableDirs }}
- {name: serve-warm-scratch, mountPath: {{ . }}, subPath: writable{{ . | replace "/" "-" }}}
{{- end }}
{{- if .replicas }}
- {name: serve-warm-cache, mountPath: /var/cache/serve_warm, subPath: {{ include "serve-warm.cacheFolder" .root }}}
{{- if .trust }}
- {name: serve-warm-trust, mountPath: /etc/serve_warm, readOnly: true}
{{- end }}
{{- if $values.artifact.volume }}
- name: serve-warm-artifacts
  mountPath: /srv/serve_warm/artifacts
  readOnly: {{ not .publishes }}
  {{- with ($values.artifact.volume.persistentVolumeClaim | default dict).subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
{{- with concat ($values.extraVolumeMounts | default list) (.group.extraVolumeMounts | default list) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "serve-warm.foldersContainer" -}}
{{- $values := .root.Values -}}
{{- $nodeServer := $values.nodeServer -}}
- name: serve-warm-folders
  image: {{ include "serve-warm.image" . }}
  imagePullPolicy: {{ include "serve-warm.pullPolicy" . }}
  command:
    - {{ $nodeServer.python }}
    - -c
    - |
      import os, sys
      def private(path):
          os.makedirs(path, mode=0o700, exist_ok=True)
          os.chmod(path, 0o700)
      for path in sys.argv[1:]:
          private(path)
      {{- if and .probed (not $nodeServer.file) }}
      import py_compile, serve_warm.node
      # Compiled once instead of by each probe, which halves the cost of a probe.
      py_compile.compile(serve_warm.node.__file__, "/run/serve_warm/node.pyc", doraise=True)
      {{- end }}
      {{- if .replicas }}
      cache = "/volumes/cache/{{ include "serve-warm.cacheFolder" .root }}"
      try:
          private(cache)
          private(cache + "/blobs")
      except OSError as error:
          sys.stderr.write(f"each replica downloads for itself: {error}. The root of the cache volume has "
                           f"to be writable for user id {os.geteuid()}\n")
      {{- end }}
    - /volumes/scratch/tmp
    - /volumes/scratch/tmp/home
    {{- if .publishes }}
    - /volumes/scratch/trust
    - /volumes/scratch/unsigned
    {{- end }}
    {{- range $values.writableDirs }}
    - /volumes/scratch/writable{{ . | replace "/" "-" }}
    {{- end }}
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- toYaml $values.containerSecurityContext | nindent 4 }}
  volumeMounts:
    - {name: serve-warm-state, mountPath: /run/serve_warm}
    - {name: serve-warm-scratch, mountPath: /volumes/scratch}
    {{- if .replicas }}
    - {name: serve-warm-cache, mountPath: /volumes/cache}
    {{- end }}
{{- end -}}

{{- define "serve-warm.nodeFile" -}}
{{- .Values.nodeServer.file | default "/run/serve_warm/node.pyc" -}}
{{- end -}}

{{- /* The options of node.py and of the node server, as a YAML list. `localhost` is 127.0.0.1 and ::1: Ray's agent listens on one of them. */ -}}
{{- define "serve-warm.nodeOptions" -}}
{{- $readiness := .root.Values.readiness -}}
{{- $agent := index (.group.rayStartParams | default dict) "dashboard-agent-listen-port" | default "52365" -}}
- --state-dir=/run/serve_warm/state
- --expect={{ .group.expect | default $readiness.expect }}
{{- range (hasKey .group "deployments" | ternary .group.deployments $readiness.deployments) }}
- {{ printf "--deployment=%s" . | quote }}
{{- end }}
{{- if not $readiness.latched }}
- --no-latch
{{- end }}
{{- with $readiness.require }}
- --require={{ . }}
{{- end }}
- --stale-s={{ $readiness.staleSeconds }}
- --raylet={{ if $readiness.checkRaylet }}http://localhost:{{ $agent }}/api/healthz{{ else }}none{{ end }}
- --proxy={{ if $readiness.checkProxy }}http://localhost:{{ .root.Values.serve.port }}/-/healthz{{ else }}none{{ end }}
{{- end -}}

{{- define "serve-warm.nodeServerContainer" -}}
{{- $values := .root.Values -}}
- name: serve-warm-node
  image: {{ include "serve-warm.image" . }}
  imagePullPolicy: {{ include "serve-warm.pullPolicy" . }}
  # A native sidecar: it starts before Ray and ends after Ray.
  restartPolicy: Always
  command:
    - {{ $values.nodeServer.python }}
    - -m
    - serve_warm.node_server
    - --port={{ $values.nodeServer.port }}
    {{- with $values.nodeServer.host }}
    - {{ printf "--host=%s" . | quote }}
    {{- end }}
    - --drain-s={{ $values.nodeServer.drainSeconds }}
    # The kubelet connects from this address, so some connections are reserved for it.
    - --host-ip=$(HOST_IP)
    {{- include "serve-warm.nodeOptions" . | nindent 4 }}
  env:
    - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  ports:
    - {name: serve-warm, containerPort: {{ $values.nodeServer.port }}}
  # A hanging server is replaced within half a minute, without waiting for the pod's whole grace period.
  livenessProbe:
    httpGet: {path: /livez, port: {{ $values.nodeServer.port }}}
    periodSeconds: 5
    timeoutSeconds: 3
    failureThreshold: 3
    terminationGracePeriodSeconds: 5
  resources:
    {{- toYaml $values.nodeServer.resources | nindent 4 }}
  securityContext:
    {{- toYaml $values.containerSecurityContext | nindent 4 }}
  volumeMounts:
    - {name: serve-warm-state, mountPath: /run/serve_warm}
{{- end -}}

{{- define "serve-warm.warmCheck" -}}
{{- $values := .root.Values -}}
{{- if eq $values.readiness.mode "http" -}}
httpGet: {path: /readyz, port: {{ $values.nodeServer.port }}}
{{- else -}}
exec:
  command:
    - {{ $values.nodeServer.python }}
    - -I
    - -S
    - {{ include "serve-warm.nodeFile" .root }}
    - probe
    {{- include "serve-warm.nodeOptions" . | nindent 4 }}
{{- end -}}
{{- end -}}

{{- /* Replaces KubeRay's own probes; node.py checks the raylet and the proxy too. */ -}}
{{- define "serve-warm.probes" -}}
{{- $values := .root.Values -}}
{{- $readiness := $values.readiness -}}
{{- $startup := $values.startupProbe -}}
{{- if ne $readiness.mode "kuberay" -}}
readinessProbe:
  {{- include "serve-warm.warmCheck" . | nindent 2 }}
  periodSeconds: {{ include "serve-warm.readinessPeriod" .root }}
  timeoutSeconds: {{ $readiness.timeoutSeconds }}
  failureThreshold: {{ include "serve-warm.readinessFailures" .root }}
  successThreshold: 1
{{- end }}
{{- if $startup.enabled }}
startupProbe:
  {{- if eq $startup.waitFor "warm" }}
  {{- include "serve-warm.warmCheck" . | nindent 2 }}
  {{- else }}
  httpGet: {path: /livez, port: {{ $values.nodeServer.port }}}
  {{- end }}
  periodSeconds: {{ $startup.periodSeconds }}
  timeoutSeconds: {{ $readiness.timeoutSeconds }}
  failureThreshold: {{ include "serve-warm.startupFailures" .root }}
{{- end }}
{{- end -}}

{{- /* A request to the node server takes 4 ms, running node.py 170 ms. */ -}}
{{- define "serve-warm.readinessPeriod" -}}
{{- .Values.readiness.periodSeconds | default (eq .Values.readiness.mode "http" | ternary 1 5) -}}
{{- end -}}

{{- /* Enough failures to cover 10 s, whatever the period is. */ -}}
{{- define "serve-warm.readinessFailures" -}}
{{- .Values.readiness.failureThreshold | default (divf 10 (include "serve-warm.readinessPeriod" .) | ceil | int) -}}
{{- end -}}

{{- define "serve-warm.startupFailures" -}}
{{- $startup := .Values.startupProbe -}}
{{- if $startup.failureThreshold -}}
{{- $startup.failureThreshold -}}
{{- else -}}
{{- $budget := eq $startup.waitFor "warm" | ternary (mulf 1.5 .Values.warmup.deadline_s) 300.0 -}}
{{- divf $budget $startup.periodSeconds | ceil | int -}}
{{- end -}}
{{- end -}}

{{- /* The store's endpoint, and the token that the caller chose: the token of `build` if set, or else of `artifact`. */ -}}
{{- define "serve-warm.storeEnv" -}}
{{- with .root.Values.artifact.endpointUrl }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- if hasPrefix "http://" . }}
- {name: AWS_ALLOW_HTTP, value: "true"}
{{- end }}
{{- end }}
{{- if .token.name }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .token.name }}, key: {{ .token.key }}}
{{- end }}
{{- end -}}

{{- define "serve-warm.env" -}}
{{- $values := .root.Values -}}
{{- if $values.containerSecurityContext.readOnlyRootFilesystem }}
# Libraries keep their caches below HOME.
- {name: HOME, value: /tmp/home}
{{- end }}
{{- if .replicas }}
- {name: SERVE_WARM_STATE_DIR, value: /run/serve_warm/state}
{{- include "serve-warm.storeEnv" (dict "root" .root "token" .token) }}
{{- end }}
{{- with $values.env }}
{{ toYaml . }}
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The user's containers, which default to the image and the rights of Ray's container. A loop instead of sprig's merge, which treats `false` as unset. Takes root, group and containers. */ -}}
{{- define "serve-warm.ownContainers" -}}
{{- $root := .root -}}
{{- $image := include "serve-warm.image" . -}}
{{- $policy := include "serve-warm.pullPolicy" . -}}
{{- range .containers }}
{{- $container := deepCopy . -}}
{{- if not $container.image -}}
{{- $_ := set $container "image" $image -}}
{{- $_ := set $container "imagePullPolicy" ($container.imagePullPolicy | default $policy) -}}
{{- end -}}
{{- $context := $container.securityContext | default dict -}}
{{- range $name, $value := $root.Values.containerSecurityContext -}}
{{- if not (hasKey $context $name) -}}
{{- $_ := set $context $name $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $container "securityContext" $context }}
- {{ toYaml $container | nindent 2 | trim }}
{{- end -}}
{{- end -}}

{{- /* How many seconds Ray drains a worker when its pod ends: Ray's own 30, or the longest shutdown of a replica. The user's variable wins. Takes root and group. */ -}}
{{- define "serve-warm.drainSeconds" -}}
{{- $drain := 30.0 -}}
{{- range $application := .root.Values.applications -}}
{{- range .deployments -}}
{{- $drain = maxf $drain (.graceful_shutdown_timeout_s | default 20) -}}
{{- end -}}
{{- end -}}
{{- range concat (.root.Values.env | default list) (.group.env | default list) -}}
{{- if eq .name "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" -}}
{{- $drain = .value | default 30 | float64 -}}
{{- end -}}
{{- end -}}
{{- $drain -}}
{{- end -}}

{{- /* A Ray pod. Takes root, group, component, and replicas (whether replicas can run in it). */ -}}
{{- define "serve-warm.podTemplate" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $group := .group -}}
{{- $worker := eq .component "ray-worker" -}}
{{- $server := and $worker $values.nodeServer.enabled -}}
{{- $probed := and $worker (eq $values.readiness.mode "exec") -}}
{{- $context := dict "root" $root "group" $group "replicas" .replicas "probed" $probed "publishes" false "trust" (include "serve-warm.trustConfigMap" $root) "token" $values.artifact.tokenSecret "env" $group.env -}}
metadata:
  labels:
    {{- include "serve-warm.podLabels" (dict "root" $root "component" .component) | nindent 4 }}
    {{- with $group.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $group.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ $group.serviceAccountName | default (include "serve-warm.serviceAccountName" $root) }}
  # Only the autoscaler in the head pod uses the API server.
  automountServiceAccountToken: {{ and (not $worker) $values.autoscaling.enabled }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  securityContext:
    {{- toYaml $values.podSecurityContext | nindent 4 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" "schedulerName" "resourceClaims" }}
  {{- with index $group $field }}
  {{ $field }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  initContainers:
    {{- include "serve-warm.foldersContainer" $context | nindent 4 }}
    {{- with $group.initContainers }}
    {{- include "serve-warm.ownContainers" (dict "root" $root "group" $group "containers" .) | trim | nindent 4 }}
    {{- end }}
    {{- if $server }}
    {{- include "serve-warm.nodeServerContainer" $context | nindent 4 }}
    {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "serve-warm.image" . }}
      imagePullPolicy: {{ include "serve-warm.pullPolicy" . }}
      ports:
        {{- if not $worker }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: client, containerPort: 10001}
        - {name: as-metrics, containerPort: 44217}
        - {name: dash-metrics, containerPort: 44227}
        {{- end }}
        - {name: serve, containerPort: {{ $values.serve.port }}}
        - {name: metrics, containerPort: 8080}
      env:
        # By default Ray's own startup histograms end at 240 s.
        - name: RAY_SERVE_REPLICA_STARTUP_SHUTDOWN_LATENCY_BUCKETS_MS
          value: "100,250,500,1000,2500,5000,10000,20000,30000,60000,120000,300000,600000,1200000,1800000,3600000"
        {{- if ne (int $values.serve.constructorRetries) 3 }}
        - {name: RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT, value: {{ $values.serve.constructorRetries | quote }}}
        {{- end }}
        {{- $drain := include "serve-warm.drainSeconds" $context }}
        {{- if and $worker (gt (float64 $drain) 30.0) (not (contains "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" (toJson (list $values.env $group.env)))) }}
        # A replica may take this long to end.
        - {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: {{ $drain | quote }}}
        {{- end }}
        {{- include "serve-warm.env" $context | trim | nindent 8 }}
      {{- $secret := and .replicas $values.artifact.credentialsSecret }}
      {{- $sources := concat ($values.envFrom | default list) ($group.envFrom | default list) }}
      {{- if or $secret $sources }}
      envFrom:
        {{- if $secret }}
        - secretRef: {name: {{ $secret }}}
        {{- end }}
        {{- with $sources }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if $worker }}
      {{- with include "serve-warm.probes" $context | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if gt (int $values.preStopSeconds) 0 }}
      lifecycle:
        preStop:
          exec: {command: [/bin/sh, -c, sleep {{ $values.preStopSeconds }}]}
      {{- end }}
      {{- end }}
      resources:
        {{- include "serve-warm.resourcesWithSeats" (dict "root" .root "group" $group "replicas" .replicas) | nindent 8 }}
      securityContext:
        {{- toYaml $values.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- include "serve-warm.volumeMounts" $context | nindent 8 }}
    {{- with $group.sidecars }}
    {{- include "serve-warm.ownContainers" (dict "root" $root "group" $group "containers" .) | trim | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "serve-warm.volumes" $context | nindent 4 }}
{{- end -}}

{{- define "serve-warm.clusterSpec" -}}
{{- $root := . -}}
{{- $values := .Values -}}
rayVersion: {{ $values.rayVersion | quote }}
{{- if $values.autoscaling.enabled }}
enableInTreeAutoscaling: true
{{- with $values.autoscaling.options }}
autoscalerOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
headGroupSpec:
  rayStartParams:
    {{- $head := deepCopy $values.head }}
    {{- if and (eq $values.serve.host "::") (not (hasKey ($head.rayStartParams | default dict) "dashboard-host")) }}
    {{- /* KubeRay's default is 0.0.0.0, but its own requests would come by IPv6. */ -}}
    {{- $_ := set $head "rayStartParams" (set ($head.rayStartParams | default dict) "dashboard-host" "::") }}
    {{- end }}
    {{- include "serve-warm.paramsWithSeats" (dict "root" $root "group" $head "replicas" (include "serve-warm.headRunsReplicas" $root)) | nindent 4 }}
  template:
    {{- include "serve-warm.podTemplate" (dict "root" $root "group" $values.head "component" "ray-head" "replicas" (include "serve-warm.headRunsReplicas" $root)) | nindent 4 }}
{{- with $values.workers }}
workerGroupSpecs:
  {{- range . }}
  {{- $replicas := hasKey . "replicas" | ternary .replicas 1 }}
  - groupName: {{ .name }}
    replicas: {{ $replicas }}
    minReplicas: {{ hasKey . "minReplicas" | ternary .minReplicas $replicas }}
    maxReplicas: {{ hasKey . "maxReplicas" | ternary .maxReplicas $replicas }}
    {{- with .numOfHosts }}
    numOfHosts: {{ . }}
    {{- end }}
    {{- if hasKey . "idleTimeoutSeconds" }}
    idleTimeoutSeconds: {{ .idleTimeoutSeconds }}
    {{- end }}
    rayStartParams:
      {{- include "serve-warm.paramsWithSeats" (dict "root" $root "group" . "replicas" "yes") | nindent 6 }}
    template:
      {{- include "serve-warm.podTemplate" (dict "root" $root "group" . "component" "ray-worker" "replicas" "yes") | nindent 6 }}
  {{- end }}
{{- end }}
{{- with $values.extraClusterSpec }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "serve-warm.headRunsReplicas" -}}
{{- if ne (toString (index (.Values.head.rayStartParams | default dict) "num-cpus")) "0" -}}yes{{- end -}}
{{- end -}}
