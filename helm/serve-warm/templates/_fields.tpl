{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* What the API server refuses or drops, of values that are passed on to pods: fields that Kubernetes does not
       have, values of fields, amounts of devices, claims, containers. */ -}}

{{- /* The fields of what is passed on, as Kubernetes 1.37 has them: a map, or a list of such. Of a field `text` and
       `number` are its type, other words its values; "" takes all. */ -}}
{{- define "serve-warm.shapes" -}}
tolerations:
  {key: text, operator: Exists Equal Lt Gt, value: text, effect: NoSchedule PreferNoSchedule NoExecute, tolerationSeconds: number}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: &node
        matchExpressions: &expressions {key: text, operator: In NotIn Exists DoesNotExist Gt Lt, values: text}
        matchFields: *expressions
    preferredDuringSchedulingIgnoredDuringExecution: {weight: number, preference: *node}
  podAffinity: &pods
    requiredDuringSchedulingIgnoredDuringExecution: &term
      topologyKey: text
      labelSelector: &selector
        matchLabels: ""
        matchExpressions: {key: text, operator: In NotIn Exists DoesNotExist, values: text}
      namespaces: text
      namespaceSelector: *selector
      matchLabelKeys: ""
      mismatchLabelKeys: ""
    preferredDuringSchedulingIgnoredDuringExecution: {weight: number, podAffinityTerm: *term}
  podAntiAffinity: *pods
topologySpreadConstraints:
  maxSkew: number
  topologyKey: text
  whenUnsatisfiable: DoNotSchedule ScheduleAnyway
  labelSelector: *selector
  minDomains: number
  nodeAffinityPolicy: Honor Ignore
  nodeTaintsPolicy: Honor Ignore
  matchLabelKeys: ""
resourceClaims: {name: "", resourceClaimName: "", resourceClaimTemplateName: ""}
env: &env
  name: ""
  value: ""
  valueFrom:
    secretKeyRef: &key {name: "", key: "", optional: ""}
    configMapKeyRef: *key
    fieldRef: {apiVersion: "", fieldPath: ""}
    resourceFieldRef: {containerName: "", resource: "", divisor: ""}
    fileKeyRef: {volumeName: "", path: "", key: "", optional: ""}
envFrom: &envFrom
  prefix: ""
  configMapRef: &reference {name: "", optional: ""}
  secretRef: *reference
extraVolumes:
  {name: "", awsElasticBlockStore: "", azureDisk: "", azureFile: "", cephfs: "", cinder: "", configMap: "", csi: "",
  downwardAPI: "", emptyDir: {medium: "", mode: "", sizeLimit: ""}, ephemeral: {volumeClaimTemplate: ""}, fc: "", flexVolume: "",
  flocker: "", gcePersistentDisk: "", gitRepo: "", glusterfs: "", hostPath: {path: "", type: ""},
  image: {reference: "", pullPolicy: ""}, iscsi: "", nfs: "", persistentVolumeClaim: {claimName: "", readOnly: ""},
  photonPersistentDisk: "", portworxVolume: "", projected: "", quobyte: "", rbd: "", scaleIO: "", secret: "",
  storageos: "", vsphereVolume: ""}
extraVolumeMounts: &mounts
  {name: "", mountPath: "", subPath: "", subPathExpr: "", readOnly: "", recursiveReadOnly: "", mountPropagation: "",
  bindMountOptions: ""}
initContainers: &container
  {name: "", image: "", imagePullPolicy: Always IfNotPresent Never, command: text, args: text, workingDir: "", ports: "", env: *env,
  envFrom: *envFrom, resources: "", resizePolicy: "", restartPolicy: "", restartPolicyRules: "", volumeMounts: *mounts,
  volumeDevices: "", livenessProbe: "", readinessProbe: "", startupProbe: "", lifecycle: "", terminationMessagePath: "",
  terminationMessagePolicy: "", securityContext: "", stdin: "", stdinOnce: "", tty: ""}
