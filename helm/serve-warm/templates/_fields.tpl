{{- /* SPDX-FileCopyrightText: 2026 the serve_warm authors
       SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Checks of values passed on to pods that the API server would refuse or drop: unknown fields, values of fields, amounts of devices, claims, containers. */ -}}

{{- /* The fields of values that are passed on, as of Kubernetes 1.37: a map, or a list of maps. A field has the type `text` or `number`, or a list of its allowed values; "" allows anything. */ -}}
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
{{- $problems = append $problems (printf "%s.%s: Kubernetes (up to 1.37) has no such field here and would drop it; write one of %s" $key $name (keys $shape | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- else if and (kindIs "string" $shape) $shape (not (kindIs "invalid" .value)) -}}
{{- if eq $shape "text" -}}
{{- if not (kindIs "string" .value) -}}
{{- $problems = append $problems (printf "%s: Kubernetes requires text here, but %v is not text in YAML; write it in quotes" $key .value) -}}
{{- end -}}
{{- else if eq $shape "number" -}}
{{- if kindIs "string" .value -}}
{{- $problems = append $problems (printf "%s: Kubernetes requires a number here; write %s without quotes" $key .value) -}}
{{- end -}}
{{- else if not (has (toString .value) (splitList " " $shape)) -}}
{{- $problems = append $problems (printf "%s: Kubernetes refuses %v here; write one of %s" $key .value (splitList " " $shape | join ", ")) -}}
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

{{- /* Keys of labels and annotations: a name, optionally after a domain. */ -}}
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
{{- $problems = append $problems (printf "%s: %q is not a valid key in Kubernetes; write up to 63 letters and digits, with -_. inside, optionally after a domain and a slash" $key $name) -}}
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
{{- $problems = append $problems (printf "%s.value: operator: Exists matches any value, so Kubernetes refuses a value here; leave the value out, or write operator: Equal" $key) -}}
{{- else if and (eq $operator "Equal") (not .key) -}}
{{- $problems = append $problems (printf "%s.key: an empty key tolerates all taints and needs operator: Exists; name the taint, or write operator: Exists" $key) -}}
{{- end -}}
{{- if and (hasKey . "tolerationSeconds") (ne (toString .effect) "NoExecute") -}}
{{- $problems = append $problems (printf "%s.tolerationSeconds: Kubernetes accepts this field only with effect: NoExecute; leave it out, or set effect: NoExecute" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Takes key, resources and claims (the names of the pod's claims). */ -}}
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
{{- $problems = append $problems (printf "%s: %s without a unit is a number of bytes; write a unit, such as %sGi" $of ($limit | default $request) (regexFind "^[0-9]+" ($limit | default $request))) -}}
{{- else if and (eq $name "cpu") (regexMatch "[a-zA-Z]$" (trimSuffix "m" ($limit | default $request))) -}}
{{- $problems = append $problems (printf "%s: %s is a unit of memory; write CPUs, such as 4 or 500m" $of ($limit | default $request)) -}}
{{- else if or (contains "/" $name) (hasPrefix "hugepages-" $name) -}}
{{- if or (ne $most (floor $most)) (ne $asked (floor $asked)) -}}
{{- $problems = append $problems (printf "%s: %s is not a whole number, but Kubernetes assigns whole devices; write %v, and let replicas share a device with num_gpus in ray_actor_options" $of ($limit | default $request) (maxf $most $asked | ceil)) -}}
{{- else if not $limit -}}
{{- $problems = append $problems (printf "%s: Kubernetes refuses a request for a device without a limit; also write limits.%s: %s" $of $name $request) -}}
{{- else if and $request (ne $most $asked) -}}
{{- $problems = append $problems (printf "%s.requests.%s: %s differs from limits.%s, %s, but Kubernetes requires equal values; write the same value in both, or leave the request out" $key $name $request $name $limit) -}}
{{- end -}}
{{- else if and $limit $request (gt $asked $most) -}}
{{- $problems = append $problems (printf "%s.requests.%s: %s is above limits.%s, %s, which Kubernetes refuses; lower the request, or raise the limit" $key $name $request $name $limit) -}}
{{- end -}}
{{- end -}}
{{- range $index, $claim := .resources.claims -}}
{{- if not (has .name $names) -}}
{{- $problems = append $problems (printf "%s.claims[%d].name: the pods have no claim %v; add it to resourceClaims of the worker group, with a resourceClaimTemplateName, or leave it out" $key $index .name) -}}
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
{{- $problems = append $problems (printf "%s.resourceClaims[%d]: it names %s; write either resourceClaimTemplateName (a claim for each pod) or resourceClaimName (one claim for all)" $key $number (empty .resourceClaimName | ternary "no claim" "a claim in two ways")) -}}
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

{{- /* Images, volumes and containers of each worker group. */ -}}
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
{{- $problems = append $problems (printf "autoscaling.options.%s: KubeRay (up to 1.7) has no such field here and Kubernetes would drop it; write one of %s" $name ($known | sortAlpha | join ", ")) -}}
{{- else if and $of (not (has (toString $value) $of)) -}}
{{- $problems = append $problems (printf "autoscaling.options.%s: KubeRay refuses %v here; write one of %s" $name $value (join ", " $of)) -}}
{{- end -}}
{{- end -}}
{{- range $index, $group := .Values.workers -}}
{{- $key := printf "workers[%d]" $index -}}
{{- with .image -}}
{{- $problems = concat $problems (include "serve-warm.check.imageName" (dict "key" (printf "%s.image" $key) "image" .) | fromYamlArray) -}}
{{- end -}}
{{- if and (hasKey . "idleTimeoutSeconds") (not (and $values.autoscaling.enabled (eq (toString $autoscaler.version) "v2"))) -}}
{{- $problems = append $problems (printf "%s.idleTimeoutSeconds: only autoscaler v2 supports this field; set autoscaling.enabled: true and autoscaling.options.version: v2, or leave it out" $key) -}}
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
{{- $problems = append $problems (printf "%s.name: the pod already has a container %s; choose another name" $key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- range $mounted, $mount := .volumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- $problems = append $problems (printf "%s.volumeMounts[%d].name: the pod has no volume %v; add it to extraVolumes of the group, or of all pods" $key $mounted .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{- /* Kueue reads one label, of the RayService or RayCluster and of the Job. */ -}}
{{- define "serve-warm.check.queue" -}}
{{- $problems := list -}}
{{- $label := "kueue.x-k8s.io/queue-name" -}}
{{- range $index, $group := concat (list .Values.head .Values.build) .Values.workers -}}
{{- $key := lt $index 2 | ternary (index (list "head" "build") (min $index 1)) (printf "workers[%d]" (sub $index 2)) -}}
{{- if hasKey (.labels | default dict) $label -}}
{{- $problems = append $problems (printf "%s.labels: with %s Kueue would queue each pod separately; put it in labels, or in build.jobLabels for the Job" $key $label) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.commonLabels | default dict) $label -}}
{{- $problems = append $problems (printf "commonLabels: %s would be set on all objects, but Kueue reads this label only on two of them; put it in labels, and in build.jobLabels for the Job" $label) -}}
{{- end -}}
{{- if and (hasKey (.Values.labels | default dict) $label) (gt (len .Values.workers) 7) -}}
{{- $problems = append $problems (printf "workers: Kueue accepts at most seven groups, but there are %d; merge some" (len .Values.workers)) -}}
{{- end -}}
{{- if and (hasKey (.Values.labels | default dict) $label) .Values.autoscaling.enabled (not (hasKey (.Values.annotations | default dict) "kueue.x-k8s.io/elastic-job")) -}}
{{- $problems = append $problems "autoscaling.enabled: Kueue does not admit a cluster with an autoscaler; set it to false, or the annotation kueue.x-k8s.io/elastic-job where Kueue has that feature" -}}
{{- end -}}
{{- range $key, $labels := dict "labels" .Values.labels "build.jobLabels" .Values.build.jobLabels "commonLabels" .Values.commonLabels -}}
{{- range $label, $_ := $labels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $label) (hasPrefix "helm.sh/" $label) -}}
{{- $problems = append $problems (printf "%s: the chart or Helm sets %s; use another label" $key $label) -}}
{{- else if and (ne $key "commonLabels") (hasKey ($.Values.commonLabels | default dict) $label) -}}
{{- $problems = append $problems (printf "%s: %s is also in commonLabels; keep only one of the two" $key $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}
