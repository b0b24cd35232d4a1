# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The README and other documents agree with the code and the committed results."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import textwrap

import jsonschema
import pytest

import readme_files
from benchmarks import figures, limits, picture
from deployments import demo
from serve_warm.builder import bench
from serve_warm.cli import COMMANDS
from serve_warm.config import WarmupConfig
from serve_warm.inputs import Input
from serve_warm.report import Verdict

README = figures.README.read_text()
REFERENCE = "".join(page.read_text() for page in figures.METRICS.parent.glob("*.md"))
GUIDE = (figures.ROOT / "docs" / "guides" / "first-artifact.md").read_text()
SENTENCES = " ".join(GUIDE.split())
BENCHED = ("text_embedder", "image_classifier", "image_generator", "speech_to_text")
"""Deployments that `make bench` starts in each mode of `serve-warm bench`."""


@pytest.mark.parametrize("name", figures.SECTIONS)
def test_generated_sections_are_up_to_date(name):
    """Figures and metrics in the documents equal those of the results and of the table."""
    file, write = figures.SECTIONS[name]

    assert figures.section(file, name)[1] == write()


@pytest.mark.parametrize("name", BENCHED)
def test_committed_results_are_of_the_published_schema(name):
    """The output of `serve-warm bench` fits its JSON Schema."""
    result = figures.load(name)

    jsonschema.validate(result, bench.schema())


@pytest.mark.parametrize("name", BENCHED)
def test_committed_results_show_what_is_claimed(name):
    """Warm starts run no compiler. All starts prove all inputs, and then compile nothing more."""
    runs = figures.load(name)["runs"]
    warm = [run for run in runs if run["mode"] == "warm"]

    assert warm
    assert [run["compiler_processes"] for run in warm] == [0] * len(warm)
    assert all(run["covered"]["proven"] == run["covered"]["expected"] > 0 for run in runs)
    assert [run["compiles_after_ready"] for run in runs] == [0] * len(runs)


def test_the_models_that_reach_level_2_are_counted_as_found():
    rows = figures.load("architectures")["rows"]

    assert f"[{figures.served(rows, 2)} of {figures.ran(rows, 2)} tiny models]" in SENTENCES


def test_the_guide_has_a_row_for_each_field_of_an_input():
    """The rows follow the order of the class, and no row is superfluous."""
    table = GUIDE.partition("### Fields of an input")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)

    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == [field.name for field in dataclasses.fields(Input)]


def test_the_guide_has_a_row_for_each_shape_of_rays():
    """The table says how to declare the inputs of each shape."""
    table = GUIDE.partition("### By kind of deployment")[2].partition("\n## ")[0]

    shapes = [
        re.split("[: (]", row)[0].strip("`")
        for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    ]
    assert shapes[1:] == [
        *("pipeline", "batch", "streaming", "multiplexed", "composition", "FastAPI", "gRPC"),
        "model.forward",
    ]


def test_the_inputs_that_the_guide_writes_are_inputs():
    """Each example in both tables is valid Python. `…` stands for omitted parts."""
    tables = GUIDE.partition("### Fields of an input")[2].partition("\n## ")[0]
    written = re.findall(r"`(Input\(.*?\))`", tables)
    names = {"Input": Input, "x": 1, "Request": dict}

    made = [eval(text.replace("{…}", "{}"), names) for text in written]

    assert len(made) == 5
    assert all(isinstance(each, Input) for each in made)


def test_the_committed_transfer_is_within_its_limits():
    result = figures.load("transfer")

    assert result["times_a_single_stream"] >= result["limits"]["times_a_single_stream"] == 4
    assert result["peak_mib"] <= result["limits"]["peak_mib"] == 160
    assert result["verify_ms"] <= result["limits"]["verify_ms"] == 5
    assert result["gets_of_a_blob_under_32_mib"] == 1
    assert result["gets_of_the_blob"] == 33


def test_the_committed_comparison_shows_what_is_asked_of_it():
    """Each claim holds, or is listed as missed with its reason. No claim that holds is listed."""
    checks = limits.checks(figures.load("startup"))
    missed = {check.key for check in checks if not check.held}

    assert len(checks) > len(limits.WORKLOADS) * 6
    assert missed == set(limits.MISSED)


def test_every_comparison_with_an_alternative_is_held_missed_or_said_not_to_be_one():
    """Comparisons that are missing because an alternative failed are counted too."""
    found = figures.load("startup")
    faster = [check for check in limits.checks(found) if check.limit == 1.0]
    of_each_level = 2 * len(limits.ALTERNATIVES) - 1  # no overhead of AOTInductor
    all_of_them = len(found["titles"]) * len(limits.FASTER) * of_each_level

    text = figures.compared(found)

    assert f" of {len(faster)} comparisons of readiness" in text
    assert f"{all_of_them - len(faster)} comparisons are missing" in text


