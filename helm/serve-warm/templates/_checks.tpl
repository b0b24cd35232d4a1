{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Checks that a schema cannot express: values that install but then hang or misbehave. All problems are reported at once, each as `key: problem; fix`. */ -}}

{{- define "serve-warm.check" -}}
{{- /* Every template includes this, because Helm does not document which one it renders first. Only the first call checks: `helm lint` continues after a failure, and would report all problems for each template. */ -}}
{{- if not (hasKey .Values "checked") -}}
{{- $_ := set .Values "checked" true -}}
{{- $problems := include "serve-warm.check.defaults" . | fromYamlArray -}}
{{- if not $problems -}}
{{- range $part := list "image" "cluster" "applications" "routing" "capacity" "resources" "seats" "fields" "labelNames" "tolerations" "groups" "awaited" "artifact" "trust" "folders" "readiness" "upgrade" "grace" "build" "queue" "availability" "monitoring" "env" -}}
{{- $found := include (printf "serve-warm.check.%s" $part) $ | fromYamlArray -}}
{{- $problems = concat $problems $found -}}
{{- end -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "these values cannot work:\n  - %s\n" (join "\n  - " $problems)) -}}
{{- /* Only `helm lint` gets here: it treats `fail` as a remark, but a missing template as an error. */ -}}
{{- include "because these values cannot work; the problems are in the line Fail" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Keys whose default is lost if they are null or empty. */ -}}
{{- define "serve-warm.check.defaults" -}}
{{- $problems := list -}}
{{- $keys := list "kind" "rayVersion" "image" "image.pullPolicy" "serve" "serve.proxyLocation" "serve.port" "serve.constructorRetries" "warmup" "warmup.deadline_s" "artifact" "artifact.tokenSecret" "artifact.tokenSecret.key" "trust" "trust.rollback" "readiness" "readiness.mode" "readiness.expect" "readiness.latched" "readiness.checkRaylet" "readiness.checkProxy" "readiness.staleSeconds" "readiness.timeoutSeconds" "startupProbe" "startupProbe.waitFor" "startupProbe.periodSeconds" "nodeServer" "nodeServer.enabled" "nodeServer.port" "nodeServer.python" "nodeServer.drainSeconds" "head" "workers" "autoscaling" "upgrade" "upgrade.type" "upgrade.rayClusterDeletionDelaySeconds" "excludeHeadPodFromServeSvc" "terminationGracePeriodSeconds" "preStopSeconds" "build" "build.when" "build.ifPublished" "build.keySecret" "build.keySecret.key" "build.tokenSecret" "build.tokenSecret.key" "build.serviceAccount" "build.serviceAccount.create" "build.backoffLimit" "build.ttlSecondsAfterFinished" "serviceAccount" "serviceAccount.create" "podSecurityContext" "containerSecurityContext" "podDisruptionBudget" "networkPolicy" "monitoring" "monitoring.podMonitor" "monitoring.podMonitor.interval" "monitoring.prometheusRule" "monitoring.dashboards" "seats" "seats.memory" "alerts" "alerts.startSloSeconds" "alerts.startSloObjective" "alerts.artifactMaxAgeDays" "alerts.minStarts" "alerts.runbookUrl" -}}
{{- $gone := list -}}
{{- range $key := $keys -}}
{{- $parts := splitList "." $key -}}
{{- if not (has (first $parts) $gone) -}}
{{- $value := $.Values -}}
{{- range $parts -}}
{{- $value = index ($value | default dict) . -}}
{{- end -}}
{{- if kindIs "invalid" $value -}}
{{- $gone = append $gone $key -}}
{{- $problems = append $problems (printf "%s: null or an empty value removes the default; leave the key out to keep the default" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Takes key and image (the image of all pods, or of a group). */ -}}
{{- define "serve-warm.check.imageName" -}}
{{- $problems := list -}}
{{- $repository := .image.repository | default "" -}}
{{- if contains "://" $repository -}}
{{- $problems = append $problems (printf "%s.repository: an image name has no scheme; write %s" .key (regexReplaceAll "^.*://" $repository "")) -}}
{{- end -}}
{{- if regexMatch ":[^/]*$" $repository -}}
{{- $problems = append $problems (printf "%s.repository: it contains a tag, and the chart would append %s.tag or %s.digest to it; remove the tag and set %s.tag" .key .key .key .key) -}}
{{- end -}}
{{- $path := regexReplaceAll "^[^/]*[.:][^/]*/" $repository "" -}}
{{- if ne $path (lower $path) -}}
{{- $problems = append $problems (printf "%s.repository: image names have no capital letters, so the kubelet cannot pull it; write %s" .key (replace $path (lower $path) $repository)) -}}
{{- end -}}
{{- if eq (toString .image.tag) "latest" -}}
{{- $problems = append $problems (printf "%s.tag: latest changes over time, but an artifact matches only one image; set a version, or %s.digest" .key .key) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.image" -}}
{{- $problems := list -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- $problems = append $problems "image.repository: empty; name an image with Ray, torch, serve_warm and your application" -}}
{{- end -}}
{{- $problems = concat $problems (include "serve-warm.check.imageName" (dict "key" "image" "image" $image) | fromYamlArray) -}}
{{- if not (or $image.tag $image.digest) -}}
{{- $problems = append $problems "image.tag: neither image.tag nor image.digest is set; set one of them" -}}
{{- end -}}
{{- $limit := eq .Values.kind "RayService" | ternary 47 53 -}}
{{- $name := include "serve-warm.fullname" . -}}
{{- if gt (len $name) $limit -}}
{{- $problems = append $problems (printf "fullnameOverride: the name %s has %d characters, but KubeRay accepts at most %d for a %s; set a shorter name" $name (len $name) $limit .Values.kind) -}}
{{- end -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- $problems = append $problems (printf "fullnameOverride: the name %s begins with a digit, but KubeRay requires a letter; set a name that begins with a letter" $name) -}}
{{- end -}}
{{- if semverCompare "<2.53.0-0" .Values.rayVersion -}}
{{- $problems = append $problems (printf "rayVersion: serve_warm needs Ray 2.53 or newer, found %s; use an image with a newer Ray" .Values.rayVersion) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Settings that users must not set. Takes settings, of all deployments or of one, and their key. */ -}}
{{- define "serve-warm.check.taken" -}}
{{- $taken := dict "state_dir" "the chart sets it to the folder that the probe reads; leave it out" "node_cache_dir" "the chart sets it; leave it out, and choose its volume with cache" -}}
{{- $problems := list -}}
{{- range $name, $why := $taken -}}
{{- if hasKey $.settings $name -}}
{{- $problems = append $problems (printf "%s.%s: %s" $.key $name $why) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.cluster" -}}
{{- $problems := list -}}
{{- $values := .Values -}}
{{- $names := list -}}
{{- $most := 0 -}}
{{- range $index, $group := .Values.workers -}}
{{- $key := printf "workers[%d]" $index -}}
{{- $replicas := hasKey . "replicas" | ternary .replicas 1 | int -}}
{{- $least := hasKey . "minReplicas" | ternary .minReplicas $replicas | int -}}
{{- $highest := hasKey . "maxReplicas" | ternary .maxReplicas $replicas | int -}}
{{- $most = add $most (max $replicas ($values.autoscaling.enabled | default false | ternary $highest 0)) -}}
{{- if has .name $names -}}
{{- $problems = append $problems (printf "%s.name: %s appears twice; name each group differently" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if or (lt $replicas $least) (gt $replicas $highest) -}}
{{- $problems = append $problems (printf "%s.replicas: %d is not between minReplicas %d and maxReplicas %d; change one of the three" $key $replicas $least $highest) -}}
{{- end -}}
{{- end -}}
{{- range $index, $group := concat (list .Values.head .Values.build) .Values.workers -}}
{{- $key := lt $index 2 | ternary (index (list "head" "build") (min $index 1)) (printf "workers[%d]" (sub $index 2)) -}}
{{- range $label, $_ := .labels -}}
{{- if or (eq $label "app.kubernetes.io/name") (hasPrefix "ray.io/" $label) (has $label (list "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/created-by")) -}}
{{- $problems = append $problems (printf "%s.labels: KubeRay or this chart selects pods by %s; use another label" $key $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $most 0) (not (include "serve-warm.headRunsReplicas" .)) -}}
{{- $problems = append $problems "workers: the list has no worker pods, and head.rayStartParams.num-cpus is \"0\", so no replica can run; add workers" -}}
{{- else if and (eq .Values.kind "RayService") .Values.excludeHeadPodFromServeSvc (eq $most 0) -}}
{{- $problems = append $problems "excludeHeadPodFromServeSvc: the release has no worker pods, so the Service would have no endpoint; set it to false, or add workers" -}}
{{- end -}}
{{- if and (eq .Values.kind "RayService") .Values.excludeHeadPodFromServeSvc (eq .Values.serve.proxyLocation "HeadOnly") -}}
{{- $problems = append $problems "excludeHeadPodFromServeSvc: the only proxy is on the head (serve.proxyLocation: HeadOnly), so the Service would reach no proxy; reset one of these two values to its default" -}}
{{- end -}}
{{- $taken := dict "6379" "Ray's GCS" "8080" "Ray's metrics" "8265" "Ray's dashboard" "10001" "Ray's client" "44217" "the autoscaler's metrics" "44227" "the dashboard's metrics" "52365" "Ray's agent" -}}
{{- range $key, $port := dict "serve.port" .Values.serve.port "nodeServer.port" .Values.nodeServer.port -}}
{{- with index $taken (toString $port) -}}
{{- $problems = append $problems (printf "%s: port %v is used by %s; choose another port" $key $port .) -}}
{{- end -}}
{{- end -}}
{{- range $index, $group := prepend .Values.workers .Values.head -}}
{{- $head := eq $index 0 -}}
{{- $key := $head | ternary "head" (printf "workers[%d]" (sub $index 1)) -}}
{{- range $name, $value := .rayStartParams -}}
{{- $own := dict (toString $values.serve.port) "serve.port" -}}
{{- if and (not $head) $values.nodeServer.enabled -}}
{{- $_ := set $own (toString $values.nodeServer.port) "nodeServer.port" -}}
{{- end -}}
{{- if and (hasSuffix "port" $name) (hasKey $own (toString $value)) -}}
{{- $problems = append $problems (printf "%s.rayStartParams.%s: port %v is also %s, so one of the two servers would not start; choose another port" $key $name $value (get $own (toString $value))) -}}
{{- end -}}
{{- if contains "_" $name -}}
{{- $problems = append $problems (printf "%s.rayStartParams.%s: `ray start` has no options with an underscore, so the pod would crash in a loop; write %s" $key $name (replace "_" "-" $name)) -}}
{{- else if eq $name "labels" -}}
{{- $problems = append $problems (printf "%s.rayStartParams.labels: KubeRay refuses labels here; leave them out, and select groups with rayStartParams.resources" $key) -}}
{{- end -}}
{{- if and (eq $name "metrics-export-port") $values.monitoring.podMonitor.enabled (ne (toString $value) "8080") -}}
{{- $problems = append $problems (printf "%s.rayStartParams.metrics-export-port: the PodMonitor scrapes 8080, but Ray would export metrics on port %v; leave this parameter out" $key $value) -}}
{{- end -}}
{{- if and $head (eq $name "dashboard-host") (regexMatch "^(127\\.|localhost$|::1$)" $value) -}}
{{- $problems = append $problems (printf "head.rayStartParams.dashboard-host: KubeRay submits the applications to the dashboard over the network, but %s is reachable only inside the pod; leave it out, or set 0.0.0.0" $value) -}}
{{- end -}}
{{- with and $head (get (dict "dashboard-port" "8265" "port" "6379") $name) -}}
{{- if ne (toString $value) . -}}
{{- $problems = append $problems (printf "head.rayStartParams.%s: KubeRay and the workers connect to %s; leave it out" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (toString .Values.serve.port) (toString .Values.nodeServer.port) -}}
{{- $problems = append $problems (printf "nodeServer.port: %v is also serve.port; choose another port" .Values.nodeServer.port) -}}
{{- end -}}
{{- range $name, $_ := .Values.extraClusterSpec -}}
{{- if has $name (list "rayVersion" "enableInTreeAutoscaling" "autoscalerOptions" "headGroupSpec" "workerGroupSpecs") -}}
{{- $problems = append $problems (printf "extraClusterSpec.%s: the chart sets this field; use rayVersion, autoscaling, head and workers" $name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.applications" -}}
{{- $problems := list -}}
{{- if and (eq .Values.kind "RayService") (not .Values.applications) -}}
{{- $problems = append $problems "applications: empty; list them as in a Serve YAML, each with name, import_path and deployments" -}}
{{- end -}}
{{- $warming := 0 -}}
{{- range $index, $application := .Values.applications -}}
{{- $key := printf "applications[%d]" $index -}}
{{- if regexMatch "[/\\\\]|\\.py(:|$)" .import_path -}}
{{- $module := regexReplaceAll "\\.py(:|$)" .import_path "$1" | replace "\\" "/" | trimPrefix "./" | trimPrefix "/" | replace "/" "." -}}
{{- $problems = append $problems (printf "%s.import_path: %s is a file, but Serve imports a module; write %s%s" $key .import_path $module (contains ":" $module | ternary "" ":NAME, the name of the application in it")) -}}
{{- end -}}
{{- range $number, $deployment := .deployments -}}
{{- $key := printf "%s.deployments[%d]" $key $number -}}
{{- $autoscaling := .autoscaling_config | default dict -}}
{{- if and $autoscaling (or (kindIs "float64" .num_replicas) (kindIs "int64" .num_replicas) (kindIs "int" .num_replicas)) -}}
{{- $problems = append $problems (printf "%s.num_replicas: Serve refuses a number together with autoscaling_config; leave it out, or write auto" $key) -}}
{{- end -}}
{{- $count := include "serve-warm.count" . | fromYaml -}}
{{- $least := int $count.least -}}
{{- $highest := int $count.highest -}}
{{- if gt $least $highest -}}
{{- $problems = append $problems (printf "%s.autoscaling_config.min_replicas: %d is above max_replicas %d; change one of the two values" $key $least $highest) -}}
{{- end -}}
{{- if hasKey $autoscaling "initial_replicas" -}}
{{- $initial := int $autoscaling.initial_replicas -}}
{{- if or (lt $initial $least) (gt $initial $highest) -}}
{{- $problems = append $problems (printf "%s.autoscaling_config.initial_replicas: %d is not between min_replicas %d and max_replicas %d; change one of the three" $key $initial $least $highest) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.user_config | default dict) "warmup" -}}
{{- $warming = add1 $warming -}}
{{- $own := .user_config.warmup | default dict -}}
{{- if hasKey $own "deadline_s" -}}
{{- $problems = append $problems (printf "%s.user_config.warmup.deadline_s: probes and timeouts depend only on warmup.deadline_s; set warmup.deadline_s to the longest deadline" $key) -}}
{{- end -}}
{{- $taken := dict "key" (printf "%s.user_config.warmup" $key) "settings" $own -}}
{{- $problems = concat $problems (include "serve-warm.check.taken" $taken | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.applications (eq $warming 0) (ne .Values.readiness.mode "kuberay") -}}
{{- $problems = append $problems "applications: no deployment has user_config.warmup, so no worker would ever be ready; add user_config: {warmup: {}} to deployments that use serve_warm, or set readiness.mode: kuberay" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.routing" -}}
{{- $problems := list -}}
{{- $names := list -}}
{{- $routes := list -}}
{{- range $index, $application := .Values.applications -}}
{{- $key := printf "applications[%d]" $index -}}
{{- if has .name $names -}}
{{- $problems = append $problems (printf "%s.name: %s appears twice; name each application differently" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $route := hasKey . "route_prefix" | ternary .route_prefix "/" -}}
{{- if and $route (has $route $routes) -}}
{{- $problems = append $problems (printf "%s.route_prefix: %s appears twice (the default is /); give each application its own prefix" $key $route) -}}
{{- end -}}
{{- $routes = append $routes $route -}}
{{- if and (hasSuffix "/" ($route | default "")) (ne $route "/") -}}
{{- $problems = append $problems (printf "%s.route_prefix: Serve refuses a trailing slash; write %s" $key (trimSuffix "/" $route)) -}}
{{- end -}}
{{- $deployments := list -}}
{{- range $number, $deployment := .deployments -}}
{{- if has .name $deployments -}}
{{- $problems = append $problems (printf "%s.deployments[%d].name: %s appears twice, but Serve accepts each name only once; remove one, or name another deployment of the application" $key $number .name) -}}
{{- end -}}
{{- $deployments = append $deployments .name -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.serve.httpOptions | default dict) "port" -}}
{{- $problems = append $problems "serve.httpOptions.port: the probe and the Service also need the port; set serve.port" -}}
{{- end -}}
{{- if hasKey (.Values.serve.httpOptions | default dict) "host" -}}
{{- $problems = append $problems "serve.httpOptions.host: the chart sets 0.0.0.0, because otherwise the Service could not reach the proxies; leave this option out" -}}
{{- end -}}
{{- range $name, $_ := .Values.serve.httpOptions -}}
{{- if hasPrefix "ssl_" $name -}}
{{- $problems = append $problems (printf "serve.httpOptions.%s: probes use plain HTTP, so no worker would ever be ready; leave it out, and terminate TLS before the Service, in an Ingress, a Gateway or a mesh" $name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* The deployments that a worker waits for must exist, warm up and fit on it. */ -}}
{{- define "serve-warm.check.awaited" -}}
{{- $problems := list -}}
{{- $readiness := .Values.readiness -}}
{{- $asked := ne $readiness.mode "kuberay" -}}
{{- $there := list -}}
{{- $warming := list -}}
{{- $warm := list -}}
{{- range $application := .Values.applications -}}
{{- range .deployments -}}
{{- $both := list .name (printf "%s#%s" $application.name .name) -}}
{{- $there = concat $there $both -}}
{{- if hasKey (.user_config | default dict) "warmup" -}}
{{- $warming = append $warming (dict "names" $both "deployment" .) -}}
{{- $warm = concat $warm $both -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $lists := list (dict "key" "readiness.deployments" "names" $readiness.deployments) -}}
{{- range $index, $group := .Values.workers -}}
{{- $lists = append $lists (dict "key" (printf "workers[%d].deployments" $index) "names" (.deployments | default list)) -}}
{{- end -}}
{{- range $lists -}}
{{- $key := .key -}}
{{- range $index, $name := .names -}}
{{- if and $there (not (has $name $there)) -}}
{{- $problems = append $problems (printf "%s[%d]: no application has a deployment %s, so no worker would ever be ready; name one of %s" $key $index $name (join ", " $there)) -}}
{{- else if and $asked $warm (not (has $name $warm)) -}}
{{- $problems = append $problems (printf "%s[%d]: %s does not warm up, so no worker would ever be ready; name one of %s, or add user_config: {warmup: {}} to it" $key $index $name (join ", " $warm)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* check.capacity reports replicas that fit on no pod. */ -}}
{{- if and $asked $warming (not (include "serve-warm.check.capacity" . | fromYamlArray)) -}}
{{- range (include "serve-warm.groups" . | fromYaml).found -}}
{{- if .group -}}
{{- $pod := . -}}
{{- $expect := .group.expect | default $readiness.expect -}}
{{- $key := hasKey .group "expect" | ternary (printf "%s.expect" .key) "readiness.expect" -}}
{{- $least := hasPrefix "min=" $expect | ternary (trimPrefix "min=" $expect | int) (eq $expect "all" | ternary 1 0) -}}
{{- range $name := (hasKey .group "deployments" | ternary .group.deployments $readiness.deployments) | default (list "") -}}
{{- $most := 0 -}}
{{- range $warming -}}
{{- if or (not $name) (has $name .names) -}}
{{- $highest := (include "serve-warm.count" .deployment | fromYaml).highest | int -}}
{{- $fits := include "serve-warm.fits" (dict "deployment" .deployment "offer" $pod.offer) | int -}}
{{- $most = add $most (min $highest $fits) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int $least) (int $most)) (or (not $name) (has $name $warm)) -}}
{{- $what := $name | empty | ternary "replicas that warm up" (printf "replicas of %s" $name) -}}
{{- $fix := eq (int $most) 0 | ternary (printf "set %s.expect: allow-idle" $pod.key) (printf "write min=%d or less" $most) -}}
{{- $problems = append $problems (printf "%s: a pod of %s waits for %d %s but can hold only %d, so it would never be ready; %s, or give the pod more resources" $key $pod.name $least $what $most $fix) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* The addresses of all stores, each with its key, as YAML. */ -}}
{{- define "serve-warm.addresses" -}}
{{- $addresses := list -}}
{{- with include "serve-warm.store" . -}}
{{- $addresses = append $addresses (dict "key" "artifact.store" "address" .) -}}
{{- end -}}
{{- range $index, $application := .Values.applications -}}
{{- range $number, $deployment := .deployments -}}
{{- with ((.user_config | default dict).warmup | default dict).artifact -}}
{{- $addresses = append $addresses (dict "key" (printf "applications[%d].deployments[%d].user_config.warmup.artifact" $index $number) "address" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "found" $addresses | toYaml -}}
{{- end -}}

{{- define "serve-warm.check.artifact" -}}
{{- $problems := list -}}
{{- $artifact := .Values.artifact -}}
{{- $found := (include "serve-warm.addresses" . | fromYaml).found -}}
{{- $forms := "s3://bucket/prefix, gs://…, az://…, hf://owner/repo@revision or file:///absolute/folder" -}}
{{- range $found -}}
{{- /* The message does not repeat the address, which may contain a credential. */ -}}
{{- if regexMatch "[?#]|^[a-z0-9]+://[^/]*@" .address -}}
{{- $problems = append $problems (printf "%s: an address must not have a user, query or fragment; put credentials into artifact.credentialsSecret" .key) -}}
{{- else if not (regexMatch "^((s3|gs|az)://[^/]+(/.*)?|hf://[^/]+/[^/]+(/.*)?|file:///.+)$" .address) -}}
{{- $problems = append $problems (printf "%s: %s is not the address of a store that pods can reach; write %s" .key .address $forms) -}}
{{- end -}}
{{- end -}}
{{- if and $found (not (or .Values.trust.inImage (include "serve-warm.trustConfigMap" .))) -}}
{{- $problems = append $problems "trust: an artifact is configured but no signing key is trusted, so each start would refuse the artifact and compile; set trust.configMap, trust.keys or trust.pinned, or trust.inImage: true" -}}
{{- end -}}
{{- if gt (len ($artifact.volume | default dict)) 1 -}}
{{- $problems = append $problems "artifact.volume: both image and persistentVolumeClaim are set; keep only one of them" -}}
{{- end -}}
{{- if and $artifact.volume $artifact.store (not (hasPrefix "file:///srv/serve_warm/artifacts" $artifact.store)) -}}
{{- $problems = append $problems "artifact.store: artifact.volume is mounted at /srv/serve_warm/artifacts, but the store is elsewhere; leave the store empty, name file:///srv/serve_warm/artifacts/…, or remove the volume" -}}
{{- end -}}
{{- /* The chart does not install below 1.29; older versions come only from defaults of an old `helm lint`. */ -}}
{{- if and ($artifact.volume | default dict).image (semverCompare ">=1.29.0-0 <1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $problems = append $problems (printf "artifact.volume.image: image volumes need Kubernetes 1.31, found %s; bake the artifact into the image, or use a persistentVolumeClaim" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $problems = concat $problems (include "serve-warm.check.taken" (dict "key" "warmup" "settings" .Values.warmup) | fromYamlArray) -}}
{{- if hasKey .Values.warmup "artifact" -}}
{{- $problems = append $problems "warmup.artifact: the chart sets this value, together with the mounts and the trust files; set artifact.store" -}}
{{- end -}}
{{- if and (hasKey .Values.warmup "pull_deadline_s") (ge (float64 .Values.warmup.pull_deadline_s) (float64 .Values.warmup.deadline_s)) -}}
{{- $problems = append $problems (printf "warmup.pull_deadline_s: if the store is down, %v leaves no time to compile before warmup.deadline_s, %v; lower warmup.pull_deadline_s" .Values.warmup.pull_deadline_s .Values.warmup.deadline_s) -}}
{{- else if and $found (not (hasKey .Values.warmup "pull_deadline_s")) (le (float64 .Values.warmup.deadline_s) 120.0) -}}
{{- $problems = append $problems (printf "warmup.deadline_s: %v is not above 120, the seconds that a start may wait for a store that is down; raise warmup.deadline_s, or set warmup.pull_deadline_s" .Values.warmup.deadline_s) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.trust" -}}
{{- $problems := list -}}
{{- $trust := .Values.trust -}}
{{- $own := include "serve-warm.ownTrust" . -}}
{{- if and $trust.configMap (or $own $trust.denied $trust.maxAgeDays $trust.require (eq $trust.rollback "refuse")) -}}
{{- $problems = append $problems "trust.configMap: an existing ConfigMap is named, so keys, pinned, denied, maxAgeDays, require, rollback and unsignedOk would be ignored; write them into the ConfigMap, or leave its name out" -}}
{{- else if and (or $trust.denied $trust.maxAgeDays $trust.require (eq $trust.rollback "refuse")) (not $own) -}}
{{- $problems = append $problems "trust: denied, maxAgeDays, require and rollback only limit trust, but nothing is trusted; add trust.keys or trust.pinned" -}}
{{- end -}}
{{- if and $trust.inImage (include "serve-warm.trustConfigMap" .) -}}
{{- $problems = append $problems "trust.inImage: a ConfigMap mounted at /etc/serve_warm would hide the image's trust file; keep only one of the two" -}}
{{- end -}}
{{- range $index, $key := $trust.keys -}}
{{- if contains "PRIVATE KEY" .pem -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: this is a private key, which your values now expose; make a new pair with serve-warm keygen, and put the public key, FILE.pub, here" $index) -}}
{{- else if not (regexMatch "-----BEGINPUBLICKEY-----MCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=-----ENDPUBLICKEY-----" (regexReplaceAll "\\s+" .pem "")) -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: not a complete Ed25519 public key in PEM, so no replica could read the trust file; copy the whole FILE.pub of serve-warm keygen, from -----BEGIN PUBLIC KEY----- to -----END PUBLIC KEY-----" $index) -}}
{{- end -}}
{{- end -}}
{{- $addresses := list -}}
{{- range (include "serve-warm.addresses" . | fromYaml).found -}}
{{- $addresses = append $addresses .address -}}
{{- end -}}
{{- range $index, $each := $trust.unsignedOk -}}
{{- if lt (len (trim (.reason | default ""))) 8 -}}
{{- $problems = append $problems (printf "trust.unsignedOk[%d].reason: anyone who can write to that store can run code here; say briefly why that is acceptable, or sign the artifact and use trust.keys" $index) -}}
{{- end -}}
{{- if not (has .store $addresses) -}}
{{- $problems = append $problems (printf "trust.unsignedOk[%d].store: no artifact is configured at exactly this address; copy artifact.store" $index) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* The chart's mounts that a mount at `path` would hide or change. serve_warm does not load from a private folder below a volume that root owns. Mounts below /tmp are fine. */ -}}
{{- define "serve-warm.hidden" -}}
{{- $values := .root.Values -}}
{{- $path := .path -}}
{{- $own := list "/tmp" "/run/serve_warm" "/var/cache/serve_warm" "/etc/serve_warm" -}}
{{- if hasPrefix "file:///srv/serve_warm/artifacts" (include "serve-warm.store" .root) -}}
{{- $own = append $own "/srv/serve_warm/artifacts" -}}
{{- end -}}
{{- if $values.build.enabled -}}
{{- $own = concat $own (list "/run/key" "/run/trust" "/run/unsigned" "/etc/serve_warm_build" "/dev/shm") -}}
{{- end -}}
{{- $hidden := list -}}
{{- range $own -}}
{{- $above := hasPrefix (printf "%s/" (trimSuffix "/" $path)) (printf "%s/" .) -}}
{{- $below := and (ne . "/tmp") (hasPrefix (printf "%s/" .) $path) -}}
{{- if or $above $below -}}
{{- $hidden = append $hidden . -}}
{{- end -}}
{{- end -}}
{{- join ", " $hidden -}}
{{- end -}}

{{- /* Volumes and mounts of all pods, or of a group. Takes root, key, pod (the values that contain them), and others (other values whose volumes and mounts these pods also have). */ -}}
{{- define "serve-warm.check.mounts" -}}
{{- $problems := list -}}
{{- $root := .root -}}
{{- $key := .key -}}
{{- $own := list "serve-warm-state" "serve-warm-scratch" "serve-warm-cache" "serve-warm-trust" "serve-warm-artifacts" -}}
{{- if $root.Values.build.enabled -}}
{{- $own = concat $own (list "build" "key-secret" "key" "shm" "sign-tmp") -}}
{{- end -}}
{{- $volumes := list -}}
{{- range .others.extraVolumes -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- range $index, $volume := .pod.extraVolumes -}}
{{- if has .name $own -}}
{{- $problems = append $problems (printf "%sextraVolumes[%d].name: the chart already has a volume %s, and Kubernetes refuses a second volume of this name; choose another name" $key $index .name) -}}
{{- else if has .name $volumes -}}
{{- $problems = append $problems (printf "%sextraVolumes[%d].name: %s appears twice; name each volume differently" $key $index .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $mounted := list -}}
{{- range $root.Values.writableDirs -}}
{{- $mounted = append $mounted (clean .) -}}
{{- end -}}
{{- range .others.extraVolumeMounts -}}
{{- $mounted = append $mounted (clean .mountPath) -}}
{{- end -}}
{{- range $index, $mount := .pod.extraVolumeMounts -}}
{{- $path := clean .mountPath -}}
{{- with include "serve-warm.hidden" (dict "root" $root "path" $path) -}}
{{- $problems = append $problems (printf "%sextraVolumeMounts[%d].mountPath: the chart mounts %s, and a mount at %s would hide or change this folder; choose another path" $key $index . $path) -}}
{{- end -}}
{{- if has $path $mounted -}}
{{- $problems = append $problems (printf "%sextraVolumeMounts[%d].mountPath: extraVolumeMounts or writableDirs already mount %s; keep only one mount" $key $index $path) -}}
{{- end -}}
{{- $mounted = append $mounted $path -}}
{{- if not (has .name $volumes) -}}
{{- $problems = append $problems (printf "%sextraVolumeMounts[%d].name: extraVolumes has no volume %s; add this volume to extraVolumes" $key $index .name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.folders" -}}
{{- $problems := list -}}
{{- $values := .Values -}}
{{- if gt (len (.Values.cache | default dict)) 1 -}}
{{- $problems = append $problems (printf "cache: %s are set; keep only one of them" (keys .Values.cache | sortAlpha | join " and ")) -}}
{{- end -}}
{{- $cache := .Values.cache | default dict -}}
{{- range $key, $size := dict "scratchSizeLimit" .Values.scratchSizeLimit "cache.emptyDir.sizeLimit" ($cache.emptyDir | default dict).sizeLimit "cache.ephemeral.size" ($cache.ephemeral | default dict).size -}}
{{- if and $size (lt (include "serve-warm.quantity" $size | float64) 1048576.0) -}}
{{- $problems = append $problems (printf "%s: %v without a unit is a number of bytes; write a unit, such as %vGi" $key $size (regexFind "^[0-9]+" (toString $size))) -}}
{{- end -}}
{{- end -}}
{{- range $kind, $volume := .Values.cache -}}
{{- if ($volume | default dict).readOnly -}}
{{- $problems = append $problems (printf "cache.%s.readOnly: replicas write downloads here; leave it out, and mount a finished artifact with artifact.volume" $kind) -}}
{{- end -}}
{{- end -}}
{{- $places := list (dict "key" "" "pod" (pick .Values "extraVolumes" "extraVolumeMounts") "others" dict) -}}
{{- range $index, $group := .Values.workers -}}
{{- $places = append $places (dict "key" (printf "workers[%d]." $index) "pod" . "others" $.Values) -}}
{{- end -}}
{{- range $places -}}
{{- $problems = concat $problems (include "serve-warm.check.mounts" (merge (dict "root" $) .) | fromYamlArray) -}}
{{- end -}}
{{- range $index, $path := .Values.writableDirs -}}
{{- $clean := clean $path -}}
{{- range $before := slice $values.writableDirs 0 $index -}}
{{- if eq (clean . | replace "/" "-") (replace "/" "-" $clean) -}}
{{- $problems = append $problems (printf "writableDirs[%d]: %s and %s would share one folder; keep one, or choose another name" $index . $path) -}}
{{- end -}}
{{- end -}}
{{- if has $clean (list "/" "/home" "/usr" "/etc" "/var" "/run" "/opt" "/dev/shm") -}}
{{- $problems = append $problems (printf "writableDirs[%d]: an empty folder would hide %s; name a folder below it" $index $path) -}}
{{- else -}}
{{- with include "serve-warm.hidden" (dict "root" $ "path" $clean) -}}
{{- $problems = append $problems (printf "writableDirs[%d]: the chart mounts %s, and an empty folder at %s would hide or change it; name another folder" $index . $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podSecurityContext.runAsNonRoot (eq (toString .Values.podSecurityContext.runAsUser) "0") -}}
{{- $problems = append $problems "podSecurityContext.runAsUser: the kubelet refuses user 0 with runAsNonRoot: true; set the user id of the image" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.readiness" -}}
{{- $problems := list -}}
{{- $readiness := .Values.readiness -}}
{{- $startup := .Values.startupProbe -}}
{{- $deadline := float64 .Values.warmup.deadline_s -}}
{{- if and (eq $readiness.mode "http") (not .Values.nodeServer.enabled) -}}
{{- $problems = append $problems "readiness.mode: http needs the node server, but nodeServer.enabled is false; enable it, or set exec" -}}
{{- end -}}
{{- if and (ne $readiness.mode "kuberay") $readiness.checkProxy (ne .Values.serve.proxyLocation "EveryNode") -}}
{{- $problems = append $problems (printf "readiness.checkProxy: workers have no proxy with serve.proxyLocation: %s, so no worker would ever be ready; set EveryNode, or checkProxy: false and your own Service that selects the head" .Values.serve.proxyLocation) -}}
{{- end -}}
{{- if $startup.enabled -}}
{{- if and (eq $startup.waitFor "alive") (not .Values.nodeServer.enabled) -}}
{{- $problems = append $problems "startupProbe.waitFor: alive needs the node server, but nodeServer.enabled is false; enable it" -}}
{{- end -}}
{{- if and (eq $startup.waitFor "warm") (eq $readiness.mode "kuberay") -}}
{{- $problems = append $problems "startupProbe.waitFor: readiness.mode: kuberay does not check warmth; set readiness.mode to http or exec, or waitFor: alive" -}}
{{- else if eq $startup.waitFor "warm" -}}
{{- $budget := mulf $startup.periodSeconds (include "serve-warm.startupFailures" . | float64) -}}
{{- if lt (float64 $budget) $deadline -}}
{{- $problems = append $problems (printf "startupProbe.failureThreshold: the start-up probe's budget of %v s is below warmup.deadline_s, %v, so the kubelet would keep killing warm-ups; leave it out (%v), or set waitFor: alive" $budget $deadline (divf (mulf 1.5 $deadline) $startup.periodSeconds | ceil)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* How a worker ends: endpoints remove it, Ray drains it, its processes and the node server stop. */ -}}
{{- define "serve-warm.check.grace" -}}
{{- $problems := list -}}
{{- $drain := .Values.workers | empty | ternary 30.0 0.0 -}}
{{- range $group := .Values.workers -}}
{{- $drain = maxf $drain (include "serve-warm.drainSeconds" (dict "root" $ "group" .)) -}}
{{- end -}}
{{- $server := .Values.nodeServer.enabled | ternary .Values.nodeServer.drainSeconds 0 -}}
{{- $needed := addf .Values.preStopSeconds $drain $server 10 -}}
{{- if lt (float64 .Values.terminationGracePeriodSeconds) (float64 $needed) -}}
{{- $problems = append $problems (printf "terminationGracePeriodSeconds: %v is too short for a worker to shut down, so replicas would be killed during requests; set %v or more: preStopSeconds %v, up to %v while Ray drains the node (30, or the longest graceful_shutdown_timeout_s), nodeServer.drainSeconds %v, and 10 to stop" .Values.terminationGracePeriodSeconds $needed .Values.preStopSeconds $drain $server) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.upgrade" -}}
{{- $problems := list -}}
{{- $upgrade := .Values.upgrade -}}
{{- $incremental := eq $upgrade.type "NewClusterWithIncrementalUpgrade" -}}
{{- $needed := mulf .Values.warmup.deadline_s .Values.serve.constructorRetries -}}
{{- with $upgrade.initializingTimeoutSeconds -}}
{{- if ne $.Values.kind "RayService" -}}
{{- $problems = append $problems "upgrade.initializingTimeoutSeconds: a RayCluster has no such timeout; leave it out" -}}
{{- else if lt (float64 .) (float64 $needed) -}}
{{- $problems = append $problems (printf "upgrade.initializingTimeoutSeconds: %v is below warmup.deadline_s × serve.constructorRetries = %v, and after the timeout the RayService must be deleted; set %v or more, or leave it out" . $needed $needed) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.annotations | default dict) "ray.io/initializing-timeout" -}}
{{- $problems = append $problems "annotations: ray.io/initializing-timeout must match the deadline; set upgrade.initializingTimeoutSeconds instead" -}}
{{- end -}}
{{- if and $incremental (not $upgrade.options) -}}
{{- $problems = append $problems "upgrade.options: NewClusterWithIncrementalUpgrade needs gatewayClassName, stepSizePercent and intervalSeconds; set them, or type: NewCluster" -}}
{{- end -}}
{{- if and $incremental (not .Values.autoscaling.enabled) -}}
{{- $problems = append $problems "autoscaling.enabled: KubeRay refuses NewClusterWithIncrementalUpgrade without autoscaling; set it to true, or upgrade.type: NewCluster" -}}
{{- end -}}
{{- if and $upgrade.options (not $incremental) -}}
{{- $problems = append $problems (printf "upgrade.options: the upgrade type %s has no options; leave them out, or set upgrade.type: NewClusterWithIncrementalUpgrade" $upgrade.type) -}}
{{- end -}}
{{- if and $incremental $upgrade.options (gt (float64 $upgrade.options.stepSizePercent) (float64 (hasKey $upgrade.options "maxSurgePercent" | ternary $upgrade.options.maxSurgePercent 100))) -}}
{{- $problems = append $problems "upgrade.options.stepSizePercent: KubeRay refuses a value above maxSurgePercent; lower stepSizePercent" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.buildSeconds" -}}
{{- .Values.build.activeDeadlineSeconds | default (addf 600 (mulf 4 .Values.warmup.deadline_s)) | int -}}
{{- end -}}

{{- define "serve-warm.check.build" -}}
{{- $problems := list -}}
{{- $build := .Values.build -}}
{{- if $build.enabled -}}
{{- $store := include "serve-warm.store" . -}}
{{- if not $build.keySecret.name -}}
{{- $problems = append $problems "build.keySecret.name: empty, but unsigned artifacts are not loaded; create a Secret from the private key of serve-warm keygen, and set its name here" -}}
{{- end -}}
{{- if not $store -}}
{{- $problems = append $problems "artifact.store: empty, so the build has no store to publish to; name a store, or artifact.volume.persistentVolumeClaim" -}}
{{- else if (.Values.artifact.volume | default dict).image -}}
{{- $problems = append $problems "build.enabled: a build cannot publish to artifact.volume.image; build in CI and push the image, or use another store" -}}
{{- else if and (hasPrefix "file://" $store) (not .Values.artifact.volume) -}}
{{- $problems = append $problems "build.enabled: a folder in the Job's pod is lost when the pod ends; use a bucket, the Hub, or artifact.volume.persistentVolumeClaim" -}}
{{- end -}}
{{- $chosen := list -}}
{{- $names := list -}}
{{- range .Values.applications -}}
{{- $names = append $names .name -}}
{{- if or (not $build.application) (eq .name $build.application) -}}
{{- $chosen = append $chosen . -}}
{{- end -}}
{{- end -}}
{{- if ne (len $chosen) 1 -}}
{{- $problems = append $problems (printf "build.application: an artifact is for one application, but the applications are %s; name one of them" (join ", " $names | default "none")) -}}
{{- else -}}
{{- $application := first $chosen -}}
{{- if hasKey ($application.runtime_env | default dict) "working_dir" -}}
{{- $problems = append $problems (printf "build.enabled: the Job imports %s from the image, but with runtime_env.working_dir replicas import this module from elsewhere; put the code into the image and remove working_dir" $application.import_path) -}}
{{- end -}}
{{- $warming := list -}}
{{- range $application.deployments -}}
{{- if hasKey (.user_config | default dict) "warmup" -}}
{{- $warming = append $warming .name -}}
{{- end -}}
{{- end -}}
{{- if and $build.deployment (not (has $build.deployment $warming)) -}}
{{- $problems = append $problems (printf "build.deployment: no deployment %s of %s has user_config.warmup; name one of %s" $build.deployment $application.name (join ", " $warming | default "none")) -}}
{{- else if and (not $build.deployment) (gt (len $warming) 1) -}}
{{- $problems = append $problems (printf "build.deployment: an artifact is for one deployment, but %s warm up; name one of them" (join ", " $warming)) -}}
{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.workers -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $index, $name := $build.groups -}}
{{- if not (has $name $names) -}}
{{- $problems = append $problems (printf "build.groups[%d]: there is no worker group %s; name one of %s" $index $name (join ", " $names)) -}}
{{- else if has $name (slice $build.groups 0 $index) -}}
{{- $problems = append $problems (printf "build.groups[%d]: %s appears twice; keep one" $index $name) -}}
{{- end -}}
{{- end -}}
{{- $kinds := list -}}
{{- $holding := list -}}
{{- range $group := .Values.workers -}}
{{- if include "serve-warm.holdsBuilt" (dict "root" $ "group" .) -}}
{{- $holding = append $holding .name -}}
{{- $kinds = append $kinds (pick . "nodeSelector" "affinity" "resources" "resourceClaims" "runtimeClassName" "image" | toJson) -}}
{{- else if has .name ($build.groups | default list) -}}
{{- $problems = append $problems (printf "build.groups: no pod of %s can hold a replica of the built deployment, so its Job would wait forever; remove this group" .name) -}}
{{- end -}}
{{- end -}}
{{- if and (not $build.groups) (gt (len (uniq $kinds)) 1) -}}
{{- $problems = append $problems (printf "build.groups: empty, but replicas can run in %s, which differ in nodes, resources or image. An artifact matches only one kind of group, so replicas in the other groups would start cold; name a group of each kind: [%s]" (join " and " $holding) (join ", " $holding)) -}}
{{- end -}}
{{- $needed := addf 600 (mulf 4 .Values.warmup.deadline_s) -}}
{{- with $build.activeDeadlineSeconds -}}
{{- if lt (float64 .) (float64 $needed) -}}
{{- $problems = append $problems (printf "build.activeDeadlineSeconds: %v may stop a healthy build, which needs warmup.deadline_s for the compile and for each of up to three fresh replicas; set %v or more, or leave it out" . $needed) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $build.when "beside") (eq (.Values.warmup.on_missing | default "compile") "fail") -}}
{{- $problems = append $problems "warmup.on_missing: with fail, the first start finds no artifact and fails, because the build runs at the same time; set build.when: before" -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.availability" -}}
{{- $problems := list -}}
{{- $budget := .Values.podDisruptionBudget -}}
{{- if $budget.enabled -}}
{{- $workers := 0 -}}
{{- range .Values.workers -}}
{{- $workers = add $workers (mul (hasKey . "replicas" | ternary .replicas 1 | int) (.numOfHosts | default 1)) -}}
{{- end -}}
{{- $least := kindIs "invalid" $budget.minAvailable | ternary "" (toString $budget.minAvailable) -}}
{{- $most := kindIs "invalid" $budget.maxUnavailable | ternary "" (toString $budget.maxUnavailable) -}}
{{- if and $least $most -}}
{{- $problems = append $problems "podDisruptionBudget.minAvailable: Kubernetes accepts only one of minAvailable and maxUnavailable; set one to null" -}}
{{- else if and $least (not (hasSuffix "%" $least)) (ge (int $least) (int $workers)) -}}
{{- $problems = append $problems (printf "podDisruptionBudget.minAvailable: %s of %d worker pods allows no eviction, so no node could ever be drained; lower podDisruptionBudget.minAvailable, or add workers" $least $workers) -}}
{{- else if or (eq $least "100%") (has $most (list "0" "0%")) -}}
{{- $problems = append $problems "podDisruptionBudget.maxUnavailable: no pod may be evicted, so no node could ever be drained; set 1 or more" -}}
{{- end -}}
{{- end -}}
{{- $policy := .Values.networkPolicy -}}
{{- if $policy.enabled -}}
{{- if not $policy.operatorNamespace -}}
{{- $problems = append $problems "networkPolicy.operatorNamespace: empty, so KubeRay could not submit the applications; name the namespace of the operator" -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled (not $policy.monitoringNamespace) -}}
{{- $problems = append $problems "networkPolicy.monitoringNamespace: empty, so Prometheus could not scrape the pods; set the namespace of Prometheus" -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.monitoring" -}}
{{- $problems := list -}}
{{- $monitoring := .Values.monitoring -}}
{{- if $monitoring.prometheusRule.enabled -}}
{{- if not (.Files.Get "rules/serve-warm.tpl.yaml") -}}
{{- $problems = append $problems "monitoring.prometheusRule.enabled: this copy of the chart has no rules/serve-warm.tpl.yaml; use a complete copy" -}}
{{- end -}}
{{- if gt (float64 .Values.alerts.startSloSeconds) (float64 .Values.warmup.deadline_s) -}}
{{- $problems = append $problems (printf "alerts.startSloSeconds: %v is above warmup.deadline_s, %v, so no start could miss the objective; lower alerts.startSloSeconds" .Values.alerts.startSloSeconds .Values.warmup.deadline_s) -}}
{{- end -}}
{{- end -}}
{{- if and $monitoring.dashboards.enabled (not (.Files.Glob "dashboards/*.json")) -}}
{{- $problems = append $problems "monitoring.dashboards.enabled: this copy of the chart has no dashboards/*.json; use a complete copy" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Variables that users must not set, each with the reason or the value to set instead, as YAML. */ -}}
{{- define "serve-warm.ownVariables" -}}
{{- toYaml (dict "SERVE_WARM_STATE_DIR" "the chart sets it to the folder that the probe reads" "SERVE_WARM_NODE_CACHE_DIR" "set cache" "SERVE_WARM_DEADLINE_S" "set warmup.deadline_s" "SERVE_WARM_ARTIFACT" "set artifact.store" "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT" "set serve.constructorRetries" "RAY_SERVE_REPLICA_STARTUP_SHUTDOWN_LATENCY_BUCKETS_MS" "the chart sets it" "AWS_ENDPOINT_URL" "set artifact.endpointUrl" "HOME" "the chart sets it below /tmp; add folders with writableDirs") -}}
{{- end -}}

{{- define "serve-warm.check.env" -}}
{{- $problems := list -}}
{{- $settings := include "serve-warm.ownVariables" . | fromYaml -}}
{{- $places := list (dict "key" "env" "env" .Values.env) (dict "key" "head.env" "env" .Values.head.env) (dict "key" "build.env" "env" .Values.build.env) -}}
{{- range $index, $group := .Values.workers -}}
{{- $places = append $places (dict "key" (printf "workers[%d].env" $index) "env" (.env | default list)) -}}
{{- end -}}
{{- $common := list -}}
{{- range .Values.env -}}
{{- $common = append $common .name -}}
{{- end -}}
{{- range $places -}}
{{- $key := .key -}}
{{- $seen := eq $key "env" | ternary list $common -}}
{{- range $index, $variable := .env -}}
{{- with index $settings .name -}}
{{- $problems = append $problems (printf "%s[%d].name: %s must not be set here; %s" $key $index $variable.name .) -}}
{{- end -}}
{{- if and (hasKey . "value") (regexMatch "(SECRET|TOKEN|PASSWORD|_KEY)$" .name) -}}
{{- $problems = append $problems (printf "%s[%d].value: this credential would be visible to anyone who can read the pod; use valueFrom.secretKeyRef, artifact.tokenSecret or artifact.credentialsSecret" $key $index) -}}
{{- end -}}
{{- if has .name $seen -}}
{{- $problems = append $problems (printf "%s[%d].name: %s appears twice; keep only one entry" $key $index .name) -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- end -}}
{{- end -}}
{{- $runtimes := dict -}}
{{- range $index, $application := .Values.applications -}}
{{- $_ := set $runtimes (printf "applications[%d].runtime_env" $index) (.runtime_env | default dict) -}}
{{- range $number, $deployment := .deployments -}}
{{- $_ := set $runtimes (printf "applications[%d].deployments[%d].ray_actor_options.runtime_env" $index $number) ((.ray_actor_options | default dict).runtime_env | default dict) -}}
{{- end -}}
{{- end -}}
{{- range $key, $runtime := $runtimes -}}
{{- range $name, $_ := $runtime.env_vars -}}
{{- if and (hasPrefix "SERVE_WARM_" $name) (hasKey $settings $name) -}}
{{- $problems = append $problems (printf "%s.env_vars.%s: this variable must not be set here, where it would override the pod's value; %s" $key $name (get $settings $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
