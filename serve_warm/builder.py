# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds an artifact by running the deployment itself, on Ray, with its own resources.

Ray sets a replica's thread count from `num_cpus`, and the thread count is in torch's cache keys:
what is built outside a replica misses inside one. So the deployment is started as its options
say, it warms up and proves itself, and its caches are packed. Before anything is published a
second, fresh replica must load the artifact and reach the proof without one compiler run; another
one with what is made ahead of time, and another one with libraries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import os
import secrets
import socket
import sys
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from serve_warm import _private_folders, node
from serve_warm.artifact import catalog, push
from serve_warm.artifact.blobs import pack_part
from serve_warm.artifact.manifest import FORMAT, Manifest, utc_now
from serve_warm.disassembly import find_objdump, prove_portable
from serve_warm.errors import BuildFailed, ConfigError, StoreError
from serve_warm.fingerprint import PORTABLE_ISA, Cpu, Fingerprint, lacking
from serve_warm.precompile.facts import ENTRIES_FORMAT, RULES
from serve_warm.stores import open_store
from serve_warm.trust.files import default_trust_files, load_trust, trust_lines
from serve_warm.trust.user_key import user_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.stores import Store
    from serve_warm.trust.policy import Trust

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""How often a start is looked at while it is waited for."""

START_LIMIT_S = 1800.0
"""Wall seconds for one replica to become ready; the replica's own deadline comes first."""

Progress = Callable[[str], None]
"""Told, in a few words, where a start is; called many times a second with the same words."""


# The application ------------------------------------------------------------------------------

REPLICA_OPTIONS = (
    "gang_scheduling_config",
    "max_ongoing_requests",
    "placement_group_bundles",
    "placement_group_strategy",
    "ray_actor_options",
    "user_config",
)
"""Options of a deployment in a Serve YAML that shape a replica. The others (how many of them,
how they are rolled out) are not those of a build."""


@dataclass(frozen=True, kw_only=True)
class App:
    """One application as `serve run` would deploy it, and the deployment in it that warms up."""

    import_path: str
    bound: Any
    """Ray Serve's application object."""
    overrides: Mapping[str, Mapping[str, Any]]
    """Options from the YAML, by deployment."""
    runtime_env: Mapping[str, Any]
    """The application's, from the YAML."""
    deployment: str
    trust: Trust | None
    """What the class of the deployment says itself about trust; None for the machine's files."""
    num_cpus: float
    """CPUs of all replicas of the application when each deployment has one, or one gang."""
    replicas: int = 1
    """How many of the deployment that warms up start together: as many as its gang has."""

    def built(self, name: str, settings: Mapping[str, Any]) -> Any:
        """Return the application as Serve's client takes it, under a name of its own.

        Each deployment has one replica, or one gang, and `settings` are laid over the warm-up's.
        """
        from ray.serve._private.build_app import build_app

        built = build_app(self.bound, name=name, route_prefix=f"/{name}")
        deployments = [self._one_replica(deployment, settings) for deployment in built.deployments]
        return dataclasses.replace(built, deployments=deployments)

    def _one_replica(self, deployment: Any, settings: Mapping[str, Any]) -> Any:
        options = {
            name: value
            for name, value in self.overrides.get(deployment.name, {}).items()
            if name in REPLICA_OPTIONS
        }
        actor = dict(options.get("ray_actor_options") or deployment.ray_actor_options or {})
        if self.runtime_env and "runtime_env" not in actor:
            actor["runtime_env"] = dict(self.runtime_env)
        options["ray_actor_options"] = actor
        if deployment.name == self.deployment:
            user_config = dict(options.get("user_config", deployment.user_config) or {})
            section = {**dict(user_config.get("warmup") or {}), **settings}
            options["user_config"] = {**user_config, "warmup": section}
        return deployment.options(
            num_replicas=_gang_size(deployment, options),
            autoscaling_config=None,
            graceful_shutdown_timeout_s=1.0,
            **options,
        )


