# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What replicas take from a store that several applications, edits and attackers have written to.

    python tests/benchmarks/faults_applications.py --json tests/benchmarks/results/faults.json

`serve-warm build` and replicas of Ray Serve run for each row, with `rollback = "refuse"`. A row of
kind `application` has an outcome: `as documented`, or `wrong` with what was found. `said` is what
the user reads. The rows replace those of the kind in the file. The exit status is 1 if a row is
wrong. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.fault_rows import FaultRow, add_rows  # noqa: E402 - found through the line above
from serve_warm.trust.keys import write_key_pair  # noqa: E402

KIND = "application"
HANG_S = 600.0

APP = """
import dataclasses

import torch
from ray import serve

from serve_warm import Buckets, Field, WarmupMixin, shape_grid, signed_by


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(4, WIDTH), SCALE

    def forward(self, x):
        return torch.tanh(self.layer(x)) * self.scale


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Model(WarmupMixin):
    warmup_trust = dataclasses.replace(signed_by(PEM), rollback="refuse")

    def __init__(self):
        self.model = torch.compile(Net().eval(), dynamic=False)

    def warmup_inputs(self):
        fields = {"x": Field(axes=("batch", 4), dtype="float32")}
        return shape_grid(self.score, Buckets(batch=[2]), fields=fields)

    async def score(self, x):
        with torch.inference_mode():
            return self.model(x) + OFFSET


app = Model.bind()
"""

START = """
import importlib
import json
import sys

import ray
from ray import serve

module, store, address = sys.argv[1:]
model = importlib.import_module(module).Model
ray.init(address=address, log_to_driver=False)
bound = model.options(user_config={"warmup": {"artifact": store}}).bind()
report = serve.run(bound, route_prefix="/").warmup_report.remote().result()
print("REPORT " + json.dumps(report))
serve.delete("default")
"""


