# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: where they come from, which one wins, and what a wrong one is told."""

from __future__ import annotations

import os
import stat
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from serve_warm.config import (
    FORMER,
    REMOVED,
    Seats,
    WarmupConfig,
    environment,
    point_torch_caches_at,
    resolve,
)
from serve_warm.errors import ConfigError


def problem(**sources: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(WarmupConfig(), **{"environ": {}, **sources})
    return caught.value


def resolved(base: WarmupConfig | None = None, **sources: Any) -> WarmupConfig:
    return resolve(base or WarmupConfig(), **{"environ": {}, **sources})


def section(**settings: Any) -> dict[str, Any]:
    return {"warmup": settings}


def test_later_sources_win():
    """The class, then the environment, then user_config; each field by itself."""
    base = WarmupConfig(artifact="class", deadline_s=1, max_level=2)
    environ = {"SERVE_WARM_ARTIFACT": "environment", "SERVE_WARM_DEADLINE_S": "2.5"}
    config = resolve(base, user_config=section(artifact="user_config"), environ=environ)
    assert (config.artifact, config.deadline_s, config.max_level) == ("user_config", 2.5, 2)


@pytest.mark.parametrize("user_config", [None, 7, ["warmup"], "warmup"], ids=repr)
def test_a_user_config_of_any_kind_is_somebody_elses(user_config: Any):
    """Serve passes the user's value on, and this value need not be a mapping."""
    assert resolved(user_config=user_config) == WarmupConfig()


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch):
    """A variable set for the replica is read without being passed on."""
    monkeypatch.setenv("SERVE_WARM_MAX_LEVEL", "1")
    assert resolve(WarmupConfig()).max_level == 1
    assert environment()["SERVE_WARM_MAX_LEVEL"] == "1"


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        *(("false", "enabled", False), ("0", "enabled", False), ("true", "enabled", True)),
        *(("2", "max_level", 2), ("90", "deadline_s", 90.0), ("fail", "on_missing", "fail")),
        ("/run/warm", "state_dir", "/run/warm"),
        ('{"count": 2}', "seats", Seats(count=2)),
    ],
)
def test_variables_are_text_that_becomes_the_field(text: str, field: str, value: Any):
    """Each field has a variable of its name, read as the type that it has."""
    config = resolved(environ={f"SERVE_WARM_{field.upper()}": text})
    assert getattr(config, field) == value


def test_each_source_says_what_it_has_of_seats():
    """Imports belong into the code, and how many seats there are into the YAML."""
    base = WarmupConfig(seats=Seats(imports=("transformers",), keep_alive_s=60))
    environ = {"SERVE_WARM_SEATS": '{"keep_alive_s": 120}'}
    config = resolve(base, user_config=section(seats={"count": 1}), environ=environ)
    assert config.seats == Seats(count=1, imports=("transformers",), keep_alive_s=120)


@pytest.mark.parametrize(
    ("seats", "says"),
    [
        ({"count": -1}, "seats.count: Input should be greater"),
        ({"imports": ["os; import sys"]}, "seats.imports: 'os; import sys' is not the dotted name"),
        ({"import": ["torch"]}, "seats.import is not a setting; did you mean 'imports'?"),
        (3, "seats: Input should be a valid dictionary"),
    ],
    ids=str,
)
def test_a_mistake_in_seats_is_named(seats: Any, says: str):
    assert says in problem(user_config=section(seats=seats)).message


@pytest.mark.parametrize("text", ["off", "'off'"])
def test_on_and_off_are_words_in_yaml_too(text: str):
    """YAML reads a bare on or off as a boolean, and documents write it bare."""
    user_config = yaml.safe_load(f"warmup: {{eager_sample: {text}}}")
    assert resolved(user_config=user_config).eager_sample == "off"


def test_the_value_under_an_unknown_name_is_not_repeated():
    """The value may be a credential, and pydantic's own error repeats it."""
    error = problem(user_config=section(aws_secret_access_key="wJalrXUtnFEMI"))
    assert "wJalrXUtnFEMI" not in "".join(traceback.format_exception(error))
    assert error.__context__ is None