def load_app(target: str, *, deployment: str | None = None) -> App:
    """Return the application named by a Serve YAML or by `module:app`.

    The module is imported, as Serve would import it; the working directory is importable.

    Raises:
        ConfigError: the file, module or deployment is not there, or there are several to choose
            from; the text lists them.
    """
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    config = _config_of(target)
    bound = _imported(config)
    overrides = {d["name"]: d for d in config.get("deployments") or ()}
    classes, gangs, num_cpus = _deployments_of(bound, overrides)
    warming = sorted(classes)
    if deployment is None:
        if len(warming) != 1:
            raise ConfigError(
                f"{target}: {len(warming)} deployments use WarmupMixin: {warming}",
                hint="name one with --deployment" if warming else "add WarmupMixin to its bases",
            )
        deployment = warming[0]
    if deployment not in warming:
        raise ConfigError(
            f"{target}: no deployment {deployment!r} uses WarmupMixin",
            hint=f"those that do: {warming}",
        )
    return App(
        import_path=str(config["import_path"]),
        bound=bound,
        overrides=overrides,
        runtime_env=config.get("runtime_env") or {},
        deployment=deployment,
        trust=classes[deployment].warmup_trust,
        num_cpus=num_cpus,
        replicas=gangs[deployment],
    )


def _config_of(target: str) -> dict[str, Any]:
    if target.endswith((".yaml", ".yml")):
        return _only_application(target)
    if ":" in target:
        return {"import_path": target}
    raise ConfigError(
        f"{target!r} is neither a Serve YAML nor module:app",
        hint="for example serve.yaml, or deployments.text_embedder.app:embedder",
    )


