# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that read and copy artifacts: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from artifacts import APP, APPLICATION, DEPLOYMENT, MACHINE, fingerprint
from command_line import (  # noqa: F401 - fixtures
    ESCAPES,
    KEY,
    MAIN,
    STRANGER,
    escaped,
    objects,
    publish,
    run_fixture,
    run_process_fixture,
    source_fixture,
    target_fixture,
    trust_file_fixture,
)
from serve_warm.cli import COMMANDS, screen


# inspect --------------------------------------------------------------------------------------
def test_inspect_lists_what_is_trusted_and_what_is_not(run, source):
    trusted, manifest = publish(source)
    untrusted, _ = publish(source, STRANGER, built_for=fingerprint(python="CPython 3.12.1"))

    shown = run("inspect", source.root)

    assert shown.code == 0
    blocks = {
        statement: shown.out.split(statement + "\n")[1].split("statements/")[0]
        for statement in (trusted, untrusted)
    }
    assert blocks[trusted].startswith("  trusted, signed by ci\n")
    assert f"part cache: {manifest.parts[0].stored_bytes} B stored" in blocks[trusted]
    assert blocks[untrusted].startswith("  not trusted (untrusted)\n  signed by ")
    assert "which is not trusted here\n" in blocks[untrusted]
    for name, value in {**MACHINE, "python": "CPython 3.12.1"}.items():
        assert f"  machine {name}: {value}\n" in blocks[untrusted]
    for name, value in APP.items():
        assert f"  app {name}: {value}\n" in blocks[untrusted]


def test_inspect_prints_json(run, source):
    publish(source, deployment="First")
    publish(source, STRANGER, deployment="Second", facts={"torch": "2.13"})
    shown = run("inspect", source.root, "--json")
    first, second = json.loads(shown.out)
    assert [first["trusted"], first["signers"], first["reason"]] == [True, ["ci"], ""]
    assert [second["trusted"], second["signers"], second["reason"]] == [False, [], "untrusted"]
    assert [first["how"], second["how"]] == ["signature", ""]
    assert [first["hint"], second["hint"][:7]] == ["", "add the"]
    assert {len(first["digest"]), len(second["digest"])} == {64}
    assert first["manifest"]["fingerprint"] == {"machine": MACHINE, "app": APP}
    assert second["manifest"]["facts"] == {"torch": "2.13"}
    assert shown.err == ""


def test_inspect_says_that_a_store_is_empty(run, source):
    """A store without artifacts is no error; stdout stays empty for whatever reads it."""
    shown = run("inspect", source.root)
    assert (shown.code, shown.out) == (0, "")
    assert shown.err == f"{source.root} has no artifacts\n"


@pytest.mark.parametrize("command", ["inspect", "verify", "diff", "pull", "push", "prune", "sign"])
def test_a_folder_that_is_not_there_is_no_empty_store(run, source, tmp_path, command):
    """A mistyped path differs from an empty store, and the error suggests the right name."""
    publish(source)
    more = {"pull": [tmp_path / "target"], "push": [tmp_path / "target"]}
    run("keygen", tmp_path / "ci.key")
    more["sign"] = ["--key", tmp_path / "ci.key"]
    ended = run(command, tmp_path / "sourse", *more.get(command, []))
    said = f"error: {tmp_path}/sourse does not exist, but the store must be an existing folder\n"
    assert (ended.code, ended.out) == (1, "")
    assert said in ended.err
    assert "hint: did you mean 'source'?" in ended.err
    assert not (tmp_path / "sourse").exists()


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        *((["instect"], "did you mean 'inspect'?"), (["Verfy"], "did you mean 'verify'?")),
        (["frobnicate"], f"the commands are {', '.join(COMMANDS)}"),
    ],
)
def test_a_mistyped_command_is_asked_for(run, arguments, question):
    ended = run(*arguments)
    assert ended.code == 2
    assert f"No such command {arguments[0]!r}: {question}" in ended.err


