# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Secrets in recorded requests: which keys name one, and that nothing below such a key stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

import serve_warm.learn.hidden_values
from serve_warm.learn.hidden_values import Hider, is_secret

SECRET_KEYS = (
    *("password", "passwords", "userPasswords", "PASSWORD", "password2", "db_pass", "pass"),
    *("credentials", "aws_credentials", "bearer", "session", "sessionid", "session_id"),
    *("sessionId", "otp", "totp_code", "pin", "pinCode", "cvv", "cvv2", "card", "cardNumber"),
    *("credit_card", "creditcard", "token", "access_token", "api_key", "apiKeys", "X-Api-Key"),
    *("secret", "client_secret", "cookie", "Authorization", "auth", "jwt", "ssn"),
    *("tokens", "token[]", "filter[token]", "access_tokens", "auth_code", "refreshToken2"),
    *("token_value", "session_data", "private_keys", "api_key_1", "pincode", "API_TOKEN_PROD"),
    *("session_token_v2", "signing_keys", "ssh_keys", "private_key_pem", "security_code"),
    *("verification_code", "mfa_code", "csrf", "pass-phrase", "cc_number", "id_token_hint"),
    *("seed_phrase", "accesstokens", "user_tokens", "id_token", "access_token_id", "IDToken"),
)
OTHER_KEYS = (
    *("max_tokens", "token_ids", "token_type_ids", "input_ids", "text", "prompt", "tokenizer"),
    *("input_tokens", "num_tokens", "max_new_tokens", "eos_token_id", "pad_token", "n_tokens"),
    *("tokens_per_second", "skip_special_tokens", "maxTokens", "token_count", "stop_tokens"),
    *("return_token_type_ids", "src_tokens", "decoder_tokens", "prev_output_tokens"),
    *("session_count", "image_token_id", "decoder_token_ids", "accession", "classify", "code"),
    *("passage", "passenger", "compass", "spinner", "cardinality", "discard", "wildcard"),
    *("author", "key", "keys", "sessions_per_day", "bypass_mode", "n", "", "\U0001f600"),
)


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_key_that_names_a_secret(key: str):
    assert is_secret(key)


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_a_key_that_names_no_secret(key: str):
    """A request without its numbers of tokens would reach other code."""
    assert not is_secret(key)


def hide(value: Any, *names: str) -> Any:
    return Hider().hide_arguments({"args": [value], "kwargs": {}}, names)["args"][0]


BELOW = {
    "text": "hunter2",
    "number": 4242,
    "list": ["hunter2", 4242],
    "tuple": {"$tuple": ["hunter2", {"$tuple": [4242]}]},
    "mapping": {"value": "hunter2", "hunter2": 1},
    "deep": [{"a": [{"b": {"$tuple": [{"c": "hunter2"}]}}]}],
    "bytes": {"$bytes": "aHVudGVyMg=="},
}


@pytest.mark.parametrize("name", BELOW)
def test_nothing_below_a_secret_key_stays(name: str):
    hidden = json.dumps(hide({"password": BELOW[name], "n": 3}))
    assert [each for each in ("hunter2", "4242", "aHVudGVy") if each in hidden] == []
    assert '"n": 3' in hidden


@pytest.mark.parametrize("name", BELOW)
def test_an_argument_of_a_parameter_that_names_a_secret_is_hidden(name: str):
    hidden = json.dumps(hide(BELOW[name], "password"))
    assert [each for each in ("hunter2", "4242", "aHVudGVy") if each in hidden] == []


def test_lengths_and_classes_stay():
    """They decide which compiled code runs."""
    given = {"otp": "hunter2", "pin": [1, 2.5, None, True], "session": {"ab": 1, "cd": 2}}
    shown = {"otp": "xxxxxxx", "pin": [0, 0.0, None, True], "session": {"xx": 0, "xxx": 0}}
    assert hide(given) == shown


def test_a_tensor_below_a_secret_key_is_named():
    hider = Hider()
    given = {"args": [], "kwargs": {"face": {"$tensor": "t0"}, "pin": [{"$array": "t1"}]}}
    assert hider.hide_arguments(given, ()) == given
    assert hider.tensors == {"t1"}


def test_a_credential_of_the_process_is_hidden_also_as_a_number(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "1234567890")
    assert hide(["id 1234567890", 1234567890, 12345]) == ["x" * 13, 0, 12345]


def test_the_environment_is_read_once_for_each_request(monkeypatch):
    """A request may have 10,000 numbers."""
    reads: list[int] = []

    def find() -> list[str]:
        reads.append(1)
        return []

    monkeypatch.setattr(serve_warm.learn.hidden_values, "find_credentials", find)
    hide([0.123456789, "text"] * 5000)
    assert len(reads) == 1


def test_a_value_of_a_query_that_stands_for_a_secret_is_hidden():
    target = "POST /reset/now?lang=de&pin=1234&sessionid=ab%20c&filter%5Btoken%5D=ab&tokens=c"
    shown = Hider().hide_target(target)
    assert shown == (
        "POST /reset/now?lang=de&pin=xxxx&sessionid=xxxx&filter%5Btoken%5D=xx&tokens=x"
    )
