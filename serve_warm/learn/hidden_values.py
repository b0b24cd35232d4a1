# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Secrets in recorded requests, replaced by values of the same length.

Lengths decide which compiled code runs, so a text becomes as many `x`, and a number becomes 0. A
secret has the form of a credential, or stands below a key that names a secret. `serve_warm.
_redaction` knows fewer names, because in a log a card, a session or a pass is usually no secret.
"""

from __future__ import annotations

import base64
import itertools
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from serve_warm._redaction import SHORTEST_VALUE, find_credentials, redact
from serve_warm.learn.recorded_requests import MARKS

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_PARTS = ("password", "passwd", "passphrase", "passcode", "credential", "sessionid", "creditcard")
"""Texts that make a key secret wherever they are in it."""

_WORDS = frozenset(
    {
        *("secret", "pwd", "creds", "bearer", "cookie", "jwt", "auth", "csrf", "xsrf", "mnemonic"),
        *("otp", "totp", "mfa", "pin", "pincode", "cvv", "cvc", "card", "cardnumber", "ssn"),
        *("iban", "authorization", "authentication", "apikey"),
    }
)
"""Words that make a key secret. Here and below, a word is in the singular."""

_LAST = frozenset({"pass", "sid"})
"""Words that make a key secret at its end."""

_BEFORE = {
    "key": frozenset(
        {
            *("api", "access", "secret", "private", "signing", "encryption", "ssh", "session"),
            *("account", "shared", "master", "deploy", "storage", "license", "webhook", "hmac"),
        }
    ),
    "code": frozenset(
        {"security", "verification", "access", "recovery", "backup", "reset", "login", "sms"}
    ),
    "phrase": frozenset({"pass", "seed", "recovery", "secret"}),
    "word": frozenset({"pass"}),
    "number": frozenset({"cc"}),
}
"""Words that make a key secret before another one."""

_COUNTED = frozenset({"max", "min", "num", "number", "count", "n", "per", "length", "limit"})
"""Words beside which a token or a session is only counted."""

_OF_TEXT = frozenset(
    {
        *("eos", "bos", "pad", "sep", "cls", "mask", "masked", "unk", "stop", "special"),
        *("image", "audio", "video", "vision"),
    }
)
"""Words before a token that is a part of a text."""

_OF_TEXTS = frozenset(
    {
        *("new", "input", "output", "prompt", "completion", "total", "text", "generated", "start"),
        *("end", "cached", "reasoning", "thinking", "draft", "bad", "suppress", "forced"),
        *("source", "src", "target", "tgt", "context", "query", "encoder", "decoder", "next"),
        *("speculative", "visual", "history"),
    }
)
"""Words before tokens, in the plural, that are parts of texts."""

_AFTER = frozenset(
    {
        *("id", "type", "embedding", "index", "indices", "position", "budget", "logprob", "prob"),
        *("mask", "to", "classification", "pos"),
    }
)
"""Words after a token that is a part of a text."""


def is_secret(key: str) -> bool:
    """Return whether a key names a secret.

    >>> [is_secret(key) for key in ("userPasswords", "api_key", "otp", "max_tokens", "cardinality")]
    [True, True, True, False, False]
    """
    words = [each for found in _WORD.findall(key) for each in _split(found.lower())]
    single = [_singular(each) for each in words]
    is_counted = not _COUNTED.isdisjoint(single)
    if any(part in key.lower() for part in _PARTS) or not _WORDS.isdisjoint(single):
        return True
    if single and single[-1] in _LAST:
        return True
    if any(one in _BEFORE.get(two, ()) for one, two in itertools.pairwise(single)):
        return True
    if "session" in single and not is_counted:
        return True
    if "token" in single:
        return not is_counted and not _is_of_text(words, single)
    return redact(f"{key}=x", credentials=()) != f"{key}=x"


def _is_of_text(words: Sequence[str], single: Sequence[str]) -> bool:
    """Return whether a token is a part of a text, for a language model."""
    at = single.index("token")
    before, after = set(single[:at]), single[at + 1 : at + 2]
    return (
        not _OF_TEXT.isdisjoint(before)
        or (words[at] == "tokens" and not _OF_TEXTS.isdisjoint(before))
        or (not _AFTER.isdisjoint(after) and _ACCESS.isdisjoint(before))
    )


_ACCESS = frozenset({"access", "refresh", "api", "id", "user", "client"})
"""Words before a token that gives access."""


def _split(word: str) -> list[str]:
    """Return the words of one that is written as one, such as `accesstoken`."""
    for end in ("token", "tokens"):
        if word.endswith(end) and word != end:
            return [word.removesuffix(end), end]
    return [word]


def _singular(word: str) -> str:
    is_plural = (len(word) > 3 or word in ("ids", "ns")) and word.endswith("s")
    return word[:-1] if is_plural and not word.endswith(("ss", "creds")) else word


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

    def hide_target(self, target: str) -> str:
        """Return a target without secrets in its path and query."""
        verb, space, path = target.rpartition(" ")
        path, mark, query = path.partition("?")
        parts = [self._hide_quoted(part, below=False) for part in path.split("/")]
        pairs = [each.partition("=") for each in query.split("&")]
        shown = [
            key + is_ + self._hide_quoted(value, below=is_secret(urllib.parse.unquote_plus(key)))
            if is_
            else self._hide_quoted(key, below=False)
            for key, is_, value in pairs
        ]
        return verb + space + "/".join(parts) + mark + "&".join(shown)

    def is_hidden(self, text: str) -> bool:
        """Return whether a text has the form of a secret."""
        return self._hide_text(text, below=False) != text

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
