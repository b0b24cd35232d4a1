# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Ray cluster for builds and benchmarks, which starts applications and waits for them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

from serve_warm import _private_folders, node
from serve_warm._records import record
from serve_warm._redaction import describe_error
from serve_warm.builder.app import App
from serve_warm.errors import BuildFailed, ConfigError

if TYPE_CHECKING:
    from serve_warm.replica.start.pack import PackedReplica

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""Seconds between two checks of a start."""


ASK_S = 0.2
"""Seconds between two progress reports while a replica prepares its answer."""

REPORT_LIMIT_S = 30.0
"""Maximum wall-clock seconds for the replicas of a deployment to return their reports."""

START_LIMIT_S = 1800.0
"""Maximum seconds for one replica to become ready. The replica's own deadline is shorter.
"""


Progress = Callable[[str], None]
"""Function that is called with a short text about the current step of a start. Consecutive calls
often pass the same text."""

Look = Callable[[Sequence[Mapping[str, Any]]], None]
"""Function that is called repeatedly with the states of the replicas that are starting. If the
function raises, the start ends."""


@record(frozen=True, kw_only=True)
class ReadyReplica:
    """A ready replica, and how many seconds its start took."""

    url: str
    """Base URL of the application, without a trailing slash."""
    ready_s: float
    """Seconds from the creation of the replica's actor until Serve reports RUNNING."""
    handle: Any
    """Serve's handle to the deployment."""
    state_dir: Path
    replicas: int = 1

    def report(self) -> dict[str, Any]:
        """Return the replica's current report; for a gang, the report of its first rank."""
        return self.ask("warmup_report", timeout_s=60)[0]

    def pack(
        self,
        *,
        timeout_s: float,
        accept_torch_source: bool = False,
        progress: Progress = lambda _: None,
    ) -> list[PackedReplica]:
        """Return the packed parts of each replica, sorted by rank."""

        def tell() -> None:
            doing = [state.get("doing") for state in node.read_states(self.state_dir)]
            progress(next((text for text in doing if text), "asking the replica"))

        packed = self.ask(
            "warmup_artifact",
            {"accept_torch_source": accept_torch_source},
            timeout_s=timeout_s,
            meanwhile=tell,
        )
        return cast("list[PackedReplica]", packed)

    def ask(
        self,
        method: str,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        *,
        timeout_s: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[dict[str, Any]]:
        """Call a method of the mixin on each replica, and return the results, sorted by rank.

        All replicas run the method at the same time, because a replica may need to wait for the
        others.
        """
        from ray.exceptions import RayTaskError

        end = time.monotonic() + timeout_s
        alone = self.replicas == 1
        if alone:
            asked = getattr(self.handle, method).remote(**arguments)
        else:
            asked = self.handle.broadcast(method, **arguments)
        while True:
            meanwhile()
            try:
                if alone:
                    return [asked.result(timeout_s=ASK_S)]
                return sorted(asked.results(timeout_s=ASK_S), key=_rank)
            except TimeoutError as error:
                # A TimeoutError of the replica's own work arrives as a RayTaskError, and must be
                # raised.
                if isinstance(error, RayTaskError) or time.monotonic() > end:
                    raise


def _rank(answer: Mapping[str, Any]) -> int:
    """Return a replica's rank from its report or packed parts; for example, 2 from `2 of 4`."""
    rank: str = ((answer["fingerprint"] or {}).get("app") or {}).get("rank", "0")
    return int(rank.partition(" ")[0])


class ReplicaDied(BuildFailed):
    """A replica ended during its start without an error, for example because it was killed."""


class Starting:
    """A deployed application that may not be ready yet."""

    def __init__(self, app: App, name: str, *, on: Cluster, state_dir: Path, look: Look) -> None:
        self._app = app
        self._name = name
        self._on = on
        self._state_dir = state_dir
        self._look = look
        self._end = time.monotonic() + START_LIMIT_S
        self.said = "deploying"
        """The current step of the start, in a few words."""
        self.is_placed = False
        """Whether Ray has allocated resources for every replica of the application."""

    def poll(self) -> ReadyReplica | None:
        """Return the finished start, or None if the replicas are not ready yet.

        Raises:
            BuildFailed: the replica failed to start; the text is the replica's error.
            ReplicaDied: the replica ended without leaving an error.
        """
        deployment = self._app.deployment
        details = _client().get_serve_details()["applications"].get(self._name, {})
        status = details.get("status")
        replicas = (details.get("deployments") or {}).get(deployment, {}).get("replicas")
        if status == "RUNNING" and replicas:
            return self._ready(float(replicas[0]["start_time_s"]))
        states = [s for s in node.read_states(self._state_dir) if s["deployment"] == deployment]
        self._look(states)
        failed = next((s for s in states if s["stage"] == "FAILED"), None)
        if failed is not None:
            raise BuildFailed(f"{deployment} did not become ready: {failed['error']}")
        if status == "DEPLOY_FAILED":
            # A replica that dies in its constructor writes no state, but Serve has the traceback.
            text = _message(details, deployment)
            refuse_missing_module(text, deployment)
            raise ReplicaDied(f"{deployment} did not become ready: {text}")
        if time.monotonic() > self._end:
            raise BuildFailed(f"{deployment} was not ready within {START_LIMIT_S:.0f} s")
        self.said = _describe(states, replicas)
        self.is_placed = self.is_placed or _are_placed(details)
        return None

    def _ready(self, created_unix: float) -> ReadyReplica:
        from ray import serve

        return ReadyReplica(
            url=f"http://127.0.0.1:{self._on.port}/{self._name}",
            ready_s=time.time() - created_unix,
            handle=serve.get_deployment_handle(self._app.deployment, app_name=self._name),
            replicas=self._app.replicas,
            state_dir=self._state_dir,
        )


def _are_placed(details: Mapping[str, Any]) -> bool:
    """Return whether Serve has found a node for every replica of an application."""
    deployments = (details.get("deployments") or {}).values()
    return bool(deployments) and all(
        len(each["replicas"]) == each["target_num_replicas"]
        and all(replica.get("node_id") for replica in each["replicas"])
        for each in deployments
    )


def build_name() -> str:
    """Return a new name for an application that exists only to build or to measure.

    The alerts and the dashboard of the Helm chart ignore applications with such names, even if
    another release of serve_warm started them.
    """
    return f"serve_warm-{secrets.token_hex(4)}"


class Cluster:
    """A Ray cluster with Serve, where the build and bench commands start applications."""

    def __init__(
        self,
        port: int,
        *,
        place: Literal["here", "address"] = "here",
        working_dir: str | None = None,
    ) -> None:
        self.port = port
        self.place = place
        """`here` if this process started the cluster on this machine; `address` if the cluster
        already ran at an address."""
        self.working_dir = working_dir
        """Address of the code that Ray copied for this job; None if the nodes already have the
        code."""

    @contextlib.contextmanager
    def deployed(self, app: App, settings: Mapping[str, Any]) -> Iterator[str]:
        """Deploy `app` with a new name and a new route, yield the name, then delete the app.

        The method does not wait until the replicas are ready, and does not change other
        applications on the cluster.
        """
        name = build_name()
        client = _client()
        client.deploy_applications(
            [app.built(name, settings, working_dir=self.working_dir)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        try:
            yield name
        finally:
            client.delete_apps([name], blocking=True)

    @contextlib.contextmanager
    def starting(
        self, app: App, settings: Mapping[str, Any], *, look: Look = lambda _: None
    ) -> Iterator[Starting]:
        """Start `app` with one replica, yield the start at once, and delete the app afterwards."""
        with _private_folders.temporary_folder() as scratch:
            state_dir = scratch / "state"
            with self.deployed(app, {"state_dir": str(state_dir), **settings}) as name:
                yield Starting(app, name, on=self, state_dir=state_dir, look=look)

    @contextlib.contextmanager
    def running(
        self,
        app: App,
        settings: Mapping[str, Any],
        *,
        progress: Progress = lambda _: None,
        look: Look = lambda _: None,
    ) -> Iterator[ReadyReplica]:
        """Start `app` with one replica, yield the start when ready, and delete the app afterwards.

        Raises:
            BuildFailed: the replica failed to start; the text is the replica's error.
        """
        with self.starting(app, settings, look=look) as starting:
            while (start := starting.poll()) is None:
                progress(starting.said)
                time.sleep(POLL_S)
            yield start

    def has_room(self, resources: Mapping[str, float]) -> bool:
        """Return whether Ray counts these resources as free, summed over all nodes.

        Ray's count lags by about a second.
        """
        import ray

        free = cast("Any", ray).available_resources()
        return all(free.get(name, 0.0) >= count for name, count in resources.items())


_COLORS = re.compile(r"\x1b\[[0-9;]*m")

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def refuse_missing_module(text: str, deployment: str) -> None:
    """Raise if replicas died because of a missing module; the hint says how to install it.

    Raises:
        BuildFailed: `text` (Serve's reason for the failure) names a missing module.
    """
    missing = _NO_MODULE.search(text)
    if missing is None:
        return
    raise BuildFailed(
        f"{deployment} did not become ready: its replica cannot import the module {missing[1]!r}",
        hint="install it where the replicas run, or add it to runtime_env: {pip: [...]}. To copy "
        "APP's code to the nodes of a cluster, build in a job: ray job submit --working-dir . -- "
        "serve-warm build ... --address auto",
    )


def _message(details: Mapping[str, Any], deployment: str) -> str:
    """Return Serve's reason for a failed deployment, without the colors of Ray's tracebacks."""
    own = ((details.get("deployments") or {}).get(deployment) or {}).get("message")
    text = str(own or details.get("message") or "Serve gives no reason")
    return _COLORS.sub("", text).strip()


def _describe(states: list[dict[str, Any]], replicas: Any) -> str:
    if not states:
        return "importing and loading weights" if replicas else "deploying"
    state = states[-1]
    text = str(state["stage"]).lower()
    if state["inputs_expected"]:
        done = f"{state['inputs_done']}/{state['inputs_expected']}"
        text += f" pass {max(1, state['passes'])}, {done} inputs"
    return text


@contextlib.contextmanager
def open_cluster(
    *,
    address: str | None = None,
    num_cpus: float = 0.0,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[Cluster]:
    """Yield the cluster at `address`, or a local cluster that is shut down when the block exits.

    During the block, SIGTERM raises an exception that ends the process with exit code 143.

    Args:
        address: the address for `ray.init`, for example `auto`.
        num_cpus: minimum number of logical CPUs of a local cluster. A local cluster always has at
            least as many logical CPUs as the machine.
        progress: called once, just before Ray is started or contacted. At that time, the SIGTERM
            handler is already set.

    Raises:
        ConfigError: no cluster runs at `address`, or Ray cannot start one on this machine.
    """
    with _sigterm_as_exit() as take_over:
        take_over()
        progress("starting Ray" if address is None else f"connecting to Ray at {address}")
        import ray
        from ray import serve

        port = _free_port()
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        where = "on this machine" if address is None else f"on the cluster at {address}"
        with _RayFailure("Ray", where):
            _connect(address, num_cpus)
        take_over()  # called again, because Ray installs a handler that prints a C++ stack
        try:
            with _RayFailure("Ray Serve", where):
                serve.start(http_options={"host": "127.0.0.1", "port": port})
                port = _port_of_serve(port)
            job: Mapping[str, Any] = ray.get_runtime_context().runtime_env
            place: Literal["here", "address"] = "here" if address is None else "address"
            yield Cluster(port, place=place, working_dir=job.get("working_dir"))
        finally:
            # This ends a local cluster. On any other cluster, Serve keeps running.
            ray.shutdown()


def _connect(address: str | None, num_cpus: float = 0.0) -> str:
    """Connect to a cluster or start a local cluster; return where it is."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            _reach(address)
            context = ray.init(address=address, **options)
        else:
            # num_cpus is only bookkeeping for Ray: a replica's threads come from its own num_cpus.
            # Pass "local" explicitly, because RAY_ADDRESS may be set, as it is inside a Ray job.
            cpus = max(int(num_cpus + 0.999), os.cpu_count() or 1)
            context = ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address or 'this machine'}: {error}",
            hint="check --address, or leave it out; for a cluster with a token, such as that of "
            "serve-warm run, set RAY_AUTH_MODE=token",
        ) from error
    except OSError as error:
        # Seen in 2.60 if a socket path in the temporary folder is too long, or the disk is full.
        raise ConfigError(
            f"Ray could not start on this machine: {error}",
            hint="set TMPDIR to a short path with free space, for example /tmp",
        ) from error
    # A context of Ray Client, which `ray://` leads to, has no such field.
    return getattr(context, "address_info", {}).get("gcs_address") or address or "this machine"


REACH_LIMIT_S = 10.0
"""Maximum seconds until a cluster accepts a connection. Ray itself would ask for minutes."""


def _reach(address: str) -> None:
    """Connect to the address of a cluster once, if it is `host:port`.

    Raises:
        ConnectionError: nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from error


class _RayFailure(contextlib.AbstractContextManager["_RayFailure"]):
    """Raises ConfigError with a one-sentence message if Ray or Serve does not start.

    This class is used instead of an `except` clause, because Ray also raises plain Exception (seen
    in 2.60: "The current node timed out during startup"). Subclasses of Exception that Ray does not
    raise must propagate, but `except Exception` would catch them too.
    """

    def __init__(self, what: str, place: str) -> None:
        self._what = what
        self._place = place

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        from ray.exceptions import RayError

        is_rays = isinstance(error, (RayError, RuntimeError, TimeoutError))
        if error is None or not (is_rays or type(error) is Exception):
            return
        text = describe_error(error)
        raise ConfigError(
            f"{self._what} could not start {self._place}: {text}",
            hint="read session_latest/logs in Ray's temporary folder (RAY_TMPDIR, or /tmp/ray); "
            "the usual cause is too little memory or disk space, too few process ids, or a very "
            "busy machine",
        ) from error


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[Callable[[], None]]:
    """Yield a function that makes SIGTERM raise SystemExit; restore the old handler at the end.

    Call the function again after `ray.init`, because `ray.init` installs its own handlers (seen in
    2.60). Ray's handlers exit with code 15 or print a C++ stack.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGTERM)

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
        raise SystemExit(128 + signal.SIGTERM)

    def take_over() -> None:
        signal.signal(signal.SIGTERM, end)

    try:
        yield take_over
    except SystemExit as ended:
        if ended.code != signal.SIGTERM:
            raise
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def serve_run(words: Sequence[str]) -> None:
    """Run the command `serve run` with these arguments and options, in this process."""
    from ray.serve.scripts import run

    run.main(args=list(words), prog_name="serve-warm run", standalone_mode=False)


@record(frozen=True, kw_only=True)
class Answers:
    """What the replicas of a cluster have answered."""

    cluster: str
    """Address of the cluster, which `auto` has found."""
    of_replicas: Sequence[Mapping[str, Any]]
    """An answer of each replica with the mixin."""


def ask_replicas(address: str, method: str = "warmup_report", **arguments: Any) -> Answers:
    """Return the answers of all running replicas with the mixin, on the cluster at `address`.

    `method` is a method of the mixin, by default the one that returns reports.

    Raises:
        ConfigError: no cluster runs at `address`.
    """
    import ray
    from ray import serve

    cluster = _connect(address)
    try:
        answers = [
            report
            for name, application in serve.status().applications.items()
            for deployment in application.deployments
            for report in _ask_all(
                serve.get_deployment_handle(deployment, app_name=name), method, arguments
            )
        ]
    finally:
        ray.shutdown()
    return Answers(cluster=cluster, of_replicas=answers)


def _ask_all(handle: Any, method: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of a deployment's replicas; empty if no replica has the method."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        if hasattr(handle, "broadcast"):  # missing in 2.53, so only one replica answers
            return list(handle.broadcast(method, **arguments).results(timeout_s=REPORT_LIMIT_S))
        return [getattr(handle, method).remote(**arguments).result(timeout_s=REPORT_LIMIT_S)]
    except (AttributeError, RayError, RayServeException, TimeoutError) as error:
        logger.info("no report from %s: %s", handle.deployment_name, error)
        return []


def _client() -> Any:
    """Return Serve's client, which `serve.start` has connected to the controller."""
    from serve_warm.private_apis.ray_serve import client

    return client()


def _port_of_serve(wanted: int) -> int:
    """Return Serve's HTTP port, which differs from `wanted` if Serve was already running."""
    options = _client().get_serve_details().get("http_options") or {}
    return int(options.get("port") or wanted)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