def test_an_unknown_field_is_compared_with_the_known_ones():
    """A mistyped setting is an error, not a default. The nearest one is asked for."""
    error = problem(user_config=section(artefact="./artifacts", on_mising="fail"))
    assert "fields: enabled, artifact, application, max_level" in error.hint
    assert "user_config.warmup.artefact is not a setting; did you mean 'artifact'?" in str(error)
    assert "did you mean 'on_missing'?" in error.message


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        *(("on_uncovered", "on_unproven"), ("parity", "eager_sample"), ("parts", "max_level")),
        *(("on_mising", "on_missing"), ("artefact", "artifact"), ("deadline", "deadline_s")),
        *((removed, "") for removed in sorted(REMOVED)),
    ],
)
def test_a_wrong_name_is_answered_with_what_to_do(wrong: str, name: str):
    """A wrong name must not turn a policy into its default, in the environment either."""
    variable = f"SERVE_WARM_{wrong.upper()}"
    for there, found, error in (
        (f"user_config.warmup.{wrong}", name, problem(user_config=section(**{wrong: "x"}))),
        (variable, f"SERVE_WARM_{name.upper()}", problem(environ={variable: "x"})),
    ):
        said = f"is not a setting; did you mean '{found}'?"
        said = said if name else "is no longer a setting; delete it"
        assert error.message == f"invalid warm-up settings: {there} {said}"


@pytest.mark.parametrize(
    ("settings", "wrong", "said"),
    [
        *(
            (WarmupConfig, old, f"not a setting; did you mean '{new}'?")
            for old, new in FORMER.items()
        ),
        *((WarmupConfig, removed, "no longer a setting; delete it") for removed in REMOVED),
        (WarmupConfig, "artefact", "not a setting; did you mean 'artifact'?"),
        (Seats, "keep_alive", "not a setting; did you mean 'keep_alive_s'?"),
    ],
)
def test_a_wrong_name_in_code_is_answered_with_what_to_do(settings, wrong: str, said: str):
    """Code gets the same advice as `user_config`, beside the problems of other settings."""
    with pytest.raises(ValidationError) as refused:
        settings(**{wrong: "hush"})

    assert f"{wrong} is {said}" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_each_problem_in_code_is_said_once():
    """A wrong name hides no other problem, and no text is lost."""
    with pytest.raises(ValidationError) as refused:
        WarmupConfig(parity="1/2", deadline_s=-1, eager_sample="x", seats={"keep_alive": 1})

    text = str(refused.value)
    assert refused.value.error_count() == 4
    for said in (
        "parity is not a setting; did you mean 'eager_sample'?",
        "Input should be greater than 0",
        "write 'off', or a share such as '1/1000'",
        "keep_alive is not a setting; did you mean 'keep_alive_s'?",
    ):
        assert text.count(said) == 1


def test_variables_of_others_are_ignored():
    """Kubernetes sets such variables for Services named serve-warm and serve-warm-artifact."""
    ends = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT PORT_8000_TCP PORT_8000_TCP_ADDR"
    names = [f"{of}{end}" for of in ("", "ARTIFACT_") for end in ends.split()]
    names += ["TEST_RUN", "SOUNDNESS", "CRD_SCHEMAS", "GPU"]
    assert resolved(environ={f"SERVE_WARM_{name}": "x" for name in names}) == WarmupConfig()