@pytest.mark.parametrize("command", ["inspect", "verify", "diff"])
def test_a_mistyped_deployment_is_asked_for(run, source, command):
    """The store knows its deployments: the nearest one is named, or all of them."""
    publish(source, deployment="Scorer")
    publish(source, deployment="Ranker")
    near = run(command, source.root, "--deployment", "scorer")
    far = run(command, source.root, "--deployment", "Embedder")
    elsewhere = run(command, source.root, "--application", "other", "--deployment", "Scorer")
    there = "the store has artifacts for Ranker of app, Scorer of app\n"
    others = f"has no artifacts for 'Embedder': {there}"
    assert "has no artifacts for 'scorer': did you mean 'Scorer'?\n" in near.err
    assert others in far.err
    assert f"has no artifacts for 'Scorer' of application 'other': {there}" in elsewhere.err


def test_inspect_imports_neither_torch_nor_ray(run_process, source):
    """Looking at artifacts costs no second of imports, and works where neither is installed."""
    publish(source, STRANGER)
    program = "try:\n    main()\nfinally:\n    print({'torch', 'ray'} & set(sys.modules))"
    ran = run_process(program, "inspect", source.root)
    first, *_, last = ran.out.splitlines()
    assert first.startswith(f"statements/{APPLICATION}/{DEPLOYMENT}/")
    assert last == "set()"


# push and pull --------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["push", "pull"])
def test_copies_are_complete(run, source, target, command):
    first, _ = publish(source, deployment="First")
    raw = {"cache": b"other", "precompiled": b"entries"}
    second, _ = publish(source, deployment="Second", raw=raw)
    copied = run(command, source.root, target.root)
    again = run(command, source.root, target.root, "--deployment", "First", "--json")
    assert (copied.code, copied.out) == (0, f"{first}\n{second}\n")
    assert objects(target) == objects(source)
    assert len(objects(target)) == 5
    stores = {"source": source.uri, "target": target.uri}
    assert json.loads(again.out) == {**stores, "statements": [first], "refused": []}


