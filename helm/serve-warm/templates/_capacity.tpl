{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The resources that pods offer and replicas need, by Ray's names: CPU, GPU, memory (bytes) and custom ones. */ -}}

{{- /* A quantity such as 500m, 16Gi or 2, as a number. */ -}}
{{- define "serve-warm.quantity" -}}
{{- $text := toString . -}}
{{- $suffix := regexFind "[a-zA-Z]+$" $text -}}
{{- $scales := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- mulf (trimSuffix $suffix $text) (hasKey $scales $suffix | ternary (get $scales $suffix) 1.0) -}}
{{- end -}}

{{- /* A number without an exponent: 68719476736 instead of 6.8719476736e+10. */ -}}
{{- define "serve-warm.plain" -}}
{{- regexReplaceAll "\\.?0+$" (printf "%.3f" (float64 .)) "" -}}
{{- end -}}

{{- /* The custom resources of a group, as a JSON object. A shell passes them to Ray, so they are quoted. */ -}}
{{- define "serve-warm.customResources" -}}
{{- $text := index (.rayStartParams | default dict) "resources" | default "'{}'" | trim -}}
{{- trimAll "'\"" $text | replace "\\\"" "\"" -}}
{{- end -}}

{{- /* The resources that a pod of a group offers, as YAML. KubeRay passes rayStartParams to Ray, or else the limits (for CPUs also the requests). Without any of these, Ray offers the resources of the whole node, which are `unknown` here. */ -}}
{{- define "serve-warm.offer" -}}
{{- $unknown := 1e15 -}}
{{- $params := .rayStartParams | default dict -}}
{{- $limits := (.resources | default dict).limits | default dict -}}
{{- $requests := (.resources | default dict).requests | default dict -}}
{{- $offer := include "serve-warm.customResources" . | fromJson -}}
{{- $cpus := hasKey $limits "cpu" | ternary $limits.cpu (hasKey $requests "cpu" | ternary $requests.cpu $unknown) -}}
{{- $_ := set $offer "CPU" (index $params "num-cpus" | default (include "serve-warm.quantity" $cpus | ceil) | float64) -}}
{{- $memory := hasKey $limits "memory" | ternary $limits.memory $unknown -}}
{{- $_ := set $offer "memory" (index $params "memory" | default (include "serve-warm.quantity" $memory) | float64) -}}
{{- $gpus := 0.0 -}}
{{- range $name, $count := merge (dict) $limits $requests -}}
{{- if or (hasSuffix "gpu" $name) (hasPrefix "nvidia.com/mig-" $name) -}}
{{- $gpus = maxf $gpus (include "serve-warm.quantity" $count | ceil) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $offer "GPU" (index $params "num-gpus" | default $gpus | float64) -}}
{{- toYaml $offer -}}
{{- end -}}

{{- /* The same as serve-warm.offer, without the memory of the seats. */ -}}
{{- define "serve-warm.offerToReplicas" -}}
{{- $group := deepCopy .group -}}
{{- $_ := set $group "rayStartParams" (include "serve-warm.paramsWithSeats" . | fromYaml) -}}
{{- include "serve-warm.offer" $group -}}
{{- end -}}

{{- /* The groups whose pods can run replicas, as YAML: key, name, largest number of pods, the offer of each pod, and for workers the group itself. */ -}}
{{- define "serve-warm.groups" -}}
{{- $groups := list -}}
{{- if include "serve-warm.headRunsReplicas" . -}}
{{- $groups = append $groups (dict "key" "head" "name" "the head" "pods" 1 "offer" (include "serve-warm.offerToReplicas" (dict "root" . "group" .Values.head "replicas" "yes") | fromYaml)) -}}
{{- end -}}
{{- range $index, $group := .Values.workers -}}
{{- $pods := hasKey . "replicas" | ternary .replicas 1 | int -}}
{{- if $.Values.autoscaling.enabled -}}
{{- $pods = max $pods (hasKey . "maxReplicas" | ternary .maxReplicas $pods | int) -}}
{{- end -}}
{{- $pods = mul $pods (.numOfHosts | default 1) -}}
{{- if gt (int $pods) 0 -}}
{{- $groups = append $groups (dict "key" (printf "workers[%d]" $index) "name" .name "pods" $pods "group" . "offer" (include "serve-warm.offerToReplicas" (dict "root" $ "group" . "replicas" "yes") | fromYaml)) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "found" $groups) -}}
{{- end -}}