@pytest.mark.parametrize(
    ("artifact", "message"),
    [
        ("s4://bucket/hush", "unknown store scheme s4://; did you mean s3:// instead?"),
        ("https://host/hush", "https:// addresses are not accepted"),
        ("s3//bucket/hush", "the colon is missing; write s3://"),
        ("S3//bucket/hush", "the colon is missing; write s3://"),
        ("s3:/bucket/hush", "with the scheme s3 must begin with s3://"),
        ("file://srv/hush", "with the scheme file must begin with file:///"),
    ],
)
def test_an_address_of_no_store_is_refused_with_the_settings(artifact: str, message: str):
    """Without the refusal, one wrong letter would make a replica compile at each start."""
    error = problem(user_config=section(artifact=artifact))
    assert "user_config.warmup.artifact: " in error.message
    assert message in error.message
    assert "hush" not in error.message


def test_an_address_in_code_is_not_repeated_either():
    """Pydantic's own error would show what somebody wrote into it."""
    with pytest.raises(ValidationError, match="unknown store scheme s4") as refused:
        WarmupConfig(artifact="s4://user:hush@bucket")
    shown = "".join(traceback.format_exception(refused.value))
    assert "hush" not in shown.replace('artifact="s4://user:hush@bucket"', "")


@pytest.mark.parametrize("artifact", ["./artifacts", "artifacts", "./s3//x", "/srv/a:b", "s3/b"])
def test_a_folder_of_any_name_is_an_address(artifact: str):
    """Only a text that looks like a misspelt URL is refused. `./` marks it as a folder."""
    assert resolved(user_config=section(artifact=artifact)).artifact == artifact


def test_all_problems_are_named_at_once_with_their_source():
    """Three mistakes in a file give three problems, each with its place."""
    settings = section(on_missing="wait", max_level=4)
    error = problem(user_config=settings, environ={"SERVE_WARM_DEADLINE_S": "soon"})
    assert "user_config.warmup.on_missing: " in error.message
    assert "(found 'wait')" in error.message
    assert "user_config.warmup.max_level: " in error.message
    assert "SERVE_WARM_DEADLINE_S: " in error.message
    assert "(found 'soon')" in error.message


@pytest.mark.parametrize(
    "settings",
    [
        *({"deadline_s": 0}, {"deadline_s": -1}, {"pull_deadline_s": 0}),
        *({"input_deadline_s": "10m"}, {"pull_deadline_s": "10m"}, {"deadline_s": "10m"}),
        *({"max_level": 0}, {"max_level": 4}, {"trust": "signers are not Serve's to change"}),
        *({"after_ready": "later"}, {"enabled": "perhaps"}, {"on_deadline": None}, {7: "seven"}),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(settings: dict[Any, Any]):
    """A value that cannot be meant is an error that names its field."""
    (name,) = settings
    assert f"user_config.warmup.{name}" in problem(user_config={"warmup": settings}).message


def test_a_section_that_is_no_mapping_is_shown_as_one():
    """`warmup: true` is not a setting; the hint shows one."""
    error = problem(user_config={"warmup": True})
    assert "user_config.warmup must be a mapping, but it is a bool" in error.message
    assert "{warmup: {artifact: ./artifacts}}" in error.hint


def test_torch_is_pointed_into_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compiler and Triton write below the directory, whatever torch had set before."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/var/tmp/shared")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/var/tmp/shared")
    point_torch_caches_at(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert stat.S_ISDIR(tmp_path.stat().st_mode)
    assert list(tmp_path.iterdir()) == []


def test_settings_of_a_class_that_are_a_dict_are_refused():
    """The sentence says what to write."""
    with pytest.raises(ConfigError, match="warmup_config is a dict, not a WarmupConfig"):
        resolve({"artifact": "./artifacts"}, user_config=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["keep_alive_s", "import_deadline_s"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e10])
def test_times_of_seats_that_no_timer_takes_are_refused(field: str, value: float):
    """Before, such a time ended the worker that took the ticket, or the thread that keeps seats."""
    with pytest.raises(ValueError, match=field):
        Seats(**{field: value})


@pytest.mark.parametrize("days", [0, -1, 3651, float("inf"), float("nan")])
def test_records_are_kept_for_a_number_of_days(days: float):
    problem(user_config=section(record_days=days))
    assert resolved(user_config=section(record_days=3650)).record_days == 3650
