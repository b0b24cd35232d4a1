# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the images of `deployments` with buildah and runs the baked one with runc: `make images`.

    python tests/tooling/images.py [--wheels DIR | --torch-index URL] [--pip-config FILE]
                           [--volume FROM:TO ...] [--debian URL] [--json FILE] [--keep]

The base is a Debian 12 made by debootstrap. The lane builds every target of the Dockerfile on it,
builds the artifact in the image, and bakes it. It starts the baked image like a pod of the chart:
user 1000, no capabilities, a read-only root, and a network without a connection outside. The
replica must be ready without running a compiler. Then the lane runs each command that
docs/runbooks.md runs in a pod. The lane needs root, 25 GB of disk and half an hour. If it fails, it
leaves its images and logs in `build/images`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from image_pods import GROUP, PRIVATE, SHARED, USER, WORK, Containers, output

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS = ROOT / "deployments"
PROGRAMS = ("buildah", "runc", "debootstrap")
TARGETS = ("bare", "compiler", "level3", "app")
DEBIAN = ("ca-certificates", "python3", "python3-venv", "python3-dev", "python-is-python3")
STORE = "file:///srv/serve_warm/artifacts"

NODE_SERVER = (
    *("python3", "-m", "serve_warm.node_server", "--port=8099"),
    *("--state-dir=/run/serve_warm/state", "--expect=all", "--stale-s=30"),
    *("--raylet=http://localhost:52365/api/healthz", "--proxy=http://localhost:8000/-/healthz"),
)

ASK_THE_REPLICA = """
import json, urllib.request, ray
from ray import serve

ray.init("auto", log_to_driver=False, logging_level="ERROR")
handle = serve.get_deployment_handle("TextEmbedder", "text_embedder")
report = handle.warmup_report.remote().result()
request = urllib.request.Request(
    "http://127.0.0.1:8000/embed",
    json.dumps({"text": "A replica that is ready is warm."}).encode(),
    {"content-type": "application/json"},
)
answer = json.load(urllib.request.urlopen(request, timeout=60))
ready = urllib.request.urlopen("http://127.0.0.1:8099/readyz", timeout=60).status
print(json.dumps({"report": report, "numbers": len(answer["embedding"]), "readyz": ready}))
"""

ASK_THE_IMAGE = """
import json, platform, ray, serve_warm, torch

print(json.dumps({
    "debian": open("/etc/debian_version").read().strip(),
    "python": platform.python_version(),
    **{module.__name__: module.__version__ for module in (torch, ray, serve_warm)},
}))
"""


def main() -> int:
    """Run the lane and write its figures. If a step fails, exit with a sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    torch = parser.add_mutually_exclusive_group()
    torch.add_argument("--torch-index", default="https://download.pytorch.org/whl/cpu")
    torch.add_argument("--wheels", type=Path, help="a folder with a wheel of torch")
    parser.add_argument("--pip-config", type=Path, help="/etc/pip.conf of the build steps")
    parser.add_argument("--volume", action="append", default=[], metavar="FROM:TO")
    parser.add_argument("--debian", default="", help="a mirror for debootstrap")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--keep", action="store_true", help="keep images, and use existing ones")
    asked = parser.parse_args()
    refusal = why_not()
    if refusal:
        sys.exit(refusal)
    if not asked.keep:
        remove_all()
    WORK.mkdir(parents=True, exist_ok=True)
    lane = Lane(asked)
    lane.build_images()
    lane.build_artifact()
    lane.bake()
    with lane.pod() as containers:
        lane.start(containers)
        lane.run_commands(containers)
    lane.describe()
    if not asked.keep:
        remove_all()
    text = json.dumps(lane.found, indent=2) + "\n"
    sys.stdout.write(text)
    if asked.json:
        asked.json.write_text(text)
    return 0


def why_not() -> str:
    """Return a sentence that says why images cannot be built here; empty if they can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        needed = " ".join(missing)
        return f"make images needs {needed}: install them (Debian: apt-get install {needed})"
    return "make images must run as root" if os.geteuid() else ""