{{- /* The resources that a replica of a deployment needs, as YAML. Serve's default is one CPU. Resources that Ray detects itself, such as accelerator_type:H100 or TPU, are left out. */ -}}
{{- define "serve-warm.wants" -}}
{{- $actor := .ray_actor_options | default dict -}}
{{- $wants := dict "CPU" (hasKey $actor "num_cpus" | ternary $actor.num_cpus 1) "GPU" ($actor.num_gpus | default 0) "memory" ($actor.memory | default 0) -}}
{{- range $name, $amount := $actor.resources | default dict -}}
{{- if not (regexMatch ":|^(TPU|HPU|NPU|RBLN|neuron_cores)" $name) -}}
{{- $_ := set $wants $name $amount -}}
{{- end -}}
{{- end -}}
{{- toYaml $wants -}}
{{- end -}}

{{- /* The smallest and largest number of replicas of a deployment, as YAML. */ -}}
{{- define "serve-warm.count" -}}
{{- $autoscaling := .autoscaling_config | default dict -}}
{{- $least := 1 -}}
{{- $highest := 1 -}}
{{- if or $autoscaling (kindIs "string" .num_replicas) -}}
{{- $least = hasKey $autoscaling "min_replicas" | ternary $autoscaling.min_replicas 1 | int -}}
{{- $highest = $autoscaling.max_replicas | default (kindIs "string" .num_replicas | ternary 100 (max $least 1)) | int -}}
{{- else -}}
{{- $least = .num_replicas | default 1 | int -}}
{{- $highest = $least -}}
{{- end -}}
{{- toYaml (dict "least" $least "highest" $highest) -}}
{{- end -}}

{{- /* How many replicas of `deployment` one pod with this `offer` holds. */ -}}
{{- define "serve-warm.fits" -}}
{{- $offer := .offer -}}
{{- $fits := .deployment.max_replicas_per_node | default 1000000 | float64 -}}
{{- range $name, $amount := include "serve-warm.wants" .deployment | fromYaml -}}
{{- if gt (float64 $amount) 0.0 -}}
{{- $fits = minf $fits (divf (index $offer $name | default 0) $amount | floor) -}}
{{- end -}}
{{- end -}}
{{- int $fits -}}
{{- end -}}