def test_the_sentences_of_the_guide_have_their_figures_from_the_results():
    """Sentences outside the generated sections use the same runs."""
    loads = [
        row["stages"]["load"]
        for row in figures.load("startup")["rows"]
        if (row["system"], row["level"]) == ("serve_warm", 2)
    ]
    bytes_alone = figures.load("text_embedder")["medians"]["torch_bytes"]

    seconds = f"{min(loads):.1f} to {max(loads):.1f} s"
    assert (
        f"After the import of torch's compiler, a start loads the entries in {seconds}."
        in SENTENCES
    )
    assert f"while {bytes_alone['compiler_processes']:.0f} compiler processes run" in SENTENCES


def test_the_line_beside_the_picture_names_its_machine():
    """The table above it may come from another machine."""
    found = figures.load("startup")
    line = figures.section(figures.BENCHMARKS, "comparison line")[1]

    assert found["machine"]["cpu"] in line
    assert found["machine"]["torch"] in line
    assert all(
        f"{row['past_import_s']:.2f}" in line
        for row in found["rows"]
        if (row["system"], row["level"]) == ("serve_warm", 2)
    )


def test_the_committed_comparison_is_of_right_and_warm_starts():
    """Every start computes eager's results, and no start of serve_warm runs the compiler."""
    found = figures.load("startup")
    rows = [row for row in found["rows"] if row["ready_s"] is not None]
    ours = [row for row in rows if row["system"] == "serve_warm"]

    assert {row["workload"] for row in ours} == set(found["titles"])
    assert {row["level"] for row in ours} == {1, 2, 3}
    assert [row["compiler_processes"] for row in ours] == [0] * len(ours)
    assert max(row["max_error"] for row in rows) < 1e-3


def test_the_picture_is_of_the_committed_comparison():
    """docs/startup.svg is drawn from the same results as the tables."""
    drawn = (figures.ROOT / "docs" / "startup.svg").read_text()

    assert drawn == picture.svg(figures.load("startup"))


def test_a_reader_gets_through_the_readme():
    """Text that does not fit into 110 lines belongs in docs/, and code comes first."""
    assert len(README.splitlines()) <= 110
    assert len(README.partition("```")[0].split()) <= 60


def test_the_lines_that_a_user_adds_are_counted_as_they_are():
    """The sentence above the diffs has the numbers of changed and added lines."""
    diffs = readme_files.diffs(GUIDE)

    def count(name: str, sign: str) -> int:
        return sum(line[0] == sign and line != sign for line in diffs[name].splitlines() if line)

    changed = count("app.py", "-")
    assert (changed, count("app.py", "+") - changed) == (4, 9)
    assert (count("serve.yaml", "-"), count("serve.yaml", "+")) == (0, 5)
    sentence = "Change four lines of Python, and add nine lines of Python and five lines of YAML"
    assert sentence in GUIDE


def test_what_the_app_was_before_is_python_and_yaml():
    """Without the added lines, and with the removed lines, the file is the reader's own code."""
    before = {name: readme_files.before(diff) for name, diff in readme_files.diffs(GUIDE).items()}

    ast.parse(before["app.py"])
    assert "serve_warm" not in before["app.py"]
    assert "user_config" not in before["serve.yaml"]


@pytest.mark.parametrize("name", ["app.py", "serve.yaml"])
def test_the_files_of_the_guide_are_there_to_run(name):
    """deployments/scorer has the files of the guide after the change."""
    shown = readme_files.after(readme_files.diffs(GUIDE)[name])
    text = (figures.ROOT / "deployments" / "scorer" / name).read_text()

    assert text.partition("Apache-2.0\n")[2] == shown


def test_the_app_before_the_change_is_there_to_run():
    """deployments/untouched has it, for the session of the README, which `make demo` runs."""
    shown = readme_files.before(readme_files.diffs(GUIDE)["app.py"])
    text = (figures.ROOT / "deployments" / "untouched" / "app.py").read_text()
    commands = demo.commands_of(README)

    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(shown))
    assert commands[0] == ("cd deployments/untouched", "")
    assert {command.partition(" ")[0] for command, _ in commands} == {"cd", "curl", "serve-warm"}
    assert sum(bool(output) for _, output in commands) >= 4
    assert all(output for command, output in commands if command.startswith("curl"))


def test_python_blocks_are_python():
    blocks = re.findall(r"```python\n(.*?)```", README + GUIDE, re.DOTALL)
    blocks.append(readme_files.after(readme_files.diffs(GUIDE)["app.py"]))

    assert len(blocks) >= 5
    for block in blocks:
        ast.parse(textwrap.dedent(block))


def test_every_setting_command_and_verdict_is_documented():
    """Users can only find fields, commands and verdicts that a document names."""
    documents = README + GUIDE + REFERENCE
    missing = [
        name
        for name in [*WarmupConfig.model_fields, *(v.value for v in Verdict)]
        if f"`{name}`" not in documents
    ]
    missing += [command for command in COMMANDS if f"serve-warm {command}" not in documents]

    assert missing == []


@pytest.mark.parametrize("path", sorted(figures.RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_results_are_plain_json(path):
    """A committed result holds no NaN or Infinity, which JSON does not have."""
    json.loads(path.read_text(), parse_constant=pytest.fail)