def _only_application(target: str) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(Path(target).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8
        raise ConfigError(f"{target} cannot be read: {error}") from error
    applications = loaded.get("applications") if isinstance(loaded, dict) else None
    if not applications:
        raise ConfigError(f"{target} has no applications", hint="pass a Serve config file")
    problems = _problems(loaded)
    if problems:
        raise ConfigError(
            f"{target} is no Serve config: {'; '.join(problems)}", hint="`serve run` says the same"
        )
    if len(applications) != 1:
        names = [a.get("name") for a in applications]
        raise ConfigError(
            f"{target} has {len(applications)} applications: {names}",
            hint="one artifact is built for one deployment: split the file, or pass module:app",
        )
    return dict(applications[0])


def _problems(config: Mapping[str, Any]) -> list[str]:
    """Return what Serve's own schema has against a config: of pydantic 1 in Ray 2.53, 2 in 2.60."""
    from ray.serve.schema import ServeDeploySchema

    schema: Any = ServeDeploySchema
    check = schema.model_validate if hasattr(schema, "model_validate") else schema.parse_obj
    try:
        check(config)
    except ValueError as error:  # which the ValidationError of either is
        found: Any = error
        return [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in found.errors()]
    return []


def _imported(config: Mapping[str, Any]) -> Any:
    """Return the application object that `import_path` names."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

    module, _, attribute = str(config["import_path"]).rpartition(":")
    try:
        bound = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"import_path {config['import_path']!r} cannot be imported: {error}",
            hint="run from the folder that `serve run` would be run from",
        ) from error
    args = config.get("args") or {}
    try:
        return call_user_app_builder_with_args_if_necessary(bound, args)
    except TypeError as error:
        raise ConfigError(
            f"import_path {config['import_path']!r} names no application: {error}",
            hint="bind the deployment, app = TextEmbedder.bind(), and name the result",
        ) from error
    except ValueError as error:  # also pydantic's, for what the function's argument does not take
        if not args and not hasattr(error, "errors"):
            raise  # the function's own
        raise ConfigError(
            f"import_path {config['import_path']!r} does not take these args: "
            f"{' '.join(str(error).split())}",
            hint="args go to the function that import_path names, as its one argument",
        ) from error


def _deployments_of(
    bound: Any, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int], float]:
    """Return classes and gang sizes of deployments that warm up, by name, and the CPUs of all."""
    from ray.serve._private.build_app import build_app

    from serve_warm.deployment import WarmupMixin

    warming, gangs, num_cpus = {}, {}, 0.0
    for built in build_app(bound, name="serve_warm").deployments:
        override = overrides.get(built.name, {})
        options = override.get("ray_actor_options") or built.ray_actor_options
        size = _gang_size(built, override)
        num_cpus += size * float((options or {}).get("num_cpus", 1))
        target = built.func_or_class
        if isinstance(target, type) and issubclass(target, WarmupMixin):
            warming[built.name], gangs[built.name] = target, size
    return warming, gangs, num_cpus


def _gang_size(deployment: Any, options: Mapping[str, Any]) -> int:
    """Return how many replicas of a deployment Serve starts as one; 1 where it has no gangs."""
    own = getattr(deployment._deployment_config, "gang_scheduling_config", None)  # noqa: SLF001
    gang = options.get("gang_scheduling_config") or own
    return int(gang["gang_size"] if isinstance(gang, Mapping) else getattr(gang, "gang_size", 1))


# Starts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Start:
    """A replica that is ready, and how long that took."""

    url: str
    """Base URL of the application, without a slash at its end."""
    ready_s: float
    """Creation of the replica's actor → RUNNING, as Serve reports it."""
    handle: Any
    """Serve's handle to the deployment."""
    replicas: int = 1

    def report(self) -> dict[str, Any]:
        """Return the replica's report as of now; of a gang that of its first rank."""
        return self.ask("warmup_report", timeout_s=60)[0]

    def ask(self, method: str, *, timeout_s: float) -> list[dict[str, Any]]:
        """Return what each replica answers to a method of the mixin's, by their ranks.

        All of them work on it at the same time: what one does may wait for the others.
        """
        if self.replicas == 1:
            return [getattr(self.handle, method).remote().result(timeout_s=timeout_s)]
        answers = self.handle.broadcast(method).results(timeout_s=timeout_s)
        return sorted(answers, key=_rank)


def _rank(answer: Mapping[str, Any]) -> int:
    """Return the rank of the replica that gave a report, or its parts: `2 of 4` is 2."""
    rank: str = answer["fingerprint"]["app"].get("rank", "0")
    return int(rank.partition(" ")[0])


class Cluster:
    """A Ray cluster with Serve on it, on which applications are started one after the other."""

    def __init__(self, port: int, *, place: Literal["here", "address"] = "here") -> None:
        self.port = port
        self.place = place
        """Whether it runs on this machine alone, or was found at an address."""

    @contextlib.contextmanager
    def deployed(self, app: App, settings: Mapping[str, Any]) -> Iterator[str]:
        """Deploy `app` under a name and route of its own, yield the name, and delete it afterwards.

        Nothing else that runs on the cluster is touched, and nothing is waited for.
        """
        name = f"serve_warm-{secrets.token_hex(4)}"
        client = _client()
        client.deploy_applications(
            [app.built(name, settings)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        try:
            yield name
        finally:
            client.delete_apps([name], blocking=True)

    @contextlib.contextmanager
    def running(
        self,
        app: App,
        settings: Mapping[str, Any],
        *,
        progress: Progress = lambda _: None,
    ) -> Iterator[Start]:
        """Start `app` with one replica, yield it when it is ready, and delete it afterwards.

        Raises:
            BuildFailed: the replica failed to start; the text is its own.
        """
        from ray import serve

        with _private_folders.temporary_folder() as scratch:
            state_dir = scratch / "state"
            with self.deployed(app, {"state_dir": str(state_dir), **settings}) as name:
                created_unix, ready_unix = self._wait(name, app.deployment, state_dir, progress)
                yield Start(
                    url=f"http://127.0.0.1:{self.port}/{name}",
                    ready_s=ready_unix - created_unix,
                    handle=serve.get_deployment_handle(app.deployment, app_name=name),
                    replicas=app.replicas,
                )

    def _wait(
        self, name: str, deployment: str, state_dir: Path, progress: Progress
    ) -> tuple[float, float]:
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            details = _client().get_serve_details()["applications"].get(name, {})
            status = details.get("status")
            replicas = (details.get("deployments") or {}).get(deployment, {}).get("replicas")
            if status == "RUNNING" and replicas:
                return float(replicas[0]["start_time_s"]), time.time()
            states = [s for s in node.read_states(state_dir) if s["deployment"] == deployment]
            failed = next((s for s in states if s["stage"] == "FAILED"), None)
            if failed is not None or status == "DEPLOY_FAILED":
                # A replica that dies in its constructor writes no state: Serve has its traceback.
                why = failed["error"] if failed else _message(details, deployment)
                raise BuildFailed(f"{deployment} did not become ready: {why}")
            progress(_described(states, replicas))
            time.sleep(POLL_S)
        raise BuildFailed(f"{deployment} was not ready within {START_LIMIT_S:.0f} s")


def _message(details: Mapping[str, Any], deployment: str) -> str:
    own = ((details.get("deployments") or {}).get(deployment) or {}).get("message")
    return str(own or details.get("message") or "Serve gives no reason").strip()


def _described(states: list[dict[str, Any]], replicas: Any) -> str:
    if not states:
        return "importing and loading weights" if replicas else "deploying"
    state = states[-1]
    text = str(state["stage"]).lower()
    if state["inputs_expected"]:
        done = f"{state['inputs_done']}/{state['inputs_expected']}"
        text += f" pass {max(1, state['passes'])}, {done} inputs"
    return text


@contextlib.contextmanager
def cluster(*, address: str | None = None, num_cpus: float = 0.0) -> Iterator[Cluster]:
    """Yield a cluster: the one at `address`, or a local one that ends with the block.

    Args:
        address: what `ray.init` takes, for example `auto`.
        num_cpus: logical CPUs that a local cluster must offer; the machine's if more.
    """
    import ray
    from ray import serve

    port = _free_port()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            # num_cpus is bookkeeping for Ray: a replica gets its threads from its own num_cpus.
            # "local", because RAY_ADDRESS may be set, as it is inside a Ray job.
            cpus = max(int(num_cpus + 0.999), os.cpu_count() or 1)
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address or 'this machine'}: {error}",
            hint="check --address, or leave it out for a local cluster",
        ) from error
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield Cluster(_port_of_serve(port), place="here" if address is None else "address")
    finally:
        # A local cluster ends with this; Serve on somebody's cluster is left as it was found.
        ray.shutdown()


def _client() -> Any:
    """Return Serve's client to its controller; it is running, because `cluster` started it."""
    from ray.serve.context import _get_global_client

    return _get_global_client()


def _port_of_serve(wanted: int) -> int:
    """Return the HTTP port: of a Serve that was there before, its own."""
    options = _client().get_serve_details().get("http_options") or {}
    return int(options.get("port") or wanted)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# The build ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Built:
    """An artifact that passed its round trip and is published."""

    published: Literal["new", "kept"]
    """`kept`: the store had the variant before, `if_published` is `keep`, and that one passed."""
    store: str
    statement: str
    """Of a gang that of its first rank, as are `variant` and both reports."""
    ranks: tuple[str, ...]
    """The statements of all ranks of a gang; empty for a replica by itself."""
    variant: str
    """Key of the fingerprint."""
    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]
    """Stored bytes by part; of one that was kept, as it was published."""
    portable_libraries: int | None
    """Libraries that were disassembled and run on every CPU with AVX2; `None` for an artifact
    that is for this CPU alone."""
    trust: str
    """The lines for a trust.toml that trusts whoever signed this; empty for one that was kept."""
    cold: Mapping[str, Any]
    """Report of the replica that compiled."""
    round_trip: Mapping[str, Any]
    """Report of the fresh replica that loaded the artifact."""