{{- define "serve-warm.check.capacity" -}}
{{- $problems := list -}}
{{- $values := .Values -}}
{{- range $index, $group := prepend .Values.workers .Values.head -}}
{{- $key := eq $index 0 | ternary "head" (printf "workers[%d]" (sub $index 1)) -}}
{{- $text := index (.rayStartParams | default dict) "resources" | default "'{}'" | trim -}}
{{- if or (not (regexMatch "^('[^']*'|\"([^\"\\\\]|\\\\.)*\")$" $text)) (hasKey (include "serve-warm.customResources" . | fromJson) "Error") -}}
{{- $problems = append $problems (printf "%s.rayStartParams.resources: a shell passes this value to Ray, which could not parse it; write a string with a JSON object in single quotes: \"'{\\\"name\\\": 1}'\"" $key) -}}
{{- end -}}
{{- end -}}
{{- $groups := (include "serve-warm.groups" . | fromYaml).found -}}
{{- /* check.cluster reports if there are no pods at all. */ -}}
{{- if $groups -}}
{{- $options := dict "CPU" "num_cpus" "GPU" "num_gpus" "memory" "memory" -}}
{{- $units := dict "CPU" "CPUs" "GPU" "GPUs" "memory" "bytes of memory" -}}
{{- $fixes := dict "CPU" "raise resources.limits.cpu of a worker group" "GPU" "set resources.limits of a worker group, such as nvidia.com/gpu, or rayStartParams.num-gpus if resources.claims provide them" "memory" "raise resources.limits.memory of a worker group (seats take part of it if warmup.seats.count is set)" -}}
{{- $wanted := dict -}}
{{- $nowhere := list -}}
{{- $unsaid := false -}}
{{- $crowded := list -}}
{{- range $index, $application := .Values.applications -}}
{{- range $number, $deployment := .deployments -}}
{{- $key := printf "applications[%d].deployments[%d]" $index $number -}}
{{- $wants := include "serve-warm.wants" . | fromYaml -}}
{{- $count := (include "serve-warm.count" . | fromYaml).least -}}
{{- $possible := true -}}
{{- if not (hasKey (.ray_actor_options | default dict) "num_cpus") -}}
{{- $unsaid = true -}}
{{- end -}}
{{- range $name, $amount := $wants -}}
{{- $most := 0.0 -}}
{{- range $groups -}}
{{- $most = maxf $most (index .offer $name | default 0) -}}
{{- end -}}
{{- if gt (float64 $amount) (float64 $most) -}}
{{- $possible = false -}}
{{- $nowhere = append $nowhere $name -}}
{{- $option := index $options $name | default (printf "resources.%s" $name) -}}
{{- $fix := index $fixes $name | default (printf "put it into rayStartParams.resources of a worker group: \"'{\\\"%s\\\": 1}'\"" $name) -}}
{{- $problems = append $problems (printf "%s.ray_actor_options.%s: no pod has %s %s (the most is %s), so the replica would wait forever; %s" $key $option (include "serve-warm.plain" $amount) (index $units $name | default (printf "of %s" $name)) (include "serve-warm.plain" $most) $fix) -}}
{{- end -}}
{{- if not $deployment.placement_group_bundles -}}
{{- $_ := set $wanted $name (addf (index $wanted $name | default 0) (mulf $count $amount)) -}}
{{- end -}}
{{- end -}}
{{- $places := 0 -}}
{{- $holds := 0 -}}
{{- range $groups -}}
{{- $fits := include "serve-warm.fits" (dict "deployment" $deployment "offer" .offer) | int -}}
{{- $holds = max $holds $fits -}}
{{- $places = add $places (mul .pods $fits) -}}
{{- end -}}
{{- if and $possible (eq (int $holds) 0) -}}
{{- $problems = append $problems (printf "%s.ray_actor_options: no single pod has all resources that a replica needs, so the replica would wait forever; raise resources.limits of one worker group until it has all of them" $key) -}}
{{- else if and $possible (gt (int $count) (int $places)) -}}
{{- $crowded = append $crowded (printf "%s.num_replicas: all possible pods hold %d replicas of %s, but the deployment needs %v, so some replicas would wait forever; give the worker groups more or larger pods, or lower num_replicas" $key $places .name $count) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $enough := true -}}
{{- range $name, $amount := $wanted -}}
{{- $all := 0.0 -}}
{{- range $groups -}}
{{- $all = addf $all (mulf .pods (index .offer $name | default 0)) -}}
{{- end -}}
{{- if and (gt (float64 $amount) (float64 $all)) (not (has $name $nowhere)) -}}
{{- $enough = false -}}
{{- $fix := $values.autoscaling.enabled | ternary "raise maxReplicas of a worker group, which limits autoscaling" "add workers, or set autoscaling.enabled: true and maxReplicas of a worker group" -}}
{{- $default := and $unsaid (eq $name "CPU") | ternary "; a replica without ray_actor_options.num_cpus needs 1 CPU, Serve's default" "" -}}
{{- $problems = append $problems (printf "workers: the replicas of all applications need %s %s but the pods offer %s, so some replicas would wait forever%s; %s" (include "serve-warm.plain" $amount) (index $units $name | default (printf "of %s" $name)) (include "serve-warm.plain" $all) $default $fix) -}}
{{- end -}}
{{- end -}}
{{- if $enough -}}
{{- $problems = concat $problems $crowded -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
