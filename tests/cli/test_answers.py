# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that answer a question by their exit code: `verify` and `diff`."""

from __future__ import annotations

import json
import os

import pytest

from artifacts import (
    APP,
    APPLICATION,
    DEPLOYMENT,
    MACHINE,
    blob_key,
    fingerprint,
    packed_cache,
    trusting,
)
from command_line import (  # noqa: F401 - fixtures
    ESCAPES,
    KEY,
    STRANGER,
    escaped,
    publish,
    run_fixture,
    run_process_fixture,
    source_fixture,
    target_fixture,
    trust_file_fixture,
)
from serve_warm.artifact.push import sign as sign_again
from serve_warm.fingerprint import PORTABLE_ISA, Fingerprint, read_app, read_machine
from serve_warm.trust.files import trust_lines
from transfers import pull_here


@pytest.fixture
def real(tmp_path) -> dict[str, bytes]:
    """Parts with valid content."""
    return {"cache": packed_cache(tmp_path / "cache")}


@pytest.fixture
def described(tmp_path):
    """Write something as JSON, for --against."""

    def write(data: object, name: str = "against.json"):
        file = tmp_path / name
        file.write_text(json.dumps(data))
        return file

    return write


@pytest.fixture
def diff(run, source, described):
    """Run `diff` with a store and the machine of a fingerprint."""

    def compare(*options, here=None):
        machine = described((here or fingerprint()).to_json())
        return run("diff", source.root, "--against", machine, *options)

    return compare


# verify ---------------------------------------------------------------------------------------
def test_verify_says_yes_of_what_is_good(run, source, real):
    first, manifest = publish(source, deployment="First", raw=real)
    second, _ = publish(source, deployment="Second", raw=real)
    ended = run("verify", source.root)
    lines = ended.out.splitlines()
    assert ended.code == 0
    assert [line.split()[:2] for line in lines] == [["OK", first], ["OK", second]]
    assert "trusted, signed by ci, created 2026-11-20T10:00:00.000000Z, variant " in lines[0]
    assert lines[0].endswith(f"cache {manifest.parts[0].stored_bytes} B (30.7 kB raw)")
    assert ended.err.endswith("2 verified, 0 refused\n")


def change(source, part) -> None:
    blob = source.root / blob_key(part)
    blob.write_bytes(blob.read_bytes()[:-1] + bytes([blob.read_bytes()[-1] ^ 1]))


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_verify_says_no_of_what_is_bad(run, source, real, *, options):
    """A bad part is refused with its reason, the others are still looked at: exit code 3."""
    bad, manifest = publish(source, deployment="Bad")
    good, _ = publish(source, deployment="Good", raw=real)
    change(source, manifest.parts[0])
    ended = run("verify", source.root, *options)
    assert ended.code == 3
    if options:
        told = json.loads(ended.out)
        assert (told["ok"], told["refused"]) == (1, 1)
        assert [item["reason"] for item in told["artifacts"]] == ["digest_mismatch", ""]
    else:
        first, second = ended.out.splitlines()
        assert first.startswith(f"REFUSED  {bad} (digest_mismatch): ")
        assert second.startswith(f"OK       {good} ")


def test_verify_refuses_strangers_and_says_what_to_do(run, source, real):
    """An artifact of an untrusted key is refused. The hint appears once for all."""
    publish(source, STRANGER, deployment="First", raw=real)
    publish(source, STRANGER, deployment="Second", raw=real)
    ended = run("verify", source.root)
    assert ended.code == 3
    assert [line.split()[0] for line in ended.out.splitlines()] == ["REFUSED", "REFUSED"]
    assert ended.err.count("hint: add the public key that signs your artifacts ") == 1


def test_an_artifact_that_two_keys_signed_is_verified_once(run, source, real, trust_file):
    """After a rotation both signers stand beside the one artifact, under its newer statement."""
    with trust_file.open("a") as file:
        file.write(trust_lines(STRANGER.public_key(), name="next"))
    publish(source, raw=real)
    [new] = sign_again(source, [STRANGER], trust=trusting(KEY)).statements
    shown = run("verify", source.root)
    data = json.loads(run("verify", source.root, "--json").out)
    [line] = shown.out.splitlines()
    assert line.startswith(f"OK       {new} trusted, signed by ci, next, ")
    assert shown.err.endswith("1 verified, 0 refused\n")
    assert (data["ok"], len(data["artifacts"])) == (1, 1)
    assert sorted(data["artifacts"][0]["signers"]) == ["ci", "next"]


@pytest.mark.parametrize("command", ["verify", "diff"])
@pytest.mark.parametrize("options", [[], ["--deployment", "Other"]], ids=["store", "deployment"])
def test_nothing_there_is_a_no(run, source, described, command, options):
    """An empty store gives the answer no, so that a mistyped address is noticed."""
    if options:
        publish(source)
    against = ["--against", described(fingerprint().to_json())] if command == "diff" else []
    ended = run(command, source.root, *options, *against)
    assert (ended.code, ended.out) == (3, "")
    assert "has no artifacts" in ended.err