class Lane:
    """The steps in order. `found` has their measurements."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self.found: dict[str, Any] = {
            "command": "make images",
            "machine": {},
            "versions": {},
            "seconds": {},
            "sizes_bytes": {},
        }

    def build_images(self) -> None:
        """Build the base and the targets of the Dockerfile, and check each target."""
        with self._step("base"):
            if not self._asked.keep or not self._exists("base"):
                self._build_base()
        arguments = ["--build-arg=BASE=localhost/serve-warm:base", *self._mounts()]
        arguments += [f"--build-arg=TORCH_INDEX={self._torch_index()}"]
        for target in TARGETS:
            with self._step(target):
                self._build(DEPLOYMENTS / "Dockerfile", target, ROOT, *arguments)
            self._require(
                f"{USER}:{GROUP}" == self._config(target)["User"],
                f"{target} does not run as {USER}:{GROUP}",
            )
            self._run_in(target, "serve-warm", "--version")
        has_compiler = "command -v c++ || echo none"
        for target in TARGETS:
            said = self._run_in(target, "sh", "-c", has_compiler).strip()
            wanted = target in ("compiler", "app")
            self._require((said != "none") is wanted, f"the compiler of {target} is {said}")

    def build_artifact(self) -> None:
        """Build and sign the artifact as in docs/guides/images.md: in the image, as its user."""
        for name, mode in (("keys", 0o777), ("trust", 0o755), ("context", 0o755)):
            shutil.rmtree(WORK / name, ignore_errors=True)
            (WORK / name).mkdir()
            (WORK / name).chmod(mode)
        keys, trust, artifacts = WORK / "keys", WORK / "trust", WORK / "context" / "artifacts"
        artifacts.mkdir()
        artifacts.chmod(0o777)
        keygen = ("serve-warm", "keygen", "/keys/ci.key")
        (trust / "trust.toml").write_text(self._run_in("app", *keygen, volumes=[f"{keys}:/keys"]))
        shutil.copy(keys / "ci.key.pub", trust)
        volumes = [
            *(f"{artifacts}:/out", f"{trust}:/etc/serve_warm:ro"),
            f"{keys}/ci.key:/run/secrets/ci.key:ro",
        ]
        with self._step("artifact"):
            said = self._run_in(
                "app",
                *("serve-warm", "build", "deployments/text_embedder/serve.yaml"),
                *("--store", "file:///out", "--key", "/run/secrets/ci.key"),
                volumes=volumes,
            )
        compiled = re.search(r"compiled +([\d.]+) s to proof, (\d+) compiler processes", said)
        again = re.search(r"round trip +([\d.]+) s to proof.*, (\d+) compiler processes", said)
        self._require(compiled and again and again[2] == "0", f"the build said {said}")
        assert compiled
        assert again
        self.found["build"] = {
            "to_proof_s": float(compiled[1]),
            "compiler_processes": int(compiled[2]),
            "round_trip_s": float(again[1]),
        }

    def bake(self) -> None:
        """Build two images with the artifact. The base of `baked` is the image that built it."""
        for target in ("volume", "baked"):
            with self._step(target):
                self._build(
                    *(DEPLOYMENTS / "Dockerfile.artifact", target, WORK / "context"),
                    f"--build-arg=IMAGE={self._inspect('app')['FromImageID']}",
                )
        self._require(
            self._config("baked")["User"] == self._config("app")["User"],
            "baked and app have different users",
        )

    @contextlib.contextmanager
    def pod(self) -> Iterator[Containers]:
        name = self._buildah("from", self._name("baked")).strip()
        root = Path(self._buildah("mount", name).strip())
        containers = Containers(root=root, image=self._config("baked"), folder=WORK / "pod")
        try:
            yield containers
        finally:
            containers.end()
            self._buildah("umount", name)
            self._buildah("rm", name)

    def start(self, containers: Containers) -> None:
        """Start Ray, the node server and the application, and wait until the replica is ready."""
        began = time.monotonic()
        containers.start(
            "ray-worker",
            "exec ray start --head --num-cpus=2 --block --disable-usage-stats",
            mounts=[*PRIVATE, SHARED],
            read_only={"/etc/serve_warm": WORK / "trust"},
        )
        containers.start(
            "serve-warm-node",
            f"exec {shlex.join(NODE_SERVER)}",
            mounts=[SHARED],
            beside="ray-worker",
        )
        application = (DEPLOYMENTS / "text_embedder" / "serve.yaml").read_text()
        configuration = application.replace("artifact: ./artifacts", f"artifact: {STORE}")
        assert configuration != application
        containers.write("/tmp/serve.yaml", configuration)
        # Ray's dashboard listens only after some seconds. The operator in Kubernetes retries too.
        containers.until(["serve", "status"], seconds=300)
        containers.execute("ray-worker", ["serve", "deploy", "/tmp/serve.yaml"])
        containers.until(["serve-warm", "status"], seconds=900)
        self.found["seconds"]["start"] = round(time.monotonic() - began, 1)
        containers.until(["serve-warm", "probe"], seconds=60)
        said = containers.execute("ray-worker", ["python", "-c", ASK_THE_REPLICA])
        answer = json.loads(said.splitlines()[-1])
        report = answer["report"]
        self.found["ready_s"] = round(report["elapsed_s"], 1)
        self.found["to_proof_s"] = round(report["to_proof_s"], 1)
        self.found["verdict"] = report["verdict"]
        self.found["compiler_processes"] = report["warmup"]["compiler_processes"]
        self._require(self.found["verdict"] == "full_hit", said)
        self._require(self.found["compiler_processes"] == 0, said)
        self._require((answer["numbers"], answer["readyz"]) == (384, 200), said)

    def run_commands(self, containers: Containers) -> None:
        """Run the commands that docs/runbooks.md runs in pods. Each command must end with 0."""
        self.found["commands"] = []
        for name, command in commands((ROOT / "docs" / "runbooks.md").read_text()):
            containers.execute(name, command)
            self.found["commands"].append(f"{name}: {shlex.join(command)}")
        self._require(len(self.found["commands"]) > 5, "docs/runbooks.md has no commands")

    def describe(self) -> None:
        """Record the machine, the versions and the sizes."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.found["machine"] = {
            "cpu": platform.machine(),
            "cpus": os.cpu_count(),
            "memory_bytes": memory,
            "load": round(os.getloadavg()[2], 1),
        }
        versions = json.loads(self._run_in("app", "python", "-c", ASK_THE_IMAGE).splitlines()[-1])
        for program in PROGRAMS:
            said = output([program, "--version"], "versions")
            [versions[program]] = re.findall(r"(?:version|debootstrap) ([\d.]+)", said)[:1]
        self.found["versions"] = versions
        for target in ("base", *TARGETS, "volume", "baked"):
            layers = json.loads(self._inspect(target)["Manifest"])["layers"]
            self.found["sizes_bytes"][target] = sum(layer["size"] for layer in layers)

    # --- buildah ---------------------------------------------------------------------------

    def _build_base(self) -> None:
        root = WORK / "debian"
        shutil.rmtree(root, ignore_errors=True)
        mirror = [self._asked.debian] if self._asked.debian else []
        options = ["--variant=minbase", f"--include={','.join(DEBIAN)}"]
        output(["debootstrap", *options, "bookworm", str(root), *mirror], "base")
        name = self._buildah("from", "scratch").strip()
        top = self._buildah("mount", name).strip()
        output(["cp", "--archive", f"{root}/.", top], "base")
        self._buildah("umount", name)
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._buildah("config", "--cmd=python3", f"--env=PATH={path}", name)
        self._buildah("commit", "--rm", "--quiet", name, self._name("base"))
        shutil.rmtree(root)

    def _build(self, file: Path, target: str, context: Path, *arguments: str) -> None:
        self._buildah(
            *("bud", "--layers", "--runtime=runc", "--network=host", f"--target={target}"),
            *("--tag", self._name(target), "--file", str(file)),
            # BuildKit finds this file by its name, but buildah does not.
            *("--ignorefile", f"{file}.dockerignore", *arguments, str(context)),
            log=target,
        )

    def _run_in(self, target: str, *command: str, volumes: Sequence[str] = ()) -> str:
        """Run a command in a new container of an image, without network; return its stdout."""
        name = self._buildah("from", "--shm-size=2g", self._name(target)).strip()
        mounts = [f"--volume={volume}" for volume in volumes]
        try:
            options = ["--runtime=runc", "--network=none", *mounts]
            return self._buildah("run", *options, name, "--", *command, log=f"run-{target}")
        finally:
            self._buildah("rm", name)

    def _mounts(self) -> list[str]:
        volumes = list(self._asked.volume)
        if self._asked.pip_config:
            volumes.append(f"{self._asked.pip_config.resolve()}:/etc/pip.conf:ro")
        if self._asked.wheels:
            volumes.append(f"{WORK / 'index'}:/opt/index:ro")
        return [f"--volume={volume}" for volume in volumes]

    def _torch_index(self) -> str:
        """Return the address of torch's index; a folder of wheels becomes an index."""
        if not self._asked.wheels:
            return str(self._asked.torch_index)
        folder = WORK / "index" / "torch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wheels = sorted(self._asked.wheels.glob("torch-*.whl"))
        self._require(wheels, f"{self._asked.wheels} has no wheel of torch")
        for wheel in wheels:
            shutil.copy(wheel, folder)
        links = [f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>' for wheel in wheels]
        (folder / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(links))
        return "file:///opt/index"

    def _exists(self, target: str) -> bool:
        return f"serve-warm:{target}" in self._buildah("images", "--format={{.Name}}:{{.Tag}}")

    def _inspect(self, target: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._buildah("inspect", "--type=image", self._name(target))
        )
        return found

    def _config(self, target: str) -> dict[str, Any]:
        config: dict[str, Any] = self._inspect(target)["OCIv1"]["config"]
        return config

    @staticmethod
    def _name(target: str) -> str:
        return f"localhost/serve-warm:{target}"

    @staticmethod
    def _buildah(*arguments: str, log: str = "buildah") -> str:
        places = [f"--root={WORK / 'storage'}", f"--runroot={WORK / 'run'}"]
        return output(["buildah", *places, "--storage-driver=overlay", *arguments], log)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        sys.stderr.write(f"=== {name}\n")
        began = time.monotonic()
        yield
        self.found["seconds"][name] = round(time.monotonic() - began, 1)

    @staticmethod
    def _require(held: object, otherwise: str) -> None:
        if not held:
            sys.exit(otherwise)


def commands(runbooks: str) -> list[tuple[str, list[str]]]:
    """Return each command that the runbooks run in a pod, once, with its container.

    The baked store replaces the stores in commands. A command with `--watch` runs until it is
    interrupted, so `timeout` interrupts it.
    """
    found: list[tuple[str, list[str]]] = []
    for line in re.findall(r"^\$ (.*)$", runbooks, re.MULTILINE):
        words = shlex.split(line, comments=True)
        container = "ray-worker"
        if words[:2] == ["kubectl", "exec"]:
            container, words = words[words.index("-c") + 1], words[words.index("--") + 1 :]
            container = container.replace("ray-head", "ray-worker")  # one container is both here
        elif words[0] != "serve-warm":
            continue
        words = [STORE if word.startswith("s3://") else word for word in words]
        if "--watch" in words:
            stop = 'timeout --signal=INT --kill-after=9 --preserve-status 9 "$@"; test $? = 130'
            words = ["sh", "-c", stop, "sh", *words]
        if (container, words) not in found:
            found.append((container, words))
    return found


def remove_all() -> None:
    """Remove the containers and mounts of an earlier lane, and `build/images`."""
    if (WORK / "runc").is_dir():
        runc = ["runc", f"--root={WORK / 'runc'}"]
        for name in output([*runc, "list", "--quiet"], "runc").split():
            output([*runc, "delete", "--force", name], "runc")
    # buildah mounts its storage on itself.
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        target = line.split()[1]
        if Path(target).is_relative_to(WORK):
            subprocess.run(["umount", "--lazy", target], check=False)
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
