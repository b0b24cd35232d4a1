# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod, run by runc from an unpacked image, for `make images`.

Each has the user, mounts, capabilities and read-only root that the chart gives a worker. There is
no kubelet: nothing is probed or restarted, and no seccomp profile is applied.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORK = Path(__file__).resolve().parents[2] / "build" / "images"
"""Folder of images, volumes and logs."""

USER, GROUP = 1000, 100
"""User and group of the chart's pods. The group is also their `fsGroup`."""

PRIVATE = ("/tmp", "/var/cache/serve_warm")
"""Mounts that the chart's init container makes private to the user."""

SHARED = "/run/serve_warm"
"""The emptyDir that replicas and node server share. It is root's, but all users can write to it."""

ENVIRONMENT = {"HOME": "/tmp/home", "SERVE_WARM_STATE_DIR": "/run/serve_warm/state"}
"""Variables that the chart sets in a worker, and that serve_warm or Ray reads."""


class Containers:
    """Containers of one pod. They share its volumes, and a network without a connection outside."""

    def __init__(self, *, root: Path, image: dict[str, Any], folder: Path) -> None:
        """Take an unpacked image, its configuration, and a folder for the pod's volumes."""
        self._root = root
        self._image = image
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._started: list[str] = []

    def start(
        self,
        name: str,
        script: str,
        *,
        mounts: Sequence[str],
        read_only: dict[str, Path] | None = None,
        beside: str = "",
    ) -> None:
        """Start a container whose shell runs `script`, in the network of the container `beside`."""
        bundle = self._folder / name
        bundle.mkdir()
        binds = [bind(self._volume(target), target, "rw") for target in mounts]
        binds += [bind(source, target, "ro") for target, source in (read_only or {}).items()]
        # kubelet writes this file for each pod, and Ray's commands look up localhost.
        hosts = self._folder / "hosts"
        hosts.write_text("127.0.0.1 localhost pod\n")
        binds.append(bind(hosts, "/etc/hosts", "ro"))
        network = f"/proc/{self._state(beside)['pid']}/ns/net" if beside else ""
        command = ["/bin/bash", "-c", "--", script]
        specification = oci(self._root, self._image, command, binds, network=network)
        (bundle / "config.json").write_text(json.dumps(specification, indent=2))
        with (WORK / f"{name}.log").open("wb") as log:
            subprocess.run(
                [*self._runc(), "run", "--detach", f"--bundle={bundle}", self._id(name)],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append(name)

    def execute(self, name: str, command: Sequence[str]) -> str:
        """Run a command in a container as `kubectl exec` does, and return its output."""
        return output([*self._runc(), "exec", self._id(name), *command], "exec")

    def until(self, command: Sequence[str], *, seconds: float) -> None:
        """Wait until a command in the worker ends with 0."""
        end = time.monotonic() + seconds
        said = ""
        while time.monotonic() < end:
            done = subprocess.run(
                [*self._runc(), "exec", self._id("ray-worker"), *command],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return
            said = done.stdout + done.stderr
            time.sleep(1)
        log = (WORK / "ray-worker.log").read_text()[-2000:]
        sys.exit(f"{shlex.join(command)} did not end with 0 in {seconds:.0f} s: {said}\n{log}")

    def write(self, path: str, text: str) -> None:
        """Write a file into a mounted folder, as the pod's user."""
        mount = next(each for each in PRIVATE if path.startswith(each))
        file = self._volume(mount) / Path(path).relative_to(mount)
        file.write_text(text)
        os.chown(file, USER, GROUP)

    def end(self) -> None:
        """Kill and remove the started containers, the last one first."""
        for name in reversed(self._started):
            subprocess.run([*self._runc(), "delete", "--force", self._id(name)], check=False)

    def _volume(self, target: str) -> Path:
        """Return the folder of a mount. If needed, make it with the owner and mode as in a pod."""
        folder = self._folder / "volumes" / target.strip("/").replace("/", "-")
        if not folder.is_dir():
            folder.mkdir(parents=True)
            if target == SHARED:
                os.chown(folder, 0, GROUP)
                folder.chmod(0o2777)
            else:
                for each in (folder, folder / "home") if target == "/tmp" else (folder,):
                    each.mkdir(mode=0o700, exist_ok=True)
                    each.chmod(0o700)
                    os.chown(each, USER, GROUP)
        return folder

    def _state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(output([*self._runc(), "state", self._id(name)], "runc"))
        return state

    @staticmethod
    def _id(name: str) -> str:
        return f"serve-warm-images-{name}"

    @staticmethod
    def _runc() -> list[str]:
        return ["runc", f"--root={WORK / 'runc'}"]


def oci(
    root: Path,
    image: dict[str, Any],
    command: Sequence[str],
    binds: Sequence[dict[str, Any]],
    *,
    network: str,
) -> dict[str, Any]:
    """Return runc's configuration of a container with the limits that the chart sets."""
    environment = dict(each.split("=", 1) for each in image["Env"]) | ENVIRONMENT
    kinds = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    kinds.append({"type": "network", **({"path": network} if network else {})})
    nodev = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "hostname": "pod",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": USER, "gid": GROUP, "additionalGids": [GROUP]},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": image["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "mounts": [
            mounted("proc", "/proc", []),
            mounted("tmpfs", "/dev", ["nosuid", "mode=755", "size=65536k"]),
            mounted("devpts", "/dev/pts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666"]),
            # A pod has this unless a volume is mounted there.
            mounted("tmpfs", "/dev/shm", [*nodev, "mode=1777", "size=65536k"]),
            mounted("mqueue", "/dev/mqueue", nodev),
            mounted("sysfs", "/sys", [*nodev, "ro"]),
            *binds,
        ],
        "linux": {
            "namespaces": kinds,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
        },
    }


def mounted(kind: str, target: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the mount of a kernel file system."""
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}


def bind(source: Path, target: str, mode: str) -> dict[str, Any]:
    """Return the bind mount of a file or folder."""
    return {
        "destination": target,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", mode, "nosuid", "nodev"],
    }


def output(command: Sequence[str], log: str) -> str:
    """Run a command and return its stdout. Two logs in `build/images` get its stdout and stderr.

    If the command does not end with 0, the lane ends with the last part of its output.
    """
    with (WORK / f"{log}.log").open("a+") as out, (WORK / f"{log}.errors.log").open("a+") as errors:
        out.write(f"$ {shlex.join(command)}\n")
        out.flush()
        places = [file.seek(0, os.SEEK_END) for file in (out, errors)]
        done = subprocess.run(command, stdout=out, stderr=errors, check=False)
        for file, place in zip((out, errors), places, strict=True):
            file.seek(place)
        said, problems = out.read(), errors.read()
    if done.returncode:
        end = (said + problems)[-3000:]
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}: {end}")
    return said
