# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds an artifact by running the deployment itself, on Ray, with its own resources.

Ray sets a replica's thread count from `num_cpus`, and the thread count is in torch's cache keys:
what is built outside a replica misses inside one. So the deployment is started as its options
say, it warms up and proves itself, and its caches are packed. Before anything is published a
second, fresh replica must load the artifact and reach the proof without one compiler run.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serve_warm import artifact, node, transfer
from serve_warm.errors import BuildFailed, ConfigError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import open_store
from serve_warm.trust import user_key

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""How often a start is looked at while it is waited for."""

START_LIMIT_S = 1800.0
"""Wall seconds for one replica to become ready; the replica's own deadline comes first."""

Progress = Callable[[str], None]
"""Told, in a few words, where a start is; called many times a second with the same words."""


# The application ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class App:
    """One application as a Serve configuration, and the deployment in it that warms up."""

    config: Mapping[str, Any]
    """A `ServeApplicationSchema` as plain data."""
    deployment: str
    user_config: Mapping[str, Any]
    """The deployment's `user_config`: the YAML's, else the code's."""
    num_cpus: float
    """CPUs of all replicas of the application when each deployment has one."""

    @property
    def name(self) -> str:
        """The application's name."""
        return str(self.config["name"])

    def with_warmup(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration with one replica, and `settings` laid over its warm-up's."""
        section = {**dict(self.user_config.get("warmup") or {}), **settings}
        overrides = [dict(d) for d in self.config.get("deployments", ())]
        mine = next((d for d in overrides if d["name"] == self.deployment), None)
        if mine is None:
            mine = {"name": self.deployment}
            overrides.append(mine)
        mine.pop("autoscaling_config", None)
        mine["num_replicas"] = 1
        mine["user_config"] = {**self.user_config, "warmup": section}
        mine["graceful_shutdown_timeout_s"] = 1.0
        return {**self.config, "deployments": overrides}


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
    warming, num_cpus = _deployments_of(config)
    if deployment is None:
        if len(warming) != 1:
            raise ConfigError(
                f"{target}: {len(warming)} deployments use WarmupMixin: {sorted(warming)}",
                hint="name one with --deployment" if warming else "add WarmupMixin to its bases",
            )
        deployment = next(iter(warming))
    if deployment not in warming:
        raise ConfigError(
            f"{target}: no deployment {deployment!r} uses WarmupMixin",
            hint=f"those that do: {sorted(warming)}",
        )
    override: dict[str, Any] = next(
        (d for d in config.get("deployments", ()) if d.get("name") == deployment), {}
    )
    user_config = override.get("user_config", warming[deployment]) or {}
    return App(config=config, deployment=deployment, user_config=user_config, num_cpus=num_cpus)


def _config_of(target: str) -> dict[str, Any]:
    if target.endswith((".yaml", ".yml")):
        try:
            loaded = yaml.safe_load(Path(target).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{target} cannot be read: {error}") from error
        applications = loaded.get("applications") if isinstance(loaded, dict) else None
        if not applications:
            raise ConfigError(f"{target} has no applications", hint="pass a Serve config file")
        if len(applications) != 1:
            names = [a.get("name") for a in applications]
            raise ConfigError(
                f"{target} has {len(applications)} applications: {names}",
                hint="one artifact is built for one deployment: split the file, or pass module:app",
            )
        config = dict(applications[0])
    elif ":" in target:
        config = {"import_path": target}
    else:
        raise ConfigError(
            f"{target!r} is neither a Serve YAML nor module:app",
            hint="for example serve.yaml, or deployments.text_embedder.app:embedder",
        )
    return {"name": "serve_warm_app", "route_prefix": "/", **config}


def _deployments_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the code's user_config by deployment that warms up, and the CPUs of them all."""
    from ray.serve._private.api import (
        call_user_app_builder_with_args_if_necessary,
    )
    from ray.serve._private.build_app import build_app

    from serve_warm.deployment import WarmupMixin

    module, _, attribute = str(config["import_path"]).rpartition(":")
    try:
        bound = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"import_path {config['import_path']!r} cannot be imported: {error}",
            hint="run from the folder that `serve run` would be run from",
        ) from error
    bound = call_user_app_builder_with_args_if_necessary(bound, config.get("args") or {})
    warming, num_cpus = {}, 0.0
    overrides = {d["name"]: d for d in config.get("deployments", ())}
    for built in build_app(bound, name=str(config["name"])).deployments:
        options = overrides.get(built.name, {}).get("ray_actor_options") or built.ray_actor_options
        num_cpus += float((options or {}).get("num_cpus", 1))
        target = built.func_or_class
        if isinstance(target, type) and issubclass(target, WarmupMixin):
            warming[built.name] = built.user_config
    return warming, num_cpus


# Starts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Start:
    """A replica that is ready, and how long that took."""

    app: App
    url: str
    """Base URL of the application, without a slash at its end."""
    ready_s: float
    """Creation of the replica's actor → RUNNING, as Serve reports it."""
    handle: Any
    """Serve's handle to the deployment."""

    def report(self) -> dict[str, Any]:
        """Return the replica's report as of now."""
        report: dict[str, Any] = self.handle.warmup_report.remote().result(timeout_s=60)
        return report


class Cluster:
    """A Ray cluster with Serve on it, on which applications are started one after the other."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextlib.contextmanager
    def running(
        self, app: App, settings: Mapping[str, Any], *, progress: Progress = lambda _: None
    ) -> Iterator[Start]:
        """Start `app` with one replica, yield it when it is ready, and delete it afterwards.

        Raises:
            BuildFailed: the replica failed to start; the text is its own.
        """
        from ray import serve
        from ray.serve.schema import ServeDeploySchema

        with tempfile.TemporaryDirectory(prefix="serve_warm-starts-") as scratch:
            state_dir = Path(scratch) / "state"
            config = app.with_warmup({"state_dir": str(state_dir), **settings})
            schema = ServeDeploySchema.model_validate({"applications": [config]})
            client = _client()
            client.deploy_apps(schema)
            try:
                created_unix, ready_unix = self._wait(app, client, state_dir, progress)
                handle = serve.get_deployment_handle(app.deployment, app_name=app.name)
                prefix = str(config.get("route_prefix") or "/").rstrip("/")
                yield Start(
                    app=app,
                    url=f"http://127.0.0.1:{self.port}{prefix}",
                    ready_s=ready_unix - created_unix,
                    handle=handle,
                )
            finally:
                client.delete_apps([app.name], blocking=True)

    def _wait(
        self, app: App, client: Any, state_dir: Path, progress: Progress
    ) -> tuple[float, float]:
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            details = client.get_serve_details()["applications"].get(app.name, {})
            status = details.get("status")
            replicas = (details.get("deployments") or {}).get(app.deployment, {}).get("replicas")
            if status == "RUNNING" and replicas:
                return float(replicas[0]["start_time_s"]), time.time()
            states = [s for s in node.read_states(state_dir) if s["deployment"] == app.deployment]
            failed = next((s for s in states if s["stage"] == "FAILED"), None)
            if failed is not None or status == "DEPLOY_FAILED":
                # A replica that dies in its constructor writes no state: Serve has its traceback.
                why = failed["error"] if failed else _message(details, app.deployment)
                raise BuildFailed(f"{app.deployment} did not become ready: {why}")
            progress(_described(states, replicas))
            time.sleep(POLL_S)
        raise BuildFailed(f"{app.deployment} was not ready within {START_LIMIT_S:.0f} s")


def _message(details: Mapping[str, Any], deployment: str) -> str:
    own = ((details.get("deployments") or {}).get(deployment) or {}).get("message")
    return str(own or details.get("message") or "Serve gives no reason").strip()


def _described(states: list[dict[str, Any]], replicas: Any) -> str:
    if not states:
        return "importing and loading weights" if replicas else "deploying"
    state = states[-1]
    text = str(state["stage"]).lower()
    if state["inputs_expected"]:
        text += f" pass {state['passes']}, {state['inputs_done']}/{state['inputs_expected']} inputs"
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
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    else:
        # num_cpus is bookkeeping for Ray: a replica gets its threads from its own num_cpus.
        ray.init(
            num_cpus=max(int(num_cpus + 0.999), os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield Cluster(_port_of_serve(port))
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
    """An artifact that was accepted and published."""

    store: str
    statement: str
    variant: str
    """Key of the fingerprint."""
    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]
    """Stored bytes by part."""
    cold: Mapping[str, Any]
    """Report of the replica that compiled."""
    round_trip: Mapping[str, Any]
    """Report of the fresh replica that loaded the artifact."""


def build(
    app: App,
    store_uri: str,
    *,
    on: Cluster,
    progress: Progress = lambda _: None,
) -> Built:
    """Build, prove, sign and publish the artifact of one deployment.

    Nothing is published unless a second, fresh replica loads the artifact, proves every input
    and runs no compiler. Signed with the per-user key, which is made and trusted on first use.

    Raises:
        BuildFailed: a replica failed, or the artifact did not pass its round trip.
        StoreError: the store cannot be written.
    """
    store = open_store(store_uri)
    settings = {"enabled": True, "on_missing": "fail", "on_refused": "fail", "on_uncovered": "fail"}
    with on.running(
        app, {**settings, "artifact": None}, progress=_prefixed(progress, "compile")
    ) as start:
        progress("compile: packing")
        packed = start.handle.warmup_artifact.remote().result(timeout_s=600)
    manifest, stored = _manifest(app, packed)
    progress("sign")
    key = user_key()
    with tempfile.TemporaryDirectory(prefix="serve_warm-staging-") as staging:
        transfer.push(open_store(staging), manifest, stored, [key])
        warm = {**settings, "artifact": staging, "parts": ["cache"]}
        with on.running(app, warm, progress=_prefixed(progress, "round trip")) as start:
            report = start.report()
        _accept(report)
        progress("publish")
        statement = transfer.push(store, manifest, stored, [key])
    return Built(
        store=store.uri,
        statement=statement,
        variant=manifest.fingerprint.key,
        stored_bytes=sum(len(data) for data in stored.values()),
        raw_bytes=sum(part.raw_bytes for part in manifest.parts),
        parts={part.name: part.stored_bytes for part in manifest.parts},
        cold=packed["report"],
        round_trip=report,
    )


def _manifest(app: App, packed: Mapping[str, Any]) -> tuple[artifact.Manifest, dict[str, bytes]]:
    parts, stored = [], {}
    for name, raw in packed["parts"].items():
        part, data = artifact.pack_part(name, raw)
        parts.append(part)
        stored[name] = data
    manifest = artifact.Manifest(
        format=artifact.FORMAT,
        deployment=app.deployment,
        created=artifact.utc_now(),
        fingerprint=Fingerprint.from_json(packed["fingerprint"]),
        parts=tuple(parts),
        facts=packed["facts"],
    )
    return manifest, stored


def _accept(report: Mapping[str, Any]) -> None:
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
    if covered["proven"] != covered["expected"]:
        problems.append(f"it proved {covered['proven']} of {covered['expected']} inputs")
    if problems:
        raise BuildFailed(
            "a fresh replica loaded the artifact, and " + "; ".join(problems),
            hint="nothing was published. What is not cached is usually a graph that bypasses "
            "torch's caches (TORCH_LOGS=+inductor names it), or an input that differs per start",
        )


def _prefixed(progress: Progress, prefix: str) -> Progress:
    return lambda text: progress(f"{prefix}: {text}")
