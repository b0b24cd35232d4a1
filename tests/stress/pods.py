# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The containers of a rendered pod on this machine, with kubelet's mounts and restrictions.

A container sees this machine's files as its image, and the mounts of the pod. An emptyDir is a
folder of root with mode 2777, a Secret is readable by the group, and a ConfigMap is read-only. The
container has its own process ids, shares the network of its pod, and runs as the pod's user without
capabilities. This needs root on this machine. There is no kubelet: nothing restarts, probes or
evicts a container.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).parents[2]


class Pod:
    """The volumes, network and running containers of one pod. A `with` block ends them."""

    def __init__(
        self,
        template: Mapping[str, Any],
        root: Path,
        *,
        code: Path,
        claims: Mapping[str, Path] | None = None,
        files: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Create the volumes and the network of a pod, from its template.

        `root` is the folder of the pod, and `code` is the folder of the application. `claims` has
        the folders of claims by name, and `files` has ConfigMaps and Secrets by name.
        """
        self._spec = template["spec"]
        self._root = root
        self._code = code
        self._claims = claims or {}
        self._files = files
        self._running: list[subprocess.Popen[bytes]] = []
        context = self._spec["securityContext"]
        self._user, self._group = context["runAsUser"], context["runAsGroup"]
        self._fs_group = context["fsGroup"]
        self._volumes = {v["name"]: self._volume(v) for v in self._spec["volumes"]}
        # This process holds the network. Kubelet calls it the sandbox.
        holds = "ip link set lo up; exec sleep 86400"
        self._sandbox = self._began(["unshare", "--net", "sh", "-c", holds])
        name = Path(f"/proc/{self._sandbox.pid}/comm")
        until(lambda: name.read_text() == "sleep\n", seconds=10)

    def __enter__(self) -> Pod:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._running):
            self.end(process)

    def initialise(self) -> None:
        """Run the init containers that are not sidecars, one after the other."""
        for container in self._spec["initContainers"]:
            if container.get("restartPolicy") != "Always":
                self.run(container["name"])

    def run(self, name: str) -> str:
        """Run a container to its end, and return its output. An exit code other than 0 raises."""
        done = subprocess.run(
            self._command(name, None), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Start a container, with `command` instead of its own command if one is given."""
        return self._began(self._command(name, command))

    def execute(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a program of this machine in the pod's network."""
        inside = ["nsenter", "--net", f"--target={self._sandbox.pid}", *command]
        return subprocess.run(inside, capture_output=True, text=True, check=False)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a container and all processes that it started."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _began(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._root / f"{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._running.append(process)
        return process

    def _volume(self, volume: Mapping[str, Any]) -> tuple[Path, bool]:
        """Return a volume's folder, and whether the volume is writable."""
        folder = self._root / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        if "persistentVolumeClaim" in volume:
            return self._claims[volume["persistentVolumeClaim"]["claimName"]], True
        secret = volume.get("secret", {})
        named = volume.get("configMap", {}).get("name") or secret.get("secretName")
        if not named:
            os.chown(folder, 0, self._fs_group)
            folder.chmod(0o2777)
            return folder, True
        # Kubelet makes such links too, so that all files change at once.
        (folder / "..data").symlink_to("..2026")
        (folder / "..2026").mkdir()
        for name, text in self._files[named].items():
            file = folder / "..2026" / name
            file.write_text(text)
            os.chown(file, 0, self._fs_group)
            file.chmod(secret.get("defaultMode", 0o644))
            (folder / name).symlink_to(f"..data/{name}")
        folder.chmod(0o777)
        return folder, False

    def _command(self, name: str, command: list[str] | None) -> list[str]:
        every = [*self._spec["containers"], *self._spec["initContainers"]]
        container = next(each for each in every if each["name"] == name)
        new = self._root / "rootfs"
        new.mkdir(exist_ok=True)
        top = f"{new}/top"
        lines = [
            "set -e",
            f"mount -t tmpfs none {new}",
            f"mkdir {new}/up {new}/work {top}",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={new}/up,workdir={new}/work {top}",
            f"mount --rbind /dev {top}/dev",
            f"mount -t proc proc {top}/proc",
            # The interpreter of these tests may be in root's home.
            f"chmod 711 {top}/root",
            # A new image does not have these folders, even if this machine does.
            f"rm -rf {top}/etc/serve_warm {top}/run/serve_warm {top}/var/cache/serve_warm",
            f"mkdir -p {top}/opt/app && mount --bind {self._code} {top}/opt/app",
        ]
        for mount in container.get("volumeMounts", []):
            volume, writable = self._volumes[mount["name"]]
            source = volume / mount.get("subPath", "")
            if not source.exists():
                source.mkdir(mode=stat.S_IMODE(volume.stat().st_mode))
            target = f"{top}{mount['mountPath']}"
            lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
            if mount.get("readOnly") or not writable:
                lines.append(f"mount -o remount,bind,ro {target}")
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        lines.append(f"mount -o remount,ro {top}")
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{REPOSITORY}:/opt/app",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            **{each["name"]: _value(each) for each in container.get("env", [])},
        }
        lines.append(
            shlex.join(
                [
                    *("exec", "chroot", top, "setpriv", f"--reuid={self._user}"),
                    *(f"--regid={self._group}", f"--groups={self._fs_group}"),
                    *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
                    *("env", "-i", *(f"{key}={value}" for key, value in environment.items())),
                    *(_told(part, environment) for part in command or container["command"]),
                ]
            )
        )
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c"]
        return ["nsenter", "--net", f"--target={self._sandbox.pid}", *own, "\n".join(lines)]


def _value(variable: Mapping[str, Any]) -> str:
    """Return a variable's value, as kubelet sets it. This machine is the node."""
    if "value" in variable:
        return str(variable["value"])
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}, variable
    return "127.0.0.1"


def _told(part: str, environment: Mapping[str, str]) -> str:
    """Return a part of a command with `$(NAME)` filled in, as kubelet does."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), part)


def why_not() -> str:
    """Return why no pod can run here, or an empty string."""
    if os.geteuid() != 0:
        return "only root can run pods"
    missing = [p for p in ("unshare", "nsenter", "setpriv", "chroot", "ip") if not shutil.which(p)]
    if missing:
        return f"pods need {', '.join(missing)} (Debian: util-linux, iproute2)"
    trial = "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w /mnt/t && mount -t overlay overlay -o "
    trial += "lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/t"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", trial],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def until(what: Any, *, seconds: float) -> Any:
    """Return the first true result of a call. Fail after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"{what} is not true after {seconds:.0f} s")