def build(
    app: App,
    store_uri: str,
    *,
    on: Cluster,
    key: Ed25519PrivateKey | None = None,
    cpu: Cpu | None = None,
    if_published: Literal["refuse", "keep", "supersede"] = "refuse",
    progress: Progress = lambda _: None,
    notice: Progress = lambda _: None,
) -> Built:
    """Build, prove, sign and publish the artifact of one deployment, or of each rank of its gang.

    Nothing is published unless a second, fresh replica loads the artifact, proves every input
    and runs no compiler. `key` signs; the per-user key, made and trusted on first use, if none
    is given. The replica must trust it, as the fleet will have to. `cpu` is laid over what the
    deployment sets; every replica that shall use the artifact must set the same. A variant that
    the store has already is never replaced: `keep` puts that one through the round trip instead,
    `supersede` publishes beside it. `notice` is told what the user should know beside the result.

    Raises:
        AlreadyPublished: the store has the variant, and `if_published` is `refuse`.
        BuildFailed: a replica failed, the artifact did not pass its round trip, or it is to be
            portable and is not.
        ConfigError: a portable artifact cannot be disassembled here.
        StoreError: the store cannot be written.
    """
    store = open_store(store_uri)
    if cpu == "portable":
        find_objdump()  # now, not when everything has been compiled
    key = key or user_key()
    if on.place == "here":
        _check_trusted(app, key)
    settings = {"enabled": True, "on_missing": "fail", "on_refused": "fail", "on_uncovered": "fail"}
    if cpu is not None:
        settings["cpu"] = cpu
    cold = {**settings, "artifact": None}
    with on.running(app, cold, progress=_prefixed(progress, "compile")) as start:
        progress("compile: packing")
        by_rank = _one_each(start.ask("warmup_artifact", timeout_s=600))
    portable: dict[str, Any] = {}
    for packed in by_rank:
        portable = _portable_facts(packed, progress)
        packed["facts"].update(portable)
    progress("sign")
    variants = [_manifest(app, packed) for packed in by_rank]
    manifests = [manifest for manifest, _ in variants]
    # Before the round trip, which would be in vain.
    outdated = _are_outdated(store, app, manifests)
    if outdated:
        notice("what is published has entries that no replica runs any more: it is superseded")
    keep = not outdated and _is_kept(store, manifests, if_published)
    with contextlib.nullcontext(store.uri) if keep else _staging(store, on) as source:
        if not keep:
            _push(open_store(source), variants, key)
        warm = {**settings, "artifact": source}
        first = variants[0][1], by_rank[0]["facts"].get("entries", ())
        for label, parts, proves in _round_trips(*first):
            told = _prefixed(progress, label)
            with on.running(app, {**warm, "parts": parts}, progress=told) as start:
                reports = start.ask("warmup_report", timeout_s=60)
            for report in reports:
                _accept(report, without_compiler=proves)
    used = {report["artifact"]["statement"]: report["artifact"] for report in reports}
    statements = list(used)
    if not keep:
        progress("publish")
        supersede = outdated or if_published == "supersede"
        on_taken: push.OnTaken = "supersede" if supersede else "refuse"
        statements = _push(store, variants, key, on_taken=on_taken)
    # Where one is kept, what was built now is thrown away, and its parts with it.
    published = _parts_of(store, app, statements) if keep else _sizes(manifests)
    return Built(
        published="kept" if keep else "new",
        store=store.uri,
        statement=statements[0],
        ranks=tuple(statements) if len(statements) > 1 else (),
        variant=manifests[0].fingerprint.key,
        # Of one that is trusted by the replicas and not here only they know it.
        stored_bytes=sum(published.values()) or sum(each["stored_bytes"] for each in used.values()),
        raw_bytes=sum(each["raw_bytes"] for each in used.values())
        if keep
        else sum(part.raw_bytes for manifest in manifests for part in manifest.parts),
        parts=published,
        portable_libraries=portable.get("libraries_disassembled"),
        trust="" if keep else trust_lines(key.public_key(), name="builder"),
        cold=by_rank[0]["report"],
        round_trip=reports[0],
    )