class Site:
    """A folder with two applications, a store, a signing key and a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        (folder / "tmp").mkdir(mode=0o700)
        write_key_pair(folder / "ci.key")
        (folder / "start.py").write_text(START)
        # Workers of the cluster have this environment too.
        os.environ.update(TMPDIR=str(folder / "tmp"), PYTHONPATH=f"{ROOT}:{folder}")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        self._address = ray.get_runtime_context().gcs_address

    def write(self, team: str, *, width: int = 3, scale: float = 2.0, offset: float = 0.0) -> None:
        """Write the application of a team."""
        pem = (self.folder / "ci.key.pub").read_text()
        text = APP.replace("WIDTH", str(width)).replace("SCALE", str(scale))
        text = text.replace("PEM", repr(pem))
        (self.folder / team).mkdir(exist_ok=True)
        (self.folder / team / "__init__.py").touch()
        (self.folder / team / "app.py").write_text(text.replace("OFFSET", str(offset)))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )

    def build(self, team: str, *options: str, store: Path | None = None) -> tuple[str, str]:
        """Return the statement of a build and what it said; the statement is empty if it failed."""
        command = ("-m", "serve_warm.cli", "build", f"{team}.app:app", "--json", "--key", "ci.key")
        where = ("--store", str(store or self.store), "--address", self._address)
        ended = self.run(*command, *where, *options)
        if ended.returncode:
            return "", ended.stderr[ended.stderr.rfind("error:") :].strip()
        return json.loads(ended.stdout)["statement"], ended.stdout

    def start(self, team: str, *, store: Path | None = None) -> dict[str, Any]:
        """Return the report of a replica of a team's application."""
        ended = self.run("start.py", f"{team}.app", str(store or self.store), self._address)
        for line in ended.stdout.splitlines():
            if line.startswith("REPORT "):
                report: dict[str, Any] = json.loads(line.removeprefix("REPORT "))
                return report
        raise RuntimeError(f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")


def row(name: str, *, found: object, wanted: object, said: str) -> FaultRow:
    outcome = "as documented" if found == wanted else f"wrong: {found!r}, not {wanted!r}"
    return {"name": name, "kind": KIND, "tries": 1, "outcome": outcome, "said": said}


def took(report: dict[str, Any]) -> tuple[str, str, str]:
    """Return the verdict, why an artifact was refused, and the taken or refused statement."""
    used = report["artifact"]
    return report["verdict"], used["refused"], used["statement"]


def shown(report: dict[str, Any], site: Site) -> str:
    used = report["artifact"]
    said = used["reason"] or "\n".join([*used["trace"], *report["warnings"]])
    return said.replace(str(site.folder), "…")


def applications(site: Site) -> Iterator[FaultRow]:
    built = {}
    for team, width in (("shop", 3), ("search", 5)):
        site.write(team, width=width)
        built[team], _ = site.build(team)
    for team, statement in built.items():
        report = site.start(team)
        yield row(
            f"two applications with a class Model in one store: {team}",
            found=(*took(report), statement.split("/")[1:3]),
            wanted=("full_hit", "", statement, [f"{team}.app", "Model"]),
            said=shown(report, site),
        )
    yield from edits(site, built["shop"])
    yield from attacks(site, built)


def edits(site: Site, first: str) -> Iterator[FaultRow]:
    site.write("shop", offset=1.0)
    second, said = site.build("shop")
    yield row(
        "a build after an edit, in a folder of this user",
        found=bool(second) and second != first,
        wanted=True,
        said=second or said,
    )
    for name, offset, wanted in (
        ("the edited code", 1.0, second),
        ("the earlier code again, with an older artifact that matches it", 0.0, first),
    ):
        site.write("shop", offset=offset)
        report = site.start("shop")
        yield row(
            name,
            found=(*took(report), report["warnings"]),
            wanted=("full_hit", "", wanted, []),
            said=shown(report, site),
        )
    site.write("shop", offset=1.0)
    saved = (site.store / second).read_bytes()
    (site.store / second).unlink()
    report = site.start("shop")
    yield row(
        "the newest artifact was deleted, and an older one is left",
        found=took(report),
        wanted=("refused", "rollback", first),
        said=shown(report, site),
    )
    third, _ = site.build("shop")
    report = site.start("shop")
    yield row(
        "built again after the newest was deleted",
        found=took(report),
        wanted=("full_hit", "", third),
        said=shown(report, site),
    )
    (site.store / third).unlink()
    (site.store / second).write_bytes(saved)
    report = site.start("shop")
    yield row(
        "an older signed artifact of the same code was put back in place of the newest",
        found=took(report),
        wanted=("refused", "rollback", second),
        said=shown(report, site),
    )


def attacks(site: Site, built: dict[str, str]) -> Iterator[FaultRow]:
    other = site.folder / "other"
    shutil.copytree(site.store / "blobs", other / "blobs")
    moved = other / built["search"].replace("search.app", "shop.app")
    moved.parent.mkdir(parents=True)
    shutil.copy(site.store / built["search"], moved)
    report = site.start("shop", store=other)
    yield row(
        "the statement of another application was copied to the place of this one",
        found=took(report)[:2],
        wanted=("refused", "bad_statement"),
        said=shown(report, site),
    )
    moved.rename(other / "statement")
    old = other / "statements" / "Model" / moved.name
    old.parent.mkdir()
    (other / "statement").rename(old)
    report = site.start("shop", store=other)
    said = shown(report, site)
    yield row(
        "a store in the layout of an older version",
        found=(took(report)[0], "layout of an older version" in said, "build" in said),
        wanted=("miss", True, True),
        said=said,
    )
    left = site.folder / "left"
    site.build("shop", "--unsigned", store=left)
    report = site.start("shop", store=left)
    said = shown(report, site)
    yield row(
        "an artifact without a signature",
        found=(*took(report)[:2], "serve-warm sign" in said, "[[keys]]" in said),
        wanted=("refused", "untrusted", True, False),
        said=said,
    )
    shared = site.folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    first, _ = site.build("search", store=shared)
    second, said = site.build("search", store=shared)
    yield row(
        "a second build into a folder that everybody can write to",
        found=(bool(first), bool(second), "set `application`" in said),
        wanted=(True, False, True),
        said=said.replace(str(site.folder), "…"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, help="add the rows to this file, or replace them")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = []
        for each in applications(Site(Path(folder))):
            rows.append(each)
            sys.stdout.write(f"{each['outcome']}: {each['name']}\n")
            sys.stdout.flush()
            if options.json is not None:
                add_rows(options.json, rows, whole=[KIND])
    wrong = [each for each in rows if each["outcome"] != "as documented"]
    for each in wrong:
        sys.stderr.write(f"{each['name']}: {each['outcome']}\n{each['said']}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
