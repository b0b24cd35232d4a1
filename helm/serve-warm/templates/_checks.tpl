{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* What no schema can say: values that apply and then hang, or do what nobody meant. All problems are
       collected and said at once, each as `key: what is wrong; what to do`. */ -}}

{{- define "serve-warm.check" -}}
{{- /* Each template asks, since Helm says in no document which one it renders first, and the first one answers: `helm lint`
       goes on after a failure, and would say all problems once for each template. */ -}}
{{- if not (hasKey .Values "checked") -}}
{{- $_ := set .Values "checked" true -}}
{{- $problems := include "serve-warm.check.defaults" . | fromYamlArray -}}
{{- if not $problems -}}
{{- range $part := list "image" "cluster" "applications" "routing" "capacity" "resources" "fields" "labelNames" "tolerations" "groups" "awaited" "artifact" "trust" "folders" "readiness" "upgrade" "grace" "build" "queue" "availability" "monitoring" "env" -}}
{{- $found := include (printf "serve-warm.check.%s" $part) $ | fromYamlArray -}}
{{- $problems = concat $problems $found -}}
{{- end -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "these values cannot work:\n  - %s\n" (join "\n  - " $problems)) -}}
{{- /* Lint comes by here: there `fail` is a remark, and a template that does not exist is an error. */ -}}
{{- include "because these values cannot work; the problems are in the line Fail" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Keys with a default that null, or a key with nothing behind it, takes away. */ -}}
{{- define "serve-warm.check.defaults" -}}
{{- $problems := list -}}
{{- $keys := list "kind" "rayVersion" "image" "image.pullPolicy" "serve" "serve.proxyLocation" "serve.port" "serve.constructorRetries" "warmup" "warmup.deadline_s" "artifact" "artifact.tokenSecret" "artifact.tokenSecret.key" "trust" "trust.rollback" "readiness" "readiness.mode" "readiness.expect" "readiness.latched" "readiness.checkRaylet" "readiness.checkProxy" "readiness.staleSeconds" "readiness.timeoutSeconds" "startupProbe" "startupProbe.waitFor" "startupProbe.periodSeconds" "nodeServer" "nodeServer.enabled" "nodeServer.port" "nodeServer.python" "nodeServer.drainSeconds" "head" "workers" "autoscaling" "upgrade" "upgrade.type" "upgrade.rayClusterDeletionDelaySeconds" "excludeHeadPodFromServeSvc" "terminationGracePeriodSeconds" "preStopSeconds" "build" "build.when" "build.ifPublished" "build.keySecret" "build.keySecret.key" "build.tokenSecret" "build.tokenSecret.key" "build.serviceAccount" "build.serviceAccount.create" "build.backoffLimit" "build.ttlSecondsAfterFinished" "serviceAccount" "serviceAccount.create" "podSecurityContext" "containerSecurityContext" "podDisruptionBudget" "networkPolicy" "monitoring" "monitoring.podMonitor" "monitoring.podMonitor.interval" "monitoring.prometheusRule" "monitoring.dashboards" "alerts" "alerts.startSloSeconds" "alerts.startSloObjective" "alerts.artifactMaxAgeDays" "alerts.minStarts" "alerts.runbookUrl" -}}
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
{{- $problems = append $problems (printf "%s: null, or nothing behind the key, takes the default away; leave the key out to have it" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Takes key and image, that of all pods or of a group. */ -}}
{{- define "serve-warm.check.imageName" -}}
{{- $problems := list -}}
{{- $repository := .image.repository | default "" -}}
{{- if contains "://" $repository -}}
{{- $problems = append $problems (printf "%s.repository: the name of an image has no scheme; write %s" .key (regexReplaceAll "^.*://" $repository "")) -}}
{{- end -}}
{{- if regexMatch ":[^/]*$" $repository -}}
{{- $problems = append $problems (printf "%s.repository: there is a tag in it, and %s.tag or %s.digest would be put behind that; take it out and set %s.tag" .key .key .key .key) -}}
{{- end -}}
{{- $path := regexReplaceAll "^[^/]*[.:][^/]*/" $repository "" -}}
{{- if ne $path (lower $path) -}}
{{- $problems = append $problems (printf "%s.repository: no registry has a name with capitals, and kubelet would pull nothing; write %s" .key (replace $path (lower $path) $repository)) -}}
{{- end -}}
{{- if eq (toString .image.tag) "latest" -}}
{{- $problems = append $problems (printf "%s.tag: latest is another image tomorrow, and an artifact fits one image; set a version, or %s.digest" .key .key) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.image" -}}
{{- $problems := list -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- $problems = append $problems "image.repository: empty; name the image that has Ray, torch, serve_warm and your application in it" -}}
{{- end -}}
{{- $problems = concat $problems (include "serve-warm.check.imageName" (dict "key" "image" "image" $image) | fromYamlArray) -}}
{{- if not (or $image.tag $image.digest) -}}
{{- $problems = append $problems "image.tag: neither a tag nor image.digest is set; set one of them" -}}
{{- end -}}
{{- $limit := eq .Values.kind "RayService" | ternary 47 53 -}}
{{- $name := include "serve-warm.fullname" . -}}
{{- if gt (len $name) $limit -}}
{{- $problems = append $problems (printf "fullnameOverride: the name %s has %d characters and KubeRay takes %d for a %s; set a shorter one" $name (len $name) $limit .Values.kind) -}}
{{- end -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- $problems = append $problems (printf "fullnameOverride: the name %s begins with a digit, and KubeRay takes a letter there; set one that begins with a letter" $name) -}}
{{- end -}}
{{- if semverCompare "<2.53.0-0" .Values.rayVersion -}}
{{- $problems = append $problems (printf "rayVersion: serve_warm runs on Ray 2.53 and newer, found %s; use an image with a newer Ray" .Values.rayVersion) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Settings that are not the user's: `settings` are those of all deployments or of one, and stand under `key`. */ -}}
{{- define "serve-warm.check.taken" -}}
{{- $taken := dict "state_dir" "the chart sets it, where the probe reads; leave it out" "node_cache_dir" "the chart sets it; leave it out and say in cache what volume it is on" -}}
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
{{- $problems = append $problems (printf "%s.name: %s is there twice; name each group differently" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if or (lt $replicas $least) (gt $replicas $highest) -}}
{{- $problems = append $problems (printf "%s.replicas: %d is not from minReplicas %d to maxReplicas %d; change one of the three" $key $replicas $least $highest) -}}
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
{{- $problems = append $problems "workers: there is no worker pod, and head.rayStartParams.num-cpus is \"0\", so that no replica can run; add workers" -}}
{{- else if and (eq .Values.kind "RayService") .Values.excludeHeadPodFromServeSvc (eq $most 0) -}}
{{- $problems = append $problems "excludeHeadPodFromServeSvc: there is no worker pod, so that the Service would have no endpoint; set it to false, or add workers" -}}
{{- end -}}
{{- if and (eq .Values.kind "RayService") .Values.excludeHeadPodFromServeSvc (eq .Values.serve.proxyLocation "HeadOnly") -}}
{{- $problems = append $problems "excludeHeadPodFromServeSvc: the only proxy is on the head (serve.proxyLocation: HeadOnly), so that the Service would reach none; set one of the two to its default" -}}
{{- end -}}
{{- $taken := dict "6379" "Ray's GCS" "8080" "Ray's metrics" "8265" "Ray's dashboard" "10001" "Ray's client" "44217" "the autoscaler's metrics" "44227" "the dashboard's metrics" "52365" "Ray's agent" -}}
{{- range $key, $port := dict "serve.port" .Values.serve.port "nodeServer.port" .Values.nodeServer.port -}}
{{- with index $taken (toString $port) -}}
{{- $problems = append $problems (printf "%s: %v belongs to %s; choose another port" $key $port .) -}}
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
{{- $problems = append $problems (printf "%s.rayStartParams.%s: %v is %s too, so that one of the two would not start; choose another port" $key $name $value (get $own (toString $value))) -}}
{{- end -}}
{{- if contains "_" $name -}}
{{- $problems = append $problems (printf "%s.rayStartParams.%s: it becomes an option of ray start, which knows none with an underscore, so that the pod would fail again and again; write %s" $key $name (replace "_" "-" $name)) -}}
{{- else if eq $name "labels" -}}
{{- $problems = append $problems (printf "%s.rayStartParams.labels: KubeRay refuses it; leave it out, and put what selects a group into rayStartParams.resources" $key) -}}
{{- end -}}
{{- if and (eq $name "metrics-export-port") $values.monitoring.podMonitor.enabled (ne (toString $value) "8080") -}}
{{- $problems = append $problems (printf "%s.rayStartParams.metrics-export-port: the PodMonitor scrapes 8080, and Ray's metrics would be at %v; leave it out" $key $value) -}}
{{- end -}}
{{- if and $head (eq $name "dashboard-host") (regexMatch "^(127\\.|localhost$|::1$)" $value) -}}
{{- $problems = append $problems (printf "head.rayStartParams.dashboard-host: KubeRay brings the applications to the dashboard over the network, and %s is heard in the pod alone; leave it out, or set 0.0.0.0" $value) -}}
{{- end -}}
{{- with and $head (get (dict "dashboard-port" "8265" "port" "6379") $name) -}}
{{- if ne (toString $value) . -}}
{{- $problems = append $problems (printf "head.rayStartParams.%s: KubeRay and the workers come to %s; leave it out" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (toString .Values.serve.port) (toString .Values.nodeServer.port) -}}
{{- $problems = append $problems (printf "nodeServer.port: %v is serve.port too; choose another port" .Values.nodeServer.port) -}}
{{- end -}}
{{- range $name, $_ := .Values.extraClusterSpec -}}
{{- if has $name (list "rayVersion" "enableInTreeAutoscaling" "autoscalerOptions" "headGroupSpec" "workerGroupSpecs") -}}
{{- $problems = append $problems (printf "extraClusterSpec.%s: this chart writes that field; use rayVersion, autoscaling, head and workers" $name) -}}
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
{{- $problems = append $problems (printf "%s.import_path: %s is a file, and Serve imports a module; write %s%s" $key .import_path $module (contains ":" $module | ternary "" ":NAME, the name of the application in it")) -}}
{{- end -}}
{{- range $number, $deployment := .deployments -}}
{{- $key := printf "%s.deployments[%d]" $key $number -}}
{{- $autoscaling := .autoscaling_config | default dict -}}
{{- if and $autoscaling (or (kindIs "float64" .num_replicas) (kindIs "int64" .num_replicas) (kindIs "int" .num_replicas)) -}}
{{- $problems = append $problems (printf "%s.num_replicas: Serve takes no number beside autoscaling_config; leave it out, or write auto" $key) -}}
{{- end -}}
{{- $count := include "serve-warm.count" . | fromYaml -}}
{{- $least := int $count.least -}}
{{- $highest := int $count.highest -}}
{{- if gt $least $highest -}}
{{- $problems = append $problems (printf "%s.autoscaling_config.min_replicas: %d is above max_replicas %d; change one of them" $key $least $highest) -}}
{{- end -}}
{{- if hasKey $autoscaling "initial_replicas" -}}
{{- $initial := int $autoscaling.initial_replicas -}}
{{- if or (lt $initial $least) (gt $initial $highest) -}}
{{- $problems = append $problems (printf "%s.autoscaling_config.initial_replicas: %d is not from min_replicas %d to max_replicas %d; change one of the three" $key $initial $least $highest) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.user_config | default dict) "warmup" -}}
{{- $warming = add1 $warming -}}
{{- $own := .user_config.warmup | default dict -}}
{{- if hasKey $own "deadline_s" -}}
{{- $problems = append $problems (printf "%s.user_config.warmup.deadline_s: probes and time-outs follow from warmup.deadline_s alone; set that to the longest one" $key) -}}
{{- end -}}
{{- $taken := dict "key" (printf "%s.user_config.warmup" $key) "settings" $own -}}
{{- $problems = concat $problems (include "serve-warm.check.taken" $taken | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.applications (eq $warming 0) (ne .Values.readiness.mode "kuberay") -}}
{{- $problems = append $problems "applications: no deployment has user_config.warmup, so that no worker would ever be ready; add user_config: {warmup: {}} to those that use serve_warm, or set readiness.mode: kuberay" -}}
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
{{- $problems = append $problems (printf "%s.name: %s is there twice; name each application differently" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $route := hasKey . "route_prefix" | ternary .route_prefix "/" -}}
{{- if and $route (has $route $routes) -}}
{{- $problems = append $problems (printf "%s.route_prefix: %s is there twice, and / is the default; give each application its own" $key $route) -}}
{{- end -}}
{{- $routes = append $routes $route -}}
{{- if and (hasSuffix "/" ($route | default "")) (ne $route "/") -}}
{{- $problems = append $problems (printf "%s.route_prefix: Serve takes none that ends in a slash; write %s" $key (trimSuffix "/" $route)) -}}
{{- end -}}
{{- $deployments := list -}}
{{- range $number, $deployment := .deployments -}}
{{- if has .name $deployments -}}
{{- $problems = append $problems (printf "%s.deployments[%d].name: %s is there twice, and Serve takes one; take one out, or name another deployment of the application" $key $number .name) -}}
{{- end -}}
{{- $deployments = append $deployments .name -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.serve.httpOptions | default dict) "port" -}}
{{- $problems = append $problems "serve.httpOptions.port: the probe and the Service need it too; set serve.port" -}}
{{- end -}}
{{- if hasKey (.Values.serve.httpOptions | default dict) "host" -}}
{{- $problems = append $problems "serve.httpOptions.host: the chart sets 0.0.0.0, or the Service would reach nobody; leave it out" -}}
{{- end -}}
{{- range $name, $_ := .Values.serve.httpOptions -}}
{{- if hasPrefix "ssl_" $name -}}
{{- $problems = append $problems (printf "serve.httpOptions.%s: probes ask the proxy in plain HTTP, so that no worker would ever be ready; leave it out, and end TLS before the Service, in an Ingress, a Gateway or a mesh" $name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Whom a worker waits for, and whether they can be there. */ -}}
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
{{- $problems = append $problems (printf "%s[%d]: no application has a deployment %s, so that no worker would ever be ready; name one of %s" $key $index $name (join ", " $there)) -}}
{{- else if and $asked $warm (not (has $name $warm)) -}}
{{- $problems = append $problems (printf "%s[%d]: %s does not warm up, so that no worker would ever be ready; name one of %s, or add user_config: {warmup: {}} to it" $key $index $name (join ", " $warm)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* What fits nowhere is said by check.capacity. */ -}}
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
{{- $problems = append $problems (printf "%s: a pod of %s waits for %d %s and can have %d, so that it would never be ready; %s, or give it more" $key $pod.name $least $what $most $fix) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* The addresses of all stores, with the key of each, as YAML. */ -}}
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
{{- /* The address itself is not repeated: there may be a credential in it. */ -}}
{{- if regexMatch "[?#]|^[a-z0-9]+://[^/]*@" .address -}}
{{- $problems = append $problems (printf "%s: an address has no user, query or fragment; put credentials into artifact.credentialsSecret" .key) -}}
{{- else if not (regexMatch "^((s3|gs|az)://[^/]+(/.*)?|hf://[^/]+/[^/]+(/.*)?|file:///.+)$" .address) -}}
{{- $problems = append $problems (printf "%s: %s is no address of a store that pods can reach; write %s" .key .address $forms) -}}
{{- end -}}
{{- end -}}
{{- if and $found (not (or .Values.trust.inImage (include "serve-warm.trustConfigMap" .))) -}}
{{- $problems = append $problems "trust: an artifact is configured and nobody is trusted to sign it, so that each start would refuse it and compile; set trust.configMap, trust.keys or trust.pinned, or trust.inImage: true" -}}
{{- end -}}
{{- if gt (len ($artifact.volume | default dict)) 1 -}}
{{- $problems = append $problems "artifact.volume: both image and persistentVolumeClaim are set; keep one" -}}
{{- end -}}
{{- if and $artifact.volume $artifact.store (not (hasPrefix "file:///srv/serve_warm/artifacts" $artifact.store)) -}}
{{- $problems = append $problems "artifact.store: a volume is mounted at /srv/serve_warm/artifacts (artifact.volume), and this is another place; leave the store empty, name file:///srv/serve_warm/artifacts/…, or take the volume out" -}}
{{- end -}}
{{- /* Below 1.29 the chart installs on none: it is what an older `helm lint` takes for granted. */ -}}
{{- if and ($artifact.volume | default dict).image (semverCompare ">=1.29.0-0 <1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $problems = append $problems (printf "artifact.volume.image: image volumes begin with Kubernetes 1.31, found %s; bake the artifact into the image, or use a persistentVolumeClaim" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $problems = concat $problems (include "serve-warm.check.taken" (dict "key" "warmup" "settings" .Values.warmup) | fromYamlArray) -}}
{{- if hasKey .Values.warmup "artifact" -}}
{{- $problems = append $problems "warmup.artifact: the chart sets it, and mounts and trusts what it needs; set artifact.store" -}}
{{- end -}}
{{- if and (hasKey .Values.warmup "pull_deadline_s") (ge (float64 .Values.warmup.pull_deadline_s) (float64 .Values.warmup.deadline_s)) -}}
{{- $problems = append $problems (printf "warmup.pull_deadline_s: %v leaves nothing of warmup.deadline_s, %v, to compile in when the store is down; lower it" .Values.warmup.pull_deadline_s .Values.warmup.deadline_s) -}}
{{- else if and $found (not (hasKey .Values.warmup "pull_deadline_s")) (le (float64 .Values.warmup.deadline_s) 120.0) -}}
{{- $problems = append $problems (printf "warmup.deadline_s: %v is not above the time that a store that is down may cost, 120; raise it, or set warmup.pull_deadline_s" .Values.warmup.deadline_s) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.trust" -}}
{{- $problems := list -}}
{{- $trust := .Values.trust -}}
{{- $own := include "serve-warm.ownTrust" . -}}
{{- if and $trust.configMap (or $own $trust.denied $trust.maxAgeDays $trust.require (eq $trust.rollback "refuse")) -}}
{{- $problems = append $problems "trust.configMap: an existing ConfigMap is named, so that keys, pinned, denied, maxAgeDays, require, rollback and unsignedOk would not be used; write them into it, or leave the name out" -}}
{{- else if and (or $trust.denied $trust.maxAgeDays $trust.require (eq $trust.rollback "refuse")) (not $own) -}}
{{- $problems = append $problems "trust: denied, maxAgeDays, require and rollback are limits on somebody who is trusted; add trust.keys or trust.pinned" -}}
{{- end -}}
{{- if and $trust.inImage (include "serve-warm.trustConfigMap" .) -}}
{{- $problems = append $problems "trust.inImage: a ConfigMap at /etc/serve_warm would hide the file of the image; keep one of them" -}}
{{- end -}}
{{- range $index, $key := $trust.keys -}}
{{- if contains "PRIVATE KEY" .pem -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: this is a private key, which now stands in your values: make a new pair with serve-warm keygen, and put the public half, FILE.pub, here" $index) -}}
{{- else if not (regexMatch "-----BEGINPUBLICKEY-----MCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=-----ENDPUBLICKEY-----" (regexReplaceAll "\\s+" .pem "")) -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: no whole Ed25519 public key in PEM, so that no replica could read the trust file; copy all of the file that serve-warm keygen names FILE.pub, from -----BEGIN PUBLIC KEY----- to -----END PUBLIC KEY-----" $index) -}}
{{- end -}}
{{- end -}}
{{- $addresses := list -}}
{{- range (include "serve-warm.addresses" . | fromYaml).found -}}
{{- $addresses = append $addresses .address -}}
{{- end -}}
{{- range $index, $each := $trust.unsignedOk -}}
{{- if lt (len (trim (.reason | default ""))) 8 -}}
{{- $problems = append $problems (printf "trust.unsignedOk[%d].reason: whoever can write to that store runs code here; say in a few words why that is acceptable, or sign the artifact and use trust.keys" $index) -}}
{{- end -}}
{{- if not (has .store $addresses) -}}
{{- $problems = append $problems (printf "trust.unsignedOk[%d].store: no artifact is configured at exactly this address; copy artifact.store" $index) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Which mount of the chart another one at `path` would hide, or stand in: a volume of root's above a
       private folder keeps serve_warm from loading from that. Below /tmp all may mount. */ -}}
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

{{- /* Volumes and mounts of all pods, or of a group. Takes root, key, pod (what has them), and others, which its pods
       have too. */ -}}
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
{{- $problems = append $problems (printf "%sextraVolumes[%d].name: the chart has a volume %s itself, and Kubernetes takes no second one; choose another name" $key $index .name) -}}
{{- else if has .name $volumes -}}
{{- $problems = append $problems (printf "%sextraVolumes[%d].name: %s is there twice; name each volume differently" $key $index .name) -}}
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
{{- $problems = append $problems (printf "%sextraVolumeMounts[%d].mountPath: the chart mounts %s itself, and %s would hide or change what is there; choose another path" $key $index . $path) -}}
{{- end -}}
{{- if has $path $mounted -}}
{{- $problems = append $problems (printf "%sextraVolumeMounts[%d].mountPath: something is mounted at %s already, by extraVolumeMounts or writableDirs; keep one" $key $index $path) -}}
{{- end -}}
{{- $mounted = append $mounted $path -}}
{{- if not (has .name $volumes) -}}
{{- $problems = append $problems (printf "%sextraVolumeMounts[%d].name: extraVolumes has no volume %s; add it there" $key $index .name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.folders" -}}
{{- $problems := list -}}
{{- $values := .Values -}}
{{- if gt (len (.Values.cache | default dict)) 1 -}}
{{- $problems = append $problems (printf "cache: %s are set; keep one" (keys .Values.cache | sortAlpha | join " and ")) -}}
{{- end -}}
{{- $cache := .Values.cache | default dict -}}
{{- range $key, $size := dict "scratchSizeLimit" .Values.scratchSizeLimit "cache.emptyDir.sizeLimit" ($cache.emptyDir | default dict).sizeLimit "cache.ephemeral.size" ($cache.ephemeral | default dict).size -}}
{{- if and $size (lt (include "serve-warm.quantity" $size | float64) 1048576.0) -}}
{{- $problems = append $problems (printf "%s: %v is a number of bytes; write a unit, such as %vGi" $key $size (regexFind "^[0-9]+" (toString $size))) -}}
{{- end -}}
{{- end -}}
{{- range $kind, $volume := .Values.cache -}}
{{- if ($volume | default dict).readOnly -}}
{{- $problems = append $problems (printf "cache.%s.readOnly: replicas write what they download here; leave it out, and mount a finished artifact with artifact.volume" $kind) -}}
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
{{- $problems = append $problems (printf "writableDirs[%d]: %s and %s would be one folder; keep one, or choose another name" $index . $path) -}}
{{- end -}}
{{- end -}}
{{- if has $clean (list "/" "/home" "/usr" "/etc" "/var" "/run" "/opt" "/dev/shm") -}}
{{- $problems = append $problems (printf "writableDirs[%d]: an empty folder would hide %s; name a folder below it" $index $path) -}}
{{- else -}}
{{- with include "serve-warm.hidden" (dict "root" $ "path" $clean) -}}
{{- $problems = append $problems (printf "writableDirs[%d]: the chart mounts %s itself, and an empty folder at %s would hide or change what is there; name another folder" $index . $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podSecurityContext.runAsNonRoot (eq (toString .Values.podSecurityContext.runAsUser) "0") -}}
{{- $problems = append $problems "podSecurityContext.runAsUser: kubelet starts nothing as 0 under runAsNonRoot: true; name the user id of the image" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.readiness" -}}
{{- $problems := list -}}
{{- $readiness := .Values.readiness -}}
{{- $startup := .Values.startupProbe -}}
{{- $deadline := float64 .Values.warmup.deadline_s -}}
{{- if and (eq $readiness.mode "http") (not .Values.nodeServer.enabled) -}}
{{- $problems = append $problems "readiness.mode: http asks the node server, and nodeServer.enabled is false; enable it, or set exec" -}}
{{- end -}}
{{- if and (ne $readiness.mode "kuberay") $readiness.checkProxy (ne .Values.serve.proxyLocation "EveryNode") -}}
{{- $problems = append $problems (printf "readiness.checkProxy: workers have no proxy with serve.proxyLocation: %s, so that none would ever be ready; set EveryNode, or checkProxy: false and a Service of your own that selects the head" .Values.serve.proxyLocation) -}}
{{- end -}}
{{- if $startup.enabled -}}
{{- if and (eq $startup.waitFor "alive") (not .Values.nodeServer.enabled) -}}
{{- $problems = append $problems "startupProbe.waitFor: alive asks the node server, and nodeServer.enabled is false; enable it" -}}
{{- end -}}
{{- if and (eq $startup.waitFor "warm") (eq $readiness.mode "kuberay") -}}
{{- $problems = append $problems "startupProbe.waitFor: nobody is asked for warmth with readiness.mode: kuberay; set that to http or exec, or waitFor: alive" -}}
{{- else if eq $startup.waitFor "warm" -}}
{{- $budget := mulf $startup.periodSeconds (include "serve-warm.startupFailures" . | float64) -}}
{{- if lt (float64 $budget) $deadline -}}
{{- $problems = append $problems (printf "startupProbe.failureThreshold: its budget of %v s is below warmup.deadline_s, %v, so that kubelet would kill warm-ups, again and again; leave it out (%v), or set waitFor: alive" $budget $deadline (divf (mulf 1.5 $deadline) $startup.periodSeconds | ceil)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* A worker's end: endpoints forget it, Ray drains it, its processes and the node server stop. */ -}}
{{- define "serve-warm.check.grace" -}}
{{- $problems := list -}}
{{- $drain := .Values.workers | empty | ternary 30.0 0.0 -}}
{{- range $group := .Values.workers -}}
{{- $drain = maxf $drain (include "serve-warm.drainSeconds" (dict "root" $ "group" .)) -}}
{{- end -}}
{{- $server := .Values.nodeServer.enabled | ternary .Values.nodeServer.drainSeconds 0 -}}
{{- $needed := addf .Values.preStopSeconds $drain $server 10 -}}
{{- if lt (float64 .Values.terminationGracePeriodSeconds) (float64 $needed) -}}
{{- $problems = append $problems (printf "terminationGracePeriodSeconds: %v is too short for a worker to end in, so that replicas would be killed amid requests; set %v or more: preStopSeconds %v, up to %v while Ray drains the node (30, or the longest graceful_shutdown_timeout_s), nodeServer.drainSeconds %v, and 10 to end" .Values.terminationGracePeriodSeconds $needed .Values.preStopSeconds $drain $server) -}}
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
{{- $problems = append $problems "upgrade.initializingTimeoutSeconds: a RayCluster has none; leave it out" -}}
{{- else if lt (float64 .) (float64 $needed) -}}
{{- $problems = append $problems (printf "upgrade.initializingTimeoutSeconds: %v is below warmup.deadline_s × serve.constructorRetries = %v, and exceeding it is final: the RayService would have to be deleted; set %v or more, or leave it out" . $needed $needed) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.annotations | default dict) "ray.io/initializing-timeout" -}}
{{- $problems = append $problems "annotations: ray.io/initializing-timeout has to fit the deadline; set upgrade.initializingTimeoutSeconds" -}}
{{- end -}}
{{- if and $incremental (not $upgrade.options) -}}
{{- $problems = append $problems "upgrade.options: NewClusterWithIncrementalUpgrade needs gatewayClassName, stepSizePercent and intervalSeconds; set them, or type: NewCluster" -}}
{{- end -}}
{{- if and $incremental (not .Values.autoscaling.enabled) -}}
{{- $problems = append $problems "autoscaling.enabled: KubeRay refuses NewClusterWithIncrementalUpgrade without it; set it to true, or upgrade.type: NewCluster" -}}
{{- end -}}
{{- if and $upgrade.options (not $incremental) -}}
{{- $problems = append $problems (printf "upgrade.options: %s takes none; leave them out, or set upgrade.type: NewClusterWithIncrementalUpgrade" $upgrade.type) -}}
{{- end -}}
{{- if and $incremental $upgrade.options (gt (float64 $upgrade.options.stepSizePercent) (float64 (hasKey $upgrade.options "maxSurgePercent" | ternary $upgrade.options.maxSurgePercent 100))) -}}
{{- $problems = append $problems "upgrade.options.stepSizePercent: above maxSurgePercent, which KubeRay refuses; lower it" -}}
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
{{- $problems = append $problems "build.keySecret.name: empty, and an artifact that nobody signed is not loaded; create a Secret from the file of serve-warm keygen and name it" -}}
{{- end -}}
{{- if not $store -}}
{{- $problems = append $problems "artifact.store: empty, so that the build has no place to publish to; name a store, or artifact.volume.persistentVolumeClaim" -}}
{{- else if (.Values.artifact.volume | default dict).image -}}
{{- $problems = append $problems "build.enabled: nothing can be published into artifact.volume.image; build in CI and push the image, or use another store" -}}
{{- else if and (hasPrefix "file://" $store) (not .Values.artifact.volume) -}}
{{- $problems = append $problems "build.enabled: a folder of the Job's own pod ends with it; use a bucket, the Hub, or artifact.volume.persistentVolumeClaim" -}}
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
{{- $problems = append $problems (printf "build.application: an artifact is of one application, and there are %s; name one of them" (join ", " $names | default "none")) -}}
{{- else -}}
{{- $application := first $chosen -}}
{{- if hasKey ($application.runtime_env | default dict) "working_dir" -}}
{{- $problems = append $problems (printf "build.enabled: the Job imports %s from the image, and runtime_env.working_dir has replicas import it from elsewhere; put the code into the image and take working_dir out" $application.import_path) -}}
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
{{- $problems = append $problems (printf "build.deployment: an artifact is of one deployment, and %s warm up; name one of them" (join ", " $warming)) -}}
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
{{- $problems = append $problems (printf "build.groups[%d]: %s is there twice; keep one" $index $name) -}}
{{- end -}}
{{- end -}}
{{- $kinds := list -}}
{{- $holding := list -}}
{{- range $group := .Values.workers -}}
{{- if include "serve-warm.holdsBuilt" (dict "root" $ "group" .) -}}
{{- $holding = append $holding .name -}}
{{- $kinds = append $kinds (pick . "nodeSelector" "affinity" "resources" "resourceClaims" "runtimeClassName" "image" | toJson) -}}
{{- else if has .name ($build.groups | default list) -}}
{{- $problems = append $problems (printf "build.groups: no pod of %s can hold a replica of what is built, so that its Job would wait for ever; take it out" .name) -}}
{{- end -}}
{{- end -}}
{{- if and (not $build.groups) (gt (len (uniq $kinds)) 1) -}}
{{- $problems = append $problems (printf "build.groups: empty, and replicas of what is built can run in %s, which differ in nodes, resources or image, while an artifact fits one kind: those of the others would start cold; name a group of each kind: [%s]" (join " and " $holding) (join ", " $holding)) -}}
{{- end -}}
{{- $needed := addf 600 (mulf 4 .Values.warmup.deadline_s) -}}
{{- with $build.activeDeadlineSeconds -}}
{{- if lt (float64 .) (float64 $needed) -}}
{{- $problems = append $problems (printf "build.activeDeadlineSeconds: %v may end a build that is well: it is a compile and up to three fresh replicas, each with warmup.deadline_s; set %v or more, or leave it out" . $needed) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $build.when "beside") (eq (.Values.warmup.on_missing | default "compile") "fail") -}}
{{- $problems = append $problems "warmup.on_missing: fail, while the build runs beside the first start, which then finds no artifact and fails; set build.when: before" -}}
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
{{- $problems = append $problems "podDisruptionBudget.minAvailable: Kubernetes takes minAvailable or maxUnavailable; set one to null" -}}
{{- else if and $least (not (hasSuffix "%" $least)) (ge (int $least) (int $workers)) -}}
{{- $problems = append $problems (printf "podDisruptionBudget.minAvailable: %s of %d worker pods leaves none to move, so that no node could ever be drained; lower it, or add workers" $least $workers) -}}
{{- else if or (eq $least "100%") (has $most (list "0" "0%")) -}}
{{- $problems = append $problems "podDisruptionBudget.maxUnavailable: no pod may be moved, so that no node could ever be drained; set 1 or more" -}}
{{- end -}}
{{- end -}}
{{- $policy := .Values.networkPolicy -}}
{{- if $policy.enabled -}}
{{- if not $policy.operatorNamespace -}}
{{- $problems = append $problems "networkPolicy.operatorNamespace: empty, so that KubeRay could not submit the applications; name the namespace of the operator" -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled (not $policy.monitoringNamespace) -}}
{{- $problems = append $problems "networkPolicy.monitoringNamespace: empty, so that Prometheus could not scrape; name its namespace" -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.monitoring" -}}
{{- $problems := list -}}
{{- $monitoring := .Values.monitoring -}}
{{- if $monitoring.prometheusRule.enabled -}}
{{- if not (.Files.Get "rules/serve-warm.tpl.yaml") -}}
{{- $problems = append $problems "monitoring.prometheusRule.enabled: this copy of the chart has no rules/serve-warm.tpl.yaml; take a complete one" -}}
{{- end -}}
{{- if gt (float64 .Values.alerts.startSloSeconds) (float64 .Values.warmup.deadline_s) -}}
{{- $problems = append $problems (printf "alerts.startSloSeconds: %v is above warmup.deadline_s, %v, so that no start could miss it; lower it" .Values.alerts.startSloSeconds .Values.warmup.deadline_s) -}}
{{- end -}}
{{- end -}}
{{- if and $monitoring.dashboards.enabled (not (.Files.Glob "dashboards/*.json")) -}}
{{- $problems = append $problems "monitoring.dashboards.enabled: this copy of the chart has no dashboards/*.json; take a complete one" -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Variables that are not the user's, with why or what else to set, as YAML. */ -}}
{{- define "serve-warm.ownVariables" -}}
{{- toYaml (dict "SERVE_WARM_STATE_DIR" "the chart sets it, where the probe reads" "SERVE_WARM_NODE_CACHE_DIR" "set cache" "SERVE_WARM_DEADLINE_S" "set warmup.deadline_s" "SERVE_WARM_ARTIFACT" "set artifact.store" "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT" "set serve.constructorRetries" "RAY_SERVE_REPLICA_STARTUP_SHUTDOWN_LATENCY_BUCKETS_MS" "the chart sets it" "AWS_ENDPOINT_URL" "set artifact.endpointUrl" "HOME" "the chart sets it below /tmp; add folders with writableDirs") -}}
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
{{- $problems = append $problems (printf "%s[%d].name: %s is not to be set here; %s" $key $index $variable.name .) -}}
{{- end -}}
{{- if and (hasKey . "value") (regexMatch "(SECRET|TOKEN|PASSWORD|_KEY)$" .name) -}}
{{- $problems = append $problems (printf "%s[%d].value: a credential in plain sight of whoever reads the pod; use valueFrom.secretKeyRef, artifact.tokenSecret or artifact.credentialsSecret" $key $index) -}}
{{- end -}}
{{- if has .name $seen -}}
{{- $problems = append $problems (printf "%s[%d].name: %s is there twice; keep one" $key $index .name) -}}
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
{{- $problems = append $problems (printf "%s.env_vars.%s: it is not to be set here, where it wins over what the pod says; %s" $key $name (get $settings $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