def _one_each(packed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what is for the same machine and app as one before it.

    A gang without a process group has no ranks: each of its replicas can start from any of them.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in packed:
        found.setdefault(Fingerprint.from_json(each["fingerprint"]).key, each)
    return list(found.values())


def _check_trusted(app: App, key: Ed25519PrivateKey) -> None:
    """Refuse a key that the replica of the round trip, on this machine, would not believe.

    Raises:
        ConfigError: it is not trusted here. Nothing has been compiled yet.
    """
    public = key.public_key()
    trust = load_trust() if app.trust is None else app.trust
    if public.public_bytes_raw() not in {trusted.raw for trusted in trust.keys}:
        where = "the code of the deployment" if app.trust is not None else default_trust_files()[0]
        raise ConfigError(
            "the key that would sign is not trusted here, so the round trip would refuse it",
            hint=f"add it to {where}:\n{trust_lines(public, name='builder')}",
        )


@contextlib.contextmanager
def _staging(store: Store, on: Cluster) -> Iterator[str]:
    """Yield a store for the round trip that no replica in traffic looks into.

    On a cluster of this machine it is a folder. Elsewhere it must be what all nodes see, so it
    stands beside the artifacts in their own store, outside the keys that they have.
    """
    if on.place == "here":
        with tempfile.TemporaryDirectory(prefix="serve_warm-staging-") as staging:
            yield staging
    elif store.uri.startswith("file://"):
        folder = Path(urllib.parse.unquote(store.uri.removeprefix("file://")))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=folder) as staging:
            yield staging
    else:
        uri = f"{store.uri.rstrip('/')}/staging-{secrets.token_hex(8)}"
        try:
            yield uri
        finally:
            _clear(open_store(uri))