@pytest.mark.parametrize("command", ["inspect", "verify", "diff"])
@pytest.mark.parametrize("key", [KEY, STRANGER], ids=["trusted", "untrusted"])
def test_answers_cannot_write_to_the_terminal(run, source, described, *, command, key):
    """Names and values of factors, whoever chose them, are shown escaped."""
    built_for = fingerprint(python=f"{ESCAPES} [red]")
    built_for.machine[f"gpu{ESCAPES}"] = f"4\n  fits{ESCAPES}"
    built_for.app["threads"] = f"4\n  trusted, signed by ci{ESCAPES}"
    publish(source, key, built_for=built_for, facts={"fact": ESCAPES})
    against = ["--against", described(fingerprint().to_json())] if command == "diff" else []
    for options in ([], ["--json"]):
        ended = run(command, source.root, *against, *options)
        assert ended.code == (0 if command == "inspect" else 3)
        assert escaped(ended.out)
        assert escaped(ended.err)
        assert "\n  fits" not in ended.out
        assert "4\n  trusted" not in ended.out
        if command == "inspect":
            shown = 5 if options else 4  # facts are shown only as JSON
            assert ended.out.count("\\u001b" if options else "\\x1b") == shown
        if command == "diff" and key is KEY and not options:
            assert "\\x1b[2K\\r\\x9b31m\\u202e\\u2028trusted [red]'" in ended.out


# diff -----------------------------------------------------------------------------------------
def test_diff_shows_the_factors_that_differ(diff, source):
    built_for = fingerprint(python="CPython 3.12.1", cpu_isa="avx2 avx512f amx_tile", threads="8")
    statement, _ = publish(source, built_for=built_for)
    ended = diff()
    assert ended.code == 3
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    equal = len({**MACHINE, **APP}) - 3
    assert lines[0].startswith("app/Embedder: no artifact fits the machine of ")
    said = f"{statement}: does not fit: 3 factors differ, {equal} equal, created 2026-11-20"
    assert lines[1] == f"{said}T10:00:00.000000Z"
    assert lines[2:] == [
        "factor artifact here",
        "cpu_isa only amx_tile nothing more",
        "python CPython 3.12.1 CPython 3.11.7",
        "threads 8 4",
    ]


def test_diff_shows_all_factors_when_asked(diff, source):
    built_for = Fingerprint(machine={**MACHINE, "libc": "glibc 2.36"}, app=APP)
    publish(source, built_for=built_for)
    lines = diff("--all").out.splitlines()[3:]
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    same = {name: f"the same {value}" for name, value in {**MACHINE, **APP}.items()}
    assert rows == {"libc": "glibc 2.36 without it", **same}


def test_diff_names_what_a_pull_takes(diff, source):
    for day in ("18", "19", "20"):
        publish(source, created=f"2026-11-{day}T10:00:00.000000Z", on_taken="supersede")
    sign_again(source, [STRANGER], trust=trusting(KEY))
    publish(source, STRANGER, on_taken="supersede", created="2026-11-20T11:00:00.000000Z")
    ended = diff("--json")
    taken = pull_here(source, trust=trusting(KEY)).chosen.key
    told = json.loads(ended.out)
    assert ended.code == 0
    assert told["takes"] == {f"{APPLICATION}/{DEPLOYMENT}": taken}
    assert told["artifacts"][0]["statement"] == taken
    assert told["artifacts"][-1]["reason"] == "untrusted"


def test_diff_says_on_which_gpu_it_was_built(diff, source):
    """A sentence above the factors names the GPU, because a GPU changes several factors."""
    publish(source, built_for=fingerprint(gpu="NVIDIA A100 sm_80 108 SMs 80 GiB", driver="550"))
    here = fingerprint(gpu="NVIDIA H200 sm_90 132 SMs 140 GiB", driver="580")
    ended = diff(here=here)
    built, asked = "NVIDIA A100 sm_80 108 SMs 80 GiB", "NVIDIA H200 sm_90 132 SMs 140 GiB"
    assert ended.code == 3
    assert f"the artifact was built on {built}, not on {asked}\n" in ended.out