def test_an_untrusted_artifact_is_not_copied(run, source, target):
    publish(source, STRANGER)
    failed = run("push", source.root, target.root)
    assert (failed.code, failed.out) == (1, "")
    [error] = [line for line in failed.err.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: statements/app/Embedder/")
    assert "signed by " in error
    assert error.endswith(", which is not trusted here")
    assert "Traceback" not in failed.err
    assert objects(target) == {}


def test_what_is_published_is_superseded_only_when_asked(run, source, target):
    """The copy reports a variant with other content, and never replaces it."""
    there, _ = publish(target, raw={"cache": b"older"}, created="2026-11-19T10:00:00.000000Z")
    publish(source)
    before = objects(target)
    refused = run("pull", source.root, target.root)
    untouched = objects(target)
    superseded = run("pull", source.root, target.root, "--if-published", "supersede")
    assert (refused.code, refused.out) == (1, "")
    assert f", as {there} (created 2026-11-19" in refused.err
    assert untouched == before
    assert (superseded.code, superseded.out) == (0, there.replace(".dsse", "-g2.dsse") + "\n")
    assert before.items() <= objects(target).items()


def test_what_is_left_out_of_a_copy_is_said(run, source, target):
    """Junk in a store holds up nothing: the rest is copied, and the exit code is 3."""
    statement, _ = publish(source)
    source.create("statements/app/Embedder/junk.dsse.json", b"{}")
    copied = run("push", source.root, target.root)
    assert copied.code == 3
    assert copied.out.split() == [statement]
    assert (
        "skipped (bad_statement): statements/app/Embedder/junk.dsse.json: not a DSSE" in copied.err
    )


# Progress -------------------------------------------------------------------------------------


STAGES = [
    f"round trip: {first}; round trip, libraries: {second}"
    for first, second in (
        ("replaying pass 1, 1/6 inputs", "importing and loading weights"),
        ("replaying pass 1, 2/6 inputs", "importing and loading weights"),
        ("replaying pass 2, 2/6 inputs", "replaying pass 1, 3/6 inputs"),
        ("replaying pass 2, 3/6 inputs", "replaying pass 1, 4/6 inputs"),
    )
]
FIGURES = ["connecting to Ray at 10.0.0.7:6379", "pack: entry 1 of 4", "pack: entry 2 of 4"]


@pytest.mark.parametrize(
    ("told", "logged"),
    [
        (
            STAGES,
            [
                "round trip: replaying; round trip, libraries: importing and loading weights",
                "round trip: replaying; round trip, libraries: replaying",
            ],
        ),
        (FIGURES, FIGURES),  # figures that are no counters
    ],
)
def test_a_log_has_a_line_for_each_stage(capsys, told, logged):
    """Changed counters alone make no line, wherever they are. A long line stays one line."""
    with screen.progress() as progress:
        for text in told:
            progress(text)
    lines = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == logged


# Log lines ------------------------------------------------------------------------------------

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"


def test_log_lines_have_no_secrets_and_no_escapes(run_process, source):
    """With -v also what other packages log, tracebacks included, is filtered and escaped."""
    program = f"""
import logging
try:
    main()
except SystemExit:
    pass
try:
    raise ValueError("PUT https://host/key?X-Amz-Signature=abc123 {TOKEN}")
except ValueError:
    logging.getLogger("sdk").exception("failed with %s \x1b[2Ktrusted", "token={TOKEN}")
"""
    ran = run_process(program, "-v", "inspect", source.root)
    assert "Traceback (most recent call last)" in ran.err
    assert "failed with token=[hidden]" in ran.err
    assert "abc123" not in ran.err
    assert TOKEN not in ran.err
    assert escaped(ran.err)


# How they end ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments",
    ["inspect", "inspect a b", "push a", "pull a b --deploymnt c", "publish", "--jsn inspect a"],
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    """A missing or unknown argument, option or command is named on stderr."""
    ended = run(*arguments.split())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: ")
    assert "\nError: " in ended.err


def test_our_errors_are_two_lines_on_stderr(run):
    ended = run("inspect", "https://example.com/artifacts")
    assert (ended.code, ended.out) == (1, "")
    error, hint = ended.err.splitlines()[-2:]
    assert error.startswith("error: https:// addresses are not accepted, ")
    assert hint.startswith("hint: use a folder (./artifacts, file:///srv/artifacts), s3://")
    assert "Traceback" not in ended.err


def test_interruption_is_exit_code_130(source, trust_file):
    """Also while a bucket does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60.0)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
        environment = os.environ | {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"} | keys
        with subprocess.Popen(
            [sys.executable, "-c", MAIN + "main()", str(trust_file), "inspect", "s3://bucket/pre"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            connection, _ = silent.accept()  # the command asks
            with connection:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60.0)

    assert process.returncode == 130
    assert out == ""
    assert err.strip() == "interrupted"


def test_every_command_has_help_and_json(run):
    listed = run("--help")
    names = [
        line.split()[0]
        for line in listed.out.partition("Commands:")[2].partition("Exit codes:")[0].splitlines()
        if line.strip()
    ]
    helps = {name: run(name, "--help") for name in names}
    assert set(names) == {
        *("init", "metrics", "check", "run", "plan", "build", "bench", "inspect", "verify", "diff"),
        *("push", "pull", "keygen", "sign", "prune", "probe", "status", "report", "why"),
    }
    # `run` is Ray's command, which prints only its log.
    assert {name for name, help_ in helps.items() if "--json [FILE|-]" not in help_.out} == {"run"}
    assert "130  interrupted" in listed.out


def test_json_goes_to_stdout_or_to_a_file_that_its_name_shows(run, source, tmp_path):
    """Without the rule, `--json ARGUMENT` would write over the argument, or lose it."""
    publish(source)
    printed = [run("inspect", source.root, *words).out for words in (["--json"], ["--json", "-"])]
    assert printed[0] == printed[1]
    file = tmp_path / "new" / "inspected.json"
    ended = run("inspect", "--json", file, source.root)
    assert (ended.code, ended.out, ended.err) == (0, "", f"wrote {file}\n")
    assert file.read_text() == printed[0]
    ended = run("inspect", "--json", source.root)
    assert (ended.code, ended.out) == (2, "")
    assert "does not end in .json: name such a file, or write --json - before" in ended.err