def _clear(staged: Store) -> None:
    try:
        for key in staged.list(""):
            staged.delete(key)
    except StoreError as error:
        # The build is good all the same, and what is left is under a name that nobody reads.
        logger.warning("the staged copy could not be removed: %s", error.message)


def _is_kept(
    store: Store,
    manifests: Sequence[Manifest],
    if_published: Literal["refuse", "keep", "supersede"],
) -> bool:
    """Return whether what the store has is kept: of a gang all variants, or none.

    Raises:
        AlreadyPublished: it has one, and is not told to keep or supersede it.
    """
    there = [push.published(store, made.deployment, made.fingerprint) for made in manifests]
    if if_published == "keep" and all(there):
        return True
    for manifest, before in zip(manifests, there, strict=True):
        if before and if_published != "supersede":
            raise push.already_published(store, manifest, before[-1])
    return False


def _are_outdated(store: Store, app: App, manifests: Sequence[Manifest]) -> bool:
    """Return whether what is published of these variants has entries that no replica runs.

    They were made by other rules than today's: what supersedes them takes nothing from anybody.
    """
    published = {
        statement
        for made in manifests
        for statement in push.published(store, made.deployment, made.fingerprint)[-1:]
    }
    if not published:
        return False
    trust = load_trust() if app.trust is None else app.trust
    there = catalog.describe(store, trust, deployment=app.deployment)
    found = [item.manifest for item in there if item.statement in published]
    return bool(found) and all(map(_has_outdated_entries, found))


def _has_outdated_entries(manifest: Manifest | None) -> bool:
    if manifest is None:  # not believed here: nothing is known of it
        return False
    entries = manifest.facts.get("entries") or ()
    levels = {entry.get("level") for entry in entries if isinstance(entry, dict)}
    return bool(levels - {1}) and manifest.facts.get(ENTRIES_FORMAT, 1) < RULES


def _push(
    store: Store,
    variants: Sequence[tuple[Manifest, dict[str, bytes]]],
    key: Ed25519PrivateKey,
    *,
    on_taken: push.OnTaken = "refuse",
) -> list[str]:
    return [
        push.push(store, manifest, stored, [key], on_taken=on_taken)
        for manifest, stored in variants
    ]


def _parts_of(store: Store, app: App, statements: Sequence[str]) -> dict[str, int]:
    """Return the stored bytes by part of artifacts that the round trip has just loaded."""
    trust = load_trust() if app.trust is None else app.trust
    there = catalog.describe(store, trust, deployment=app.deployment)
    found = [item.manifest for item in there if item.statement in statements]
    return _sizes([manifest for manifest in found if manifest is not None])


