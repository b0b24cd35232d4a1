# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Secrets in recorded requests, replaced by values of the same length.

Lengths decide which compiled code runs, so a text becomes as many `x`, and a number becomes 0. A
secret has the form of a credential, or stands below a key that names a secret. `serve_warm.
_redaction` knows fewer names, because in a log a card, a session or a pass is usually no secret.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve_warm._redaction import SHORTEST_VALUE, find_credentials, redact
from serve_warm.learn.recorded_requests import MARKS

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_PARTS = ("password", "passwd", "passphrase", "passcode", "credential", "sessionid", "creditcard")
"""Texts that make a key secret wherever they are in it."""

_WORDS = frozenset(
    {
        *("secret", "secrets", "pwd", "pwds", "creds", "bearer", "cookie", "cookies", "jwt"),
        *("otp", "totp", "pin", "cvv", "cvc", "card", "cards", "cardnumber", "ssn", "iban"),
        *("authorization", "authentication", "apikey", "apikeys"),
    }
)
"""Words that make a key secret."""

_LAST = frozenset({"pass", "session", "sessions", "sid", "auth"})
"""Words that make a key secret at its end."""

_PAIRS = frozenset({"session id", "session ids", "session key", "api keys", "access keys"})
"""Two words that make a key secret at its end."""


def is_secret(key: str) -> bool:
    """Return whether a key names a secret.

    >>> [is_secret(key) for key in ("userPasswords", "api_key", "otp", "max_tokens", "cardinality")]
    [True, True, True, False, False]
    """
    words = [each.lower() for each in _WORD.findall(key)]
    return (
        any(part in key.lower() for part in _PARTS)
        or not _WORDS.isdisjoint(words)
        or bool(words and (words[-1] in _LAST or " ".join(words[-2:]) in _PAIRS))
        or redact(f"{key}=x", credentials=()) != f"{key}=x"
    )


class Hider:
    """Hides the secrets of one request. Reads the credentials of the process once."""

    def __init__(self) -> None:
        self._credentials = find_credentials()
        self.tensors: set[str] = set()
        """Names of the tensors and arrays below keys that name a secret."""

    def hide_arguments(self, arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of a request without secrets.

        `names` are the parameters that the positional arguments are for. Bytes stay, unless they
        are below a key that names a secret: only `scrub` can search them.
        """
        made = dict(arguments)
        if "args" in made:
            given = zip(made["args"], [*names, *[""] * len(made["args"])], strict=False)
            made["args"] = [self._hide(each, key) for each, key in given]
        for key in ("kwargs", "json"):
            if key in made:
                made[key] = self._hide(made[key], "")
        return made

    def hide_target(self, target: str, secret_parts: Iterable[str]) -> str:
        """Return a target without secrets in its path and query.

        `secret_parts` are parts of the path that stand for parameters that name a secret.
        """
        verb, space, path = target.rpartition(" ")
        path, mark, query = path.partition("?")
        secret = set(secret_parts)
        parts = [
            self._hide_quoted(part, below=urllib.parse.unquote(part) in secret)
            for part in path.split("/")
        ]
        pairs = [each.partition("=") for each in query.split("&")]
        shown = [
            key + is_ + self._hide_quoted(value, below=is_secret(urllib.parse.unquote_plus(key)))
            if is_
            else self._hide_quoted(key, below=False)
            for key, is_, value in pairs
        ]
        return verb + space + "/".join(parts) + mark + "&".join(shown)

    def _hide_quoted(self, text: str, *, below: bool) -> str:
        unquoted = urllib.parse.unquote_plus(text)
        hidden = self._hide_text(unquoted, below=below)
        return text if hidden == unquoted else hidden

    def _hide(self, value: Any, key: str, *, below: bool = False) -> Any:
        below = below or bool(key and is_secret(key))
        if isinstance(value, list):
            return [self._hide(each, "", below=below) for each in value]
        if isinstance(value, dict):
            mark = next(iter(value), "")
            if len(value) == 1 and mark in MARKS:
                return {mark: self._hide_marked(mark, value[mark], below=below)}
            return self._hide_mapping(value, below=below)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._hide_text(value, below=below)
        return type(value)(0) if below or self._is_credential(value) else value

    def _hide_marked(self, mark: str, inner: Any, *, below: bool) -> Any:
        if mark == "$tuple":
            return self._hide(inner, "", below=below)
        if below and mark == "$bytes":
            return base64.b64encode(b"x" * len(base64.b64decode(inner))).decode()
        if below:
            self.tensors.add(inner)
        return inner

    def _hide_mapping(self, value: Mapping[str, Any], *, below: bool) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, each in value.items():
            shown = self._hide_text(key, below=below)
            while shown in made:  # two secrets of the same length
                shown += "x"
            made[shown] = self._hide(each, key, below=below)
        return made

    def _hide_text(self, text: str, *, below: bool) -> str:
        is_hidden = below or redact(text, credentials=self._credentials) != text
        return "x" * len(text) if is_hidden else text

    def _is_credential(self, number: float) -> bool:
        text = str(number)
        return len(text) >= SHORTEST_VALUE and any(each in text for each in self._credentials)
