{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Seats: their settings and hook in a deployment, and their memory in a pod. */ -}}

{{- /* The seat settings of `deployment`, as YAML: each field from the deployment itself, or else from warmup.seats. */ -}}
{{- define "serve-warm.seatSettings" -}}
{{- $own := (.deployment.user_config | default dict).warmup | default dict -}}
{{- $seats := dict -}}
{{- range $fields := list (.root.Values.warmup.seats | default dict) ($own.seats | default dict) -}}
{{- range $name, $value := $fields -}}
{{- $_ := set $seats $name $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $seats -}}
{{- end -}}

{{- /* How many seats `deployment` keeps on each pod; 0 if the deployment does not warm up. */ -}}
{{- define "serve-warm.seatsWanted" -}}
{{- $config := .deployment.user_config | default dict -}}
{{- $own := $config.warmup | default dict -}}
{{- $enabled := hasKey $own "enabled" | ternary $own.enabled (hasKey .root.Values.warmup "enabled" | ternary .root.Values.warmup.enabled true) -}}
{{- if and (hasKey $config "warmup") $enabled -}}
{{- (include "serve-warm.seatSettings" . | fromYaml).count | default 0 | int -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{- /* Adds the variable that makes Ray call serve_warm in each worker, unless the deployment or its application already sets a hook. Changes `deployment`. */ -}}
{{- define "serve-warm.addSeatHook" -}}
{{- $name := "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR" -}}
{{- $options := .deployment.ray_actor_options | default dict -}}
{{- $runtime := $options.runtime_env | default dict -}}
{{- $variables := $runtime.env_vars | default dict -}}
{{- if not (or (hasKey $variables $name) (hasKey ((.application.runtime_env | default dict).env_vars | default dict) $name)) -}}
{{- $_ := set $variables $name "serve_warm.preload.run" -}}
{{- $_ := set $runtime "env_vars" $variables -}}
{{- $_ := set $options "runtime_env" $runtime -}}
{{- $_ := set .deployment "ray_actor_options" $options -}}
{{- end -}}
{{- end -}}

{{- /* How many seats a pod of `group` holds: the sum over all deployments that can run on it. 0 if `replicas` is empty, because the pod then runs no replicas. */ -}}
{{- define "serve-warm.seatCount" -}}
{{- $root := .root -}}
{{- $offer := include "serve-warm.offer" .group | fromYaml -}}
{{- $seats := 0 -}}
{{- if .replicas -}}
{{- range $application := $root.Values.applications -}}
{{- range $deployment := .deployments -}}
{{- if gt (include "serve-warm.fits" (dict "deployment" . "offer" $offer) | int) 0 -}}
{{- $seats = add $seats (include "serve-warm.seatsWanted" (dict "root" $root "deployment" .) | int) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $seats -}}
{{- end -}}

{{- /* The memory of the seats on a pod, in bytes. */ -}}
{{- define "serve-warm.seatBytes" -}}
{{- mulf (include "serve-warm.seatCount" . | int) (include "serve-warm.quantity" .root.Values.seats.memory | float64) | include "serve-warm.plain" -}}
{{- end -}}

{{- /* The resources of Ray's container, as YAML: the group's resources, with the memory of its seats added to the request. If only a limit is set, Kubernetes requests the limit, so nothing is added. */ -}}
{{- define "serve-warm.resourcesWithSeats" -}}
{{- $resources := deepCopy (.group.resources | default dict) -}}
{{- $seats := include "serve-warm.seatBytes" . | float64 -}}
{{- $requests := $resources.requests | default dict -}}
{{- if and (gt $seats 0.0) (or (hasKey $requests "memory") (not (hasKey ($resources.limits | default dict) "memory"))) -}}
{{- $asked := include "serve-warm.quantity" ($requests.memory | default 0) -}}
{{- $_ := set $requests "memory" (addf $asked $seats | include "serve-warm.plain") -}}
{{- $_ := set $resources "requests" $requests -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* rayStartParams as YAML, without the memory of the seats, so that Ray does not give this memory to replicas. */ -}}
{{- define "serve-warm.paramsWithSeats" -}}
{{- $params := deepCopy (.group.rayStartParams | default dict) -}}
{{- $seats := include "serve-warm.seatBytes" . | float64 -}}
{{- $limits := (.group.resources | default dict).limits | default dict -}}
{{- if and (gt $seats 0.0) (hasKey $limits "memory") (not (hasKey $params "memory")) -}}
{{- $_ := set $params "memory" (subf (include "serve-warm.quantity" $limits.memory) $seats | floor | maxf 0.0 | include "serve-warm.plain") -}}
{{- end -}}
{{- toYaml $params -}}
{{- end -}}

{{- define "serve-warm.check.seats" -}}
{{- $problems := list -}}
{{- $root := . -}}
{{- range $index, $group := prepend .Values.workers .Values.head -}}
{{- $key := eq $index 0 | ternary "head" (printf "workers[%d]" (sub $index 1)) -}}
{{- $taken := dict "root" $root "group" $group "replicas" (eq $index 0 | ternary (include "serve-warm.headRunsReplicas" $root) "yes") -}}
{{- $seats := include "serve-warm.seatBytes" $taken | float64 -}}
{{- $limits := ($group.resources | default dict).limits | default dict -}}
{{- $requests := ($group.resources | default dict).requests | default dict -}}
{{- if and (gt $seats 0.0) (hasKey $limits "memory") -}}
{{- $limit := include "serve-warm.quantity" $limits.memory | float64 -}}
{{- $asked := include "serve-warm.quantity" ($requests.memory | default 0) | float64 -}}
{{- $params := $group.rayStartParams | default dict -}}
{{- $said := printf "%s seats need %s bytes of memory" (include "serve-warm.seatCount" $taken) (include "serve-warm.plain" $seats) -}}
{{- if gt (addf $asked $seats) $limit -}}
{{- $problems = append $problems (printf "%s.resources.limits.memory: %s in addition to the requests of %s, but the limit is %s; raise the limit to %s, or lower resources.requests.memory, or warmup.seats.count" $key $said (include "serve-warm.plain" $asked) (include "serve-warm.plain" $limit) (include "serve-warm.plain" (addf $asked $seats))) -}}
{{- else if and (hasKey $params "memory") (gt (addf $params.memory $seats) $limit) -}}
{{- $problems = append $problems (printf "%s.rayStartParams.memory: %s, and Ray would give %v of the limit of %s to replicas; lower rayStartParams.memory to %s, or leave it out" $key $said $params.memory (include "serve-warm.plain" $limit) (include "serve-warm.plain" (subf $limit $seats))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
