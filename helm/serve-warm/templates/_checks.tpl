{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Checks that a schema cannot express: values that install but then hang or misbehave. All problems are reported at once, each as `key: problem; fix`. */ -}}

{{- define "serve-warm.check" -}}
{{- /* Every template includes this, because Helm does not document which one it renders first. Only the first call checks, because `helm lint` continues after `fail`. */ -}}
{{- if not (hasKey .Values "checked") -}}
{{- $_ := set .Values "checked" true -}}
{{- $problems := list -}}
{{- range $part := list "image" "cluster" "applications" "capacity" "seats" "awaited" "artifact" "trust" "cache" "folders" "readiness" "upgrade" "grace" "build" "availability" "monitoring" "env" -}}
{{- $problems = concat $problems (include (printf "serve-warm.check.%s" $part) $ | fromYamlArray) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "these values cannot work:\n  - %s\n" (join "\n  - " $problems)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "serve-warm.check.image" -}}
{{- $problems := list -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- $problems = append $problems "image.repository: empty; name an image with Ray, torch, serve_warm and your application" -}}
{{- end -}}
{{- $tags := dict "image" $image.tag -}}
{{- range $index, $group := .Values.workers -}}
{{- $_ := set $tags (printf "workers[%d].image" $index) (.image | default dict).tag -}}
{{- end -}}
{{- range $key, $tag := $tags -}}
{{- if eq (toString $tag) "latest" -}}
{{- $problems = append $problems (printf "%s.tag: latest changes over time, but an artifact matches only one image; set a version, or %s.digest" $key $key) -}}
{{- end -}}
{{- end -}}
{{- if not (or $image.tag $image.digest) -}}
{{- $problems = append $problems "image.tag: neither image.tag nor image.digest is set; set one of them" -}}
{{- end -}}
{{- $limit := eq .Values.kind "RayService" | ternary 47 53 -}}
{{- $name := include "serve-warm.fullname" . -}}
{{- if gt (len $name) $limit -}}
{{- $problems = append $problems (printf "fullnameOverride: the name %s has %d characters, but KubeRay accepts at most %d for a %s; set a shorter name" $name (len $name) $limit .Values.kind) -}}
{{- end -}}
{{- if semverCompare "<2.53.0-0" .Values.rayVersion -}}
{{- $problems = append $problems (printf "rayVersion: serve_warm needs Ray 2.53 or newer, found %s; use an image with a newer Ray" .Values.rayVersion) -}}
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
{{- $highest := hasKey . "maxReplicas" | ternary .maxReplicas $replicas | int -}}
{{- $most = add $most (max $replicas ($values.autoscaling.enabled | default false | ternary $highest 0)) -}}
{{- if has .name $names -}}
{{- $problems = append $problems (printf "%s.name: %s appears twice; name each group differently" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $index, $group := concat (list .Values.head .Values.build) .Values.workers -}}
{{- $key := lt $index 2 | ternary (index (list "head" "build") (min $index 1)) (printf "workers[%d]" (sub $index 2)) -}}
{{- range $label, $_ := .labels -}}
{{- if or (eq $label "app.kubernetes.io/name") (hasPrefix "ray.io/" $label) (has $label (list "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/created-by")) -}}
{{- $problems = append $problems (printf "%s.labels: KubeRay or this chart selects pods by %s; use another label" $key $label) -}}
{{- else if eq $label "kueue.x-k8s.io/queue-name" -}}
{{- $problems = append $problems (printf "%s.labels: with %s, Kueue would queue each pod separately; put it in labels, or in build.jobLabels for the Job" $key $label) -}}
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
{{- if and (eq $name "metrics-export-port") $values.monitoring.podMonitor.enabled (ne (toString $value) "8080") -}}
{{- $problems = append $problems (printf "%s.rayStartParams.metrics-export-port: the PodMonitor scrapes 8080, but Ray would export metrics on port %v; leave this parameter out" $key $value) -}}
{{- end -}}
{{- if and $head (eq $name "dashboard-host") (regexMatch "^(127\\.|localhost$|::1$|\\[::1\\]$)" $value) -}}
{{- $problems = append $problems (printf "head.rayStartParams.dashboard-host: KubeRay submits the applications to the dashboard over the network, but %s is reachable only inside the pod; leave it out, or set 0.0.0.0 or ::" $value) -}}
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
{{- toYaml $problems -}}
{{- end -}}

{{- /* Former names of the settings, each with its new name; empty if there is none. As YAML. */ -}}
{{- define "serve-warm.formerSettings" -}}
{{- toYaml (dict "on_uncovered" "on_unproven" "parity" "eager_sample" "parts" "max_level" "headers" "" "max_passes" "" "node_cache_dir" "" "overlap" "" "pgo" "" "readahead" "") -}}
{{- end -}}

{{- /* Takes key and settings. */ -}}
{{- define "serve-warm.check.formerNames" -}}
{{- $problems := list -}}
{{- $key := .key -}}
{{- $settings := .settings -}}
{{- range $former, $name := include "serve-warm.formerSettings" . | fromYaml -}}
{{- if hasKey $settings $former -}}
{{- $problems = append $problems (printf "%s.%s: %s" $key $former ($name | empty | ternary "no longer a setting; delete it" (printf "not a setting; did you mean %s?" $name))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.applications" -}}
{{- $problems := include "serve-warm.check.formerNames" (dict "key" "warmup" "settings" .Values.warmup) | fromYamlArray -}}
{{- if and (eq .Values.kind "RayService") (not .Values.applications) -}}
{{- $problems = append $problems "applications: empty; list them as in a Serve YAML, each with name, import_path and deployments" -}}
{{- end -}}
{{- $warming := 0 -}}
{{- range $index, $application := .Values.applications -}}
{{- $key := printf "applications[%d]" $index -}}
{{- range $number, $deployment := .deployments -}}
{{- $key := printf "%s.deployments[%d]" $key $number -}}
{{- if hasKey (.user_config | default dict) "warmup" -}}
{{- $warming = add1 $warming -}}
{{- $own := .user_config.warmup | default dict -}}
{{- $problems = concat $problems (include "serve-warm.check.formerNames" (dict "key" (printf "%s.user_config.warmup" $key) "settings" $own) | fromYamlArray) -}}
{{- if hasKey $own "deadline_s" -}}
{{- $problems = append $problems (printf "%s.user_config.warmup.deadline_s: probes and timeouts depend only on warmup.deadline_s; set warmup.deadline_s to the longest deadline" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.applications (eq $warming 0) (ne .Values.readiness.mode "kuberay") -}}
{{- $problems = append $problems "applications: no deployment has user_config.warmup, so no worker would ever be ready; add user_config: {warmup: {}} to deployments that use serve_warm, or set readiness.mode: kuberay" -}}
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
{{- if and $artifact.volume $artifact.store (not (hasPrefix "file:///srv/serve_warm/artifacts" $artifact.store)) -}}
{{- $problems = append $problems "artifact.store: artifact.volume is mounted at /srv/serve_warm/artifacts, but the store is elsewhere; leave the store empty, name file:///srv/serve_warm/artifacts/…, or remove the volume" -}}
{{- end -}}
{{- /* The chart does not install below 1.29; older versions come only from defaults of an old `helm lint`. */ -}}
{{- if and ($artifact.volume | default dict).image (semverCompare ">=1.29.0-0 <1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $problems = append $problems (printf "artifact.volume.image: image volumes need Kubernetes 1.31, found %s; bake the artifact into the image, or use a persistentVolumeClaim" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
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
{{- else if gt (len (splitList "-----BEGIN " .pem)) 2 -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: more than one PEM block, of which replicas would read none; write an item for each key" $index) -}}
{{- /* The last character before the = has two bits that no key uses, so only 16 characters are right. */ -}}
{{- else if not (regexMatch "-----BEGINPUBLICKEY-----MCowBQYDK2VwAyEA[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=-----ENDPUBLICKEY-----" (regexReplaceAll "\\s+" .pem "")) -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: not a complete Ed25519 public key in PEM, so no replica could read the trust file; copy the whole FILE.pub of serve-warm keygen, from -----BEGIN PUBLIC KEY----- to -----END PUBLIC KEY-----" $index) -}}
{{- /* All points of small order and all encodings that are not canonical. `_check_point` in serve_warm/trust/keys.py says why. */ -}}
{{- else if regexMatch "MCowBQYDK2VwAyEA(A{41}[AI]A|AQA{39}[AI]A|JuiVj8KyJ7BFw/SJ8u\\+Y8NXfrAXTxjM5sTgCiG1T/[AI]U|xxdqcD1N2E\\+6PAt2DRBnDyogU/osOczGTsf9d5KsA[3/]o|[789+/][Pfv/]/{39}[3/]8)=" (regexReplaceAll "\\s+" .pem "") -}}
{{- $problems = append $problems (printf "trust.keys[%d].pem: anyone can sign for this key without a private key; find out who added it, and replace it with FILE.pub of serve-warm keygen" $index) -}}
{{- end -}}
{{- end -}}
{{- $addresses := list -}}
{{- range (include "serve-warm.addresses" . | fromYaml).found -}}
{{- $addresses = append $addresses .address -}}
{{- end -}}
{{- range $index, $each := $trust.unsignedOk -}}
{{- if not (has .store $addresses) -}}
{{- $problems = append $problems (printf "trust.unsignedOk[%d].store: no artifact is configured at exactly this address; copy artifact.store" $index) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* The volume of the downloads must be larger than the limit of each deployment that uses it. */ -}}
{{- define "serve-warm.check.cache" -}}
{{- $problems := list -}}
{{- $default := .Values.warmup.node_cache_max_bytes | default 10737418240.0 | float64 -}}
{{- $limits := list -}}
{{- range .Values.applications -}}
{{- range .deployments -}}
{{- if hasKey (.user_config | default dict) "warmup" -}}
{{- $limits = append $limits ((.user_config.warmup | default dict).node_cache_max_bytes | default $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $most := 0.0 -}}
{{- range $limits | default (list $default) -}}
{{- $most = maxf $most . -}}
{{- end -}}
{{- $cache := .Values.cache | default dict -}}
{{- $why := dict "emptyDir.sizeLimit" "the kubelet would evict pods when the downloads fill the volume" "ephemeral.size" "the volume would be full before serve_warm deletes old downloads" -}}
{{- range $key, $size := dict "emptyDir.sizeLimit" ($cache.emptyDir | default dict).sizeLimit "ephemeral.size" ($cache.ephemeral | default dict).size -}}
{{- if and $size (le (include "serve-warm.quantity" $size | float64) $most) -}}
{{- $problems = append $problems (printf "cache.%s: %v is not larger than node_cache_max_bytes, %s, so %s; raise it, or lower warmup.node_cache_max_bytes" $key $size (include "serve-warm.plain" $most) (get $why $key)) -}}
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

{{- define "serve-warm.check.folders" -}}
{{- $problems := list -}}
{{- $mounts := dict "extraVolumeMounts" .Values.extraVolumeMounts -}}
{{- range $index, $group := .Values.workers -}}
{{- $_ := set $mounts (printf "workers[%d].extraVolumeMounts" $index) .extraVolumeMounts -}}
{{- end -}}
{{- $paths := dict -}}
{{- range $key, $each := $mounts -}}
{{- range $index, $mount := $each -}}
{{- $_ := set $paths (printf "%s[%d].mountPath" $key $index) (clean .mountPath) -}}
{{- end -}}
{{- end -}}
{{- range $index, $path := .Values.writableDirs -}}
{{- $path := clean $path -}}
{{- if has $path (list "/" "/home" "/usr" "/etc" "/var" "/run" "/opt" "/dev/shm") -}}
{{- $problems = append $problems (printf "writableDirs[%d]: an empty folder would hide %s; name a folder below it" $index $path) -}}
{{- else -}}
{{- $_ := set $paths (printf "writableDirs[%d]" $index) $path -}}
{{- end -}}
{{- end -}}
{{- range $key, $path := $paths -}}
{{- with include "serve-warm.hidden" (dict "root" $ "path" $path) -}}
{{- $problems = append $problems (printf "%s: the chart mounts %s, and a mount at %s would hide or change this folder; choose another path" $key . $path) -}}
{{- end -}}
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
{{- $needed := mulf .Values.warmup.deadline_s .Values.serve.constructorRetries -}}
{{- with .Values.upgrade.initializingTimeoutSeconds -}}
{{- if lt (float64 .) (float64 $needed) -}}
{{- $problems = append $problems (printf "upgrade.initializingTimeoutSeconds: %v is below warmup.deadline_s × serve.constructorRetries = %v, and after the timeout the RayService must be deleted; set %v or more, or leave it out" . $needed $needed) -}}
{{- end -}}
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
{{- if and $least (not (hasSuffix "%" $least)) (ge (int $least) (int $workers)) -}}
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
{{- if and .Values.monitoring.prometheusRule.enabled (gt (float64 .Values.alerts.startSloSeconds) (float64 .Values.warmup.deadline_s)) -}}
{{- $problems = append $problems (printf "alerts.startSloSeconds: %v is above warmup.deadline_s, %v, so no start could miss the objective; lower alerts.startSloSeconds" .Values.alerts.startSloSeconds .Values.warmup.deadline_s) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Variables that users must not set, each with the reason or the value to set instead, as YAML. */ -}}
{{- define "serve-warm.ownVariables" -}}
{{- toYaml (dict "SERVE_WARM_STATE_DIR" "the chart sets it to the folder that the probe reads" "SERVE_WARM_DEADLINE_S" "set warmup.deadline_s" "SERVE_WARM_ARTIFACT" "set artifact.store" "SERVE_WARM_APPLICATION" "set warmup.application" "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT" "set serve.constructorRetries" "RAY_SERVE_REPLICA_STARTUP_SHUTDOWN_LATENCY_BUCKETS_MS" "the chart sets it" "AWS_ENDPOINT_URL" "set artifact.endpointUrl" "HOME" "the chart sets it below /tmp; add folders with writableDirs") -}}
{{- end -}}

{{- define "serve-warm.check.env" -}}
{{- $problems := list -}}
{{- $settings := include "serve-warm.ownVariables" . | fromYaml -}}
{{- $places := list (dict "key" "env" "env" .Values.env) (dict "key" "head.env" "env" .Values.head.env) (dict "key" "build.env" "env" .Values.build.env) -}}
{{- range $index, $group := .Values.workers -}}
{{- $places = append $places (dict "key" (printf "workers[%d].env" $index) "env" (.env | default list)) -}}
{{- end -}}
{{- range $places -}}
{{- $key := .key -}}
{{- range $index, $variable := .env -}}
{{- with index $settings .name -}}
{{- $problems = append $problems (printf "%s[%d].name: %s must not be set here; %s" $key $index $variable.name .) -}}
{{- end -}}
{{- if and (hasKey . "value") (regexMatch "(SECRET|TOKEN|PASSWORD|_KEY)$" .name) -}}
{{- $problems = append $problems (printf "%s[%d].value: this credential would be visible to anyone who can read the pod; use valueFrom.secretKeyRef, artifact.tokenSecret or artifact.credentialsSecret" $key $index) -}}
{{- end -}}
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