def _sizes(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return the stored bytes by part, of all of them together."""
    sizes: Counter[str] = Counter()
    for manifest in manifests:
        sizes.update({part.name: part.stored_bytes for part in manifest.parts})
    return dict(sizes)


def _manifest(app: App, packed: Mapping[str, Any]) -> tuple[Manifest, dict[str, bytes]]:
    parts, stored = [], {}
    for name, raw in packed["parts"].items():
        part, data = pack_part(name, raw)
        parts.append(part)
        stored[name] = data
    manifest = Manifest(
        format=FORMAT,
        deployment=app.deployment,
        created=utc_now(),
        fingerprint=Fingerprint.from_json(packed["fingerprint"]),
        parts=tuple(parts),
        facts=packed["facts"],
    )
    return manifest, stored


def _portable_facts(packed: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Return what a manifest says about a portable artifact, proven; nothing of another one.

    Here, and not in the replica that compiled: what user code runs in is not asked for a proof.
    """
    machine, app = packed["fingerprint"]["machine"], packed["fingerprint"]["app"]
    if app.get("cpu") != "portable":
        return {}
    if machine["cpu_isa"] != PORTABLE_ISA:
        raise BuildFailed(
            "cpu: portable needs AVX2 (x86-64-v3), and the CPU that compiled lacks "
            + " ".join(lacking(machine["cpu_isa"])),
            hint="nothing was published: build on a machine that has it",
        )
    progress("compile: disassembling")
    made = [packed["parts"][name] for name in ("cache", "exported") if name in packed["parts"]]
    libraries = sum(prove_portable(io.BytesIO(raw), objdump=find_objdump()) for raw in made)
    return {"cpu": "portable", "libraries_disassembled": libraries}


def _round_trips(
    stored: Mapping[str, bytes], entries: Sequence[Mapping[str, Any]]
) -> list[tuple[str, list[str], bool]]:
    """Return name and parts of each round trip, and whether it must do without torch's compiler.

    Each level by itself: what the entries answer never asks the caches, and the caches must answer
    where an entry does not fit. Libraries need neither, where every call has one.
    """
    trips = [("round trip", ["cache"], False)]
    if "precompiled" in stored:
        trips.append(("round trip, ahead of time", ["cache", "precompiled"], False))
    if "exported" in stored:
        alone = all(entry["level"] == 3 for entry in entries)
        rest = [name for name in ("cache", "precompiled") if name in stored and not alone]
        trips.append(("round trip, libraries", [*rest, "exported"], alone))
    return trips


def _accept(report: Mapping[str, Any], *, without_compiler: bool = False) -> None:
    """Raise unless the round trip was warm through and through."""
    problems = []
    if report["verdict"] != "full_hit":
        reason = (report["artifact"] or {}).get("reason", "")
        problems.append(
            f"its verdict is {report['verdict']}, not full_hit ({reason or 'no reason'})"
        )
    runs = report["warmup"]["compiler_processes"]
    if runs:
        problems.append(f"it ran the compiler {runs} times")
    covered = report["covered"]
    if covered["proven"] != covered["expected"] or not covered["expected"]:
        problems.append(f"it proved {covered['proven']} of {covered['expected']} inputs")
    parity = report.get("parity") or {}
    problems += [f"it withdrew {failure}" for failure in parity.get("failures", ())]
    if without_compiler:
        problems += [
            f"{use['callable']}{use['call']} was served by level {use['level']}: {use['reason']}"
            for use in report["entries"]
            if use["level"] < 3
        ]
        if report["compiler_imported"] == "start":
            problems.append("torch's compiler was imported, which libraries do without")
    if problems:
        raise BuildFailed(
            "a fresh replica loaded the artifact, and " + "; ".join(problems),
            hint="nothing was published. What is not cached is usually a graph that bypasses "
            "torch's caches (TORCH_LOGS=+inductor names it), or an input that differs per start",
        )


def _prefixed(progress: Progress, prefix: str) -> Progress:
    return lambda text: progress(f"{prefix}: {text}")