def test_diff_reads_what_the_others_write(run, source, described):
    """A fingerprint, a report, an artifact of inspect and the output of diff say the same."""
    publish(source, built_for=fingerprint(python="CPython 3.12.1"))
    here = fingerprint().to_json()
    store = source.root.parent / "other"
    publish(type(source)(root=store))
    inspected = json.loads(run("inspect", store, "--json").out)
    forms = [here, {"verdict": "miss", "fingerprint": here}, inspected, inspected[0]]
    told = [run("diff", source.root, "--against", described(form), "--json") for form in forms]
    again = run("diff", source.root, "--against", described(json.loads(told[0].out)), "--json")
    assert {ended.code for ended in (*told, again)} == {3}
    assert [json.loads(ended.out) for ended in told] == [json.loads(again.out)] * len(forms)


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", "7", '{"machine": {}}', '{"fingerprint": null}', '{"verdict": "off"}'),
        '{"machine": {}, "app": {"threads": 4}}',
        *('{"machine": {}, "app": {"\\u001b[2K": 1}}', "\x1b[2K"),
    ],
)
def test_a_file_that_describes_no_machine_is_wrong_usage(run, source, tmp_path, content):
    publish(source)
    file = tmp_path / "against.json"
    file.write_text(content)
    ended = run("diff", source.root, "--against", file)
    said = f"Error: Invalid value for '--against': {file} has no valid fingerprint: "
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].startswith(said)
    assert escaped(ended.err)


def test_what_the_replica_sets_does_not_count_here(run, source, described):
    """A plain machine does not know a replica's threads and modes, so they do not count."""
    machine = read_machine(os.environ)
    app = {**read_app(os.environ), "threads": "77"}
    statement, _ = publish(source, built_for=Fingerprint(machine=machine, app=app))

    alone = run("diff", source.root)
    everything = run("diff", source.root, "--all")
    saved = described(json.loads(run("diff", source.root, "--json").out))
    elsewhere = run("diff", source.root, "--against", saved)
    replica = described({"machine": machine, "app": {**app, "threads": "1"}}, "replica.json")
    with_app = run("diff", source.root, "--against", replica)

    assert [alone.code, elsewhere.code, with_app.code] == [0, 0, 3]
    assert alone.out.splitlines()[0] == (
        f"app/Embedder: {statement} fits this machine, but the command did not check threads "
        f"(num_cpus) and {len(app) - 1} more factors that the replica sets, so the verdict can "
        "still be a miss"
    )
    assert f"{len(machine)} equal, {len(app)} set by the replica, created" in alone.out
    rows = [" ".join(line.split()) for line in everything.out.splitlines()]
    assert "threads 77 set by the replica" in rows
    assert "pass --against with a replica's report" in alone.err
    assert "threads 77 1" in " ".join(with_app.out.split())
    assert "--against" not in with_app.err


@pytest.mark.parametrize(
    ("isa", "code"), [(f"{PORTABLE_ISA} avx512f", 0), ("sse sse2", 3)], ids=["AVX-512", "SSE"]
)
def test_a_portable_artifact_is_compared_as_its_replicas_would(run, source, described, isa, code):
    """`cpu: portable` is set by the replica too: what counts is whether the CPU could run it."""
    machine = {**MACHINE, "cpu_isa": PORTABLE_ISA, "cpu_capability": "any"}
    publish(source, built_for=Fingerprint(machine=machine, app={**APP, "cpu": "portable"}))
    here = {"machine": {**MACHINE, "cpu_isa": isa, "cpu_capability": "unset"}, "app": {}}
    ended = run("diff", source.root, "--against", described(here))
    assert ended.code == code


NO_TORCH = """
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "ray", "triton"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
main()
"""
NO_RAY = """
import importlib.util

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ray" else find_spec(name, *rest)
main()
"""


def test_diff_needs_neither_torch_nor_ray(run_process, source, described):
    """On a laptop without them a described machine is compared as anywhere else."""
    statement, _ = publish(source)
    publish(source, built_for=fingerprint(threads="8"))
    file = described(fingerprint().to_json())
    ended = run_process(NO_TORCH, "diff", source.root, "--against", file)
    assert (ended.code, ended.err) == (0, "")
    assert f"would load {statement}\n" in ended.out


@pytest.mark.parametrize("program", ["ray", "starlette"])
@pytest.mark.parametrize("command", ["build", "bench"])
def test_what_starts_replicas_says_that_ray_is_missing(run_process, source, command, program):
    """One sentence names the package to install, also for a Ray without Serve. No traceback."""
    absent = NO_RAY.replace('"ray"', repr(program))
    ended = run_process(absent, command, "app:app", "--store", source.root)
    assert ended.code == 1
    assert ended.err.splitlines() == [
        f"error: serve-warm {command} needs ray[serve], which is not installed",
        "hint: pip install 'ray[serve]'",
    ]


def test_a_machine_without_torch_fits_nothing_and_says_so(run_process, source):
    """Factors of torch are differences. Other factors are compared as usual."""
    machine = read_machine(os.environ)
    publish(source, built_for=Fingerprint(machine=machine, app=read_app(os.environ)))
    ended = run_process(NO_TORCH, "diff", source.root)
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    rows = lines[lines.index("factor artifact here") + 1 :]
    assert ended.code == 3
    of_torch = {"cuda", "driver", "gpu", "torch", "torch_install"}
    assert {row.partition(" ")[0] for row in rows} == of_torch
    assert f"torch {machine['torch']} not installed" in rows
    assert "gpu none unknown" in rows
    assert f"5 factors differ, {len(machine) - 5} equal" in ended.out