sidecars: *container
clients: &peer
  podSelector: *selector
  namespaceSelector: *selector
  ipBlock: {cidr: "", except: ""}
seccompProfile: {type: RuntimeDefault Localhost Unconfined, localhostProfile: ""}
appArmorProfile: {type: RuntimeDefault Localhost Unconfined, localhostProfile: ""}
egress: {to: *peer, ports: {port: "", protocol: TCP UDP SCTP, endPort: ""}}
{{- end -}}

{{- /* Takes key, value and shape. */ -}}
{{- define "serve-warm.check.shape" -}}
{{- $problems := list -}}
{{- $key := .key -}}
{{- $shape := .shape -}}
{{- if kindIs "slice" .value -}}
{{- range $index, $each := .value -}}
{{- $problems = concat $problems (include "serve-warm.check.shape" (dict "key" (printf "%s[%d]" $key $index) "value" $each "shape" $shape) | fromYamlArray) -}}
{{- end -}}
{{- else if and (kindIs "map" .value) (kindIs "map" $shape) -}}
{{- range $name, $each := .value -}}
{{- if hasKey $shape $name -}}
{{- $problems = concat $problems (include "serve-warm.check.shape" (dict "key" (printf "%s.%s" $key $name) "value" $each "shape" (get $shape $name)) | fromYamlArray) -}}
{{- else -}}
{{- $problems = append $problems (printf "%s.%s: Kubernetes, up to 1.37, has no such field here and would drop it; write one of %s" $key $name (keys $shape | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- else if and (kindIs "string" $shape) $shape (not (kindIs "invalid" .value)) -}}
{{- if eq $shape "text" -}}
{{- if not (kindIs "string" .value) -}}
{{- $problems = append $problems (printf "%s: Kubernetes takes text here, and %v is none in YAML; write it in quotes" $key .value) -}}
{{- end -}}
{{- else if eq $shape "number" -}}
{{- if kindIs "string" .value -}}
{{- $problems = append $problems (printf "%s: Kubernetes takes a number here; write %s without quotes" $key .value) -}}
{{- end -}}
{{- else if not (has (toString .value) (splitList " " $shape)) -}}
{{- $problems = append $problems (printf "%s: Kubernetes takes no %v here; write one of %s" $key .value (splitList " " $shape | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.fields" -}}
{{- $problems := list -}}
{{- $shapes := include "serve-warm.shapes" . | fromYaml -}}
{{- $places := list (dict "key" "" "values" (pick .Values "env" "envFrom" "extraVolumes" "extraVolumeMounts")) (dict "key" "head." "values" .Values.head) (dict "key" "build." "values" (pick .Values.build "env")) (dict "key" "networkPolicy." "values" .Values.networkPolicy) (dict "key" "podSecurityContext." "values" .Values.podSecurityContext) (dict "key" "containerSecurityContext." "values" .Values.containerSecurityContext) -}}
{{- range $index, $group := .Values.workers -}}
{{- $places = append $places (dict "key" (printf "workers[%d]." $index) "values" .) -}}
{{- end -}}
{{- range $place := $places -}}
{{- range $name, $shape := $shapes -}}
{{- $problems = concat $problems (include "serve-warm.check.shape" (dict "key" (printf "%s%s" $place.key $name) "value" (index $place.values $name) "shape" $shape) | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Keys of labels and annotations: a name, with or without a domain before it. */ -}}
{{- define "serve-warm.check.labelNames" -}}
{{- $problems := list -}}
{{- $places := dict "commonLabels" .Values.commonLabels "labels" .Values.labels "annotations" .Values.annotations "build.labels" .Values.build.labels "build.jobLabels" .Values.build.jobLabels -}}
{{- range $index, $group := prepend .Values.workers .Values.head -}}
{{- range $name := list "labels" "annotations" "nodeSelector" -}}
{{- $_ := set $places (printf "%s.%s" (eq $index 0 | ternary "head" (printf "workers[%d]" (sub $index 1))) $name) (index $group $name) -}}
{{- end -}}
{{- end -}}
{{- range $key, $names := $places -}}
{{- range $name, $_ := $names -}}
{{- if not (regexMatch "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$" $name) -}}
{{- $problems = append $problems (printf "%s: Kubernetes takes no key %q; write letters, digits and -_. inside, up to 63, behind a domain and a slash if you like" $key $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.tolerations" -}}
{{- $problems := list -}}
{{- range $index, $group := prepend .Values.workers .Values.head -}}
{{- $key := eq $index 0 | ternary "head" (printf "workers[%d]" (sub $index 1)) -}}
{{- range $number, $toleration := .tolerations -}}
{{- $key := printf "%s.tolerations[%d]" $key $number -}}
{{- $operator := .operator | default "Equal" -}}
{{- if and (eq $operator "Exists") .value -}}
{{- $problems = append $problems (printf "%s.value: operator: Exists takes any value, and Kubernetes refuses one beside it; leave it out, or write operator: Equal" $key) -}}
{{- else if and (eq $operator "Equal") (not .key) -}}
{{- $problems = append $problems (printf "%s.key: empty, which tolerates all taints and needs operator: Exists; name the taint, or write operator: Exists" $key) -}}
{{- end -}}
{{- if and (hasKey . "tolerationSeconds") (ne (toString .effect) "NoExecute") -}}
{{- $problems = append $problems (printf "%s.tolerationSeconds: Kubernetes takes it beside effect: NoExecute alone; leave it out, or set that" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Takes key, resources and claims, the names that the pod has. */ -}}
{{- define "serve-warm.check.amounts" -}}
{{- $problems := list -}}
{{- $key := .key -}}
{{- $names := .claims -}}
{{- $limits := .resources.limits | default dict -}}
{{- $requests := .resources.requests | default dict -}}
{{- range $name, $_ := merge (dict) $limits $requests -}}
{{- $limit := hasKey $limits $name | ternary (get $limits $name) "" | toString -}}
{{- $request := hasKey $requests $name | ternary (get $requests $name) "" | toString -}}
{{- $most := include "serve-warm.quantity" ($limit | default "0") | float64 -}}
{{- $asked := include "serve-warm.quantity" ($request | default "0") | float64 -}}
{{- $of := printf "%s.%s.%s" $key ($limit | empty | ternary "requests" "limits") $name -}}
{{- if not (or (contains "/" $name) (has $name (list "cpu" "memory" "ephemeral-storage")) (hasPrefix "hugepages-" $name)) -}}
{{- $problems = append $problems (printf "%s: Kubernetes has no resource %s; write the full name of a device, such as nvidia.com/gpu" $of $name) -}}
{{- else if and (has $name (list "memory" "ephemeral-storage")) (lt (maxf $most $asked) 1048576.0) -}}
{{- $problems = append $problems (printf "%s: %s is a number of bytes; write a unit, such as %sGi" $of ($limit | default $request) (regexFind "^[0-9]+" ($limit | default $request))) -}}
{{- else if and (eq $name "cpu") (regexMatch "[a-zA-Z]$" (trimSuffix "m" ($limit | default $request))) -}}
{{- $problems = append $problems (printf "%s: %s is a unit of memory; write CPUs, such as 4 or 500m" $of ($limit | default $request)) -}}
{{- else if or (contains "/" $name) (hasPrefix "hugepages-" $name) -}}
{{- if or (ne $most (floor $most)) (ne $asked (floor $asked)) -}}
{{- $problems = append $problems (printf "%s: %s is not a whole number, and Kubernetes gives out whole devices; write %v, and let replicas share one with num_gpus in ray_actor_options" $of ($limit | default $request) (maxf $most $asked | ceil)) -}}
{{- else if not $limit -}}
{{- $problems = append $problems (printf "%s: it is requested without a limit, and Kubernetes takes no such pod; write limits.%s: %s too" $of $name $request) -}}
{{- else if and $request (ne $most $asked) -}}
{{- $problems = append $problems (printf "%s.requests.%s: %s is not limits.%s, %s, and Kubernetes takes equal ones alone; write the same in both, or leave the request out" $key $name $request $name $limit) -}}
{{- end -}}
{{- else if and $limit $request (gt $asked $most) -}}
{{- $problems = append $problems (printf "%s.requests.%s: %s is above limits.%s, %s, and Kubernetes takes no such pod; lower it, or raise the limit" $key $name $request $name $limit) -}}
{{- end -}}
{{- end -}}
{{- range $index, $claim := .resources.claims -}}
{{- if not (has .name $names) -}}
{{- $problems = append $problems (printf "%s.claims[%d].name: its pods have no claim %v; add it to resourceClaims of the worker group, with a resourceClaimTemplateName, or leave it out" $key $index .name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- define "serve-warm.check.resources" -}}
{{- $problems := list -}}
{{- $places := list (dict "key" "head.resources" "resources" (.Values.head.resources | default dict) "claims" list) (dict "key" "nodeServer.resources" "resources" (.Values.nodeServer.resources | default dict) "claims" list) -}}
{{- $all := list -}}
{{- range $index, $group := .Values.workers -}}
{{- $key := printf "workers[%d]" $index -}}
{{- $claims := list -}}
{{- range $number, $claim := .resourceClaims -}}
{{- $claims = append $claims .name -}}
{{- $all = append $all .name -}}
{{- if eq (empty .resourceClaimName) (empty .resourceClaimTemplateName) -}}
{{- $problems = append $problems (printf "%s.resourceClaims[%d]: it names %s; write one of resourceClaimTemplateName, a claim for each pod, and resourceClaimName, one for all" $key $number (empty .resourceClaimName | ternary "no claim" "a claim in two ways")) -}}
{{- end -}}
{{- end -}}
{{- $places = append $places (dict "key" (printf "%s.resources" $key) "resources" (.resources | default dict) "claims" $claims) -}}
{{- range $field := list "initContainers" "sidecars" -}}
{{- range $number, $container := index $group $field -}}
{{- $places = append $places (dict "key" (printf "%s.%s[%d].resources" $key $field $number) "resources" (.resources | default dict) "claims" $claims) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $places = append $places (dict "key" "build.resources" "resources" (.Values.build.resources | default dict) "claims" $all) -}}
{{- range $places -}}
{{- $problems = concat $problems (include "serve-warm.check.amounts" . | fromYamlArray) -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Images, volumes and containers of one group of workers. */ -}}
{{- define "serve-warm.check.groups" -}}
{{- $problems := list -}}
{{- $values := .Values -}}
{{- $own := list "serve-warm-state" "serve-warm-scratch" "serve-warm-cache" -}}
{{- if include "serve-warm.trustConfigMap" . -}}
{{- $own = append $own "serve-warm-trust" -}}
{{- end -}}
{{- if .Values.artifact.volume -}}
{{- $own = append $own "serve-warm-artifacts" -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- $own = append $own .name -}}
{{- end -}}
{{- $autoscaler := $values.autoscaling.options | default dict -}}
{{- $known := list "resources" "image" "imagePullPolicy" "securityContext" "idleTimeoutSeconds" "upscalingMode" "env" "envFrom" "volumeMounts" "version" "command" "args" -}}
{{- range $name, $value := $autoscaler -}}
{{- $of := get (dict "version" (list "v1" "v2") "upscalingMode" (list "Default" "Aggressive" "Conservative")) $name -}}
{{- if not (has $name $known) -}}
{{- $problems = append $problems (printf "autoscaling.options.%s: KubeRay, up to 1.7, has no such field here and Kubernetes would drop it; write one of %s" $name ($known | sortAlpha | join ", ")) -}}
{{- else if and $of (not (has (toString $value) $of)) -}}
{{- $problems = append $problems (printf "autoscaling.options.%s: KubeRay takes no %v here; write one of %s" $name $value (join ", " $of)) -}}
{{- end -}}
{{- end -}}
{{- range $index, $group := .Values.workers -}}
{{- $key := printf "workers[%d]" $index -}}
{{- with .image -}}
{{- $problems = concat $problems (include "serve-warm.check.imageName" (dict "key" (printf "%s.image" $key) "image" .) | fromYamlArray) -}}
{{- end -}}
{{- if and (hasKey . "idleTimeoutSeconds") (not (and $values.autoscaling.enabled (eq (toString $autoscaler.version) "v2"))) -}}
{{- $problems = append $problems (printf "%s.idleTimeoutSeconds: KubeRay takes it for the second autoscaler alone; set autoscaling.enabled: true and autoscaling.options.version: v2, or leave it out" $key) -}}
{{- end -}}
{{- $volumes := $own -}}
{{- range .extraVolumes -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $names := list "ray-worker" "serve-warm-folders" "serve-warm-node" -}}
{{- if $values.build.enabled -}}
{{- $names = concat $names (list "round-trip-key" "build" "signing-key" "sign") -}}
{{- end -}}
{{- range $field := list "initContainers" "sidecars" -}}
{{- range $number, $container := index $group $field -}}
{{- $key := printf "%s.%s[%d]" $key $field $number -}}
{{- if has .name $names -}}
{{- $problems = append $problems (printf "%s.name: a pod has a container %s already; choose another name" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- range $mounted, $mount := .volumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- $problems = append $problems (printf "%s.volumeMounts[%d].name: the pod has no volume %v; add it to extraVolumes of the group, or of all" $key $mounted .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Kueue reads one label of the RayService or RayCluster, and of a Job. */ -}}
{{- define "serve-warm.check.queue" -}}
{{- $problems := list -}}
{{- $label := "kueue.x-k8s.io/queue-name" -}}
{{- range $index, $group := concat (list .Values.head .Values.build) .Values.workers -}}
{{- $key := lt $index 2 | ternary (index (list "head" "build") (min $index 1)) (printf "workers[%d]" (sub $index 2)) -}}
{{- if hasKey (.labels | default dict) $label -}}
{{- $problems = append $problems (printf "%s.labels: with %s Kueue would queue each pod by itself; write it into labels, or build.jobLabels for the Job" $key $label) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.commonLabels | default dict) $label -}}
{{- $problems = append $problems (printf "commonLabels: %s on all objects is read on two of them; write it into labels, and into build.jobLabels for the Job" $label) -}}
{{- end -}}
{{- if and (hasKey (.Values.labels | default dict) $label) (gt (len .Values.workers) 7) -}}
{{- $problems = append $problems (printf "workers: Kueue takes seven groups, and there are %d; put some together" (len .Values.workers)) -}}
{{- end -}}
{{- if and (hasKey (.Values.labels | default dict) $label) .Values.autoscaling.enabled (not (hasKey (.Values.annotations | default dict) "kueue.x-k8s.io/elastic-job")) -}}
{{- $problems = append $problems "autoscaling.enabled: Kueue admits no cluster that scales itself; set it to false, or the annotation kueue.x-k8s.io/elastic-job where Kueue has that feature" -}}
{{- end -}}
{{- range $key, $labels := dict "labels" .Values.labels "build.jobLabels" .Values.build.jobLabels "commonLabels" .Values.commonLabels -}}
{{- range $label, $_ := $labels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $label) (hasPrefix "helm.sh/" $label) -}}
{{- $problems = append $problems (printf "%s: the chart or Helm sets %s itself; use another label" $key $label) -}}
{{- else if and (ne $key "commonLabels") (hasKey ($.Values.commonLabels | default dict) $label) -}}
{{- $problems = append $problems (printf "%s: %s is one of commonLabels too; keep one" $key $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
