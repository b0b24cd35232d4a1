# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What must not be read in logs, metrics, errors and reports: credentials, and texts of requests.

Credentials reach texts in few ways: an SDK puts a signed address or a header into its message, or
somebody writes one into an address that we repeat. Every error of ours passes its text through
`redact`, and an SDK's own exception is replaced by `tainted` before it stands in a chain of
causes, since whoever logs a traceback prints the whole chain.

Most credentials are known by their look or by the name before them. A server may echo one alone,
without either. So the values of this process' credential variables are hidden as well.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import urllib.parse

HIDDEN = "[hidden]"

# A text may come from whoever answers our requests, and be long. So each pattern takes all of what
# it began with, or gives up after a bounded number of characters: none is slower than linear.

# Whatever follows the question mark may be the credential itself, as in X-Amz-Signature, Azure's
# sig or Google's Signature. Some clients print a path without its host.
_ADDRESS = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,30}://)(?P<host>[^\s\"'<>/?#]*)(?P<path>[^\s\"'<>?]*)"
    r"(?P<query>\?[^\s\"'<>)]*)?",
    re.IGNORECASE,
)
_QUERY = re.compile(r"\?[A-Za-z0-9_.~%-]{1,100}=[^\s\"'<>)]*")

_USER = re.compile(r"(?<![\w.+/@:-])[\w.+-]{1,64}:[^\s\"'<>/@]{1,256}@(?!sha256:)(?=[A-Za-z0-9])")

# The end of a name, since anything may stand before it: X-Amz-Security-Token, MY_PASSWORD.
_NAMES = (
    r"(?:token|secret|passw(?:or)?d|pwd|passphrase|cookie|api[_-]?key"
    r"|(?:secret|access|account|shared|private|customer|encryption)[_-]?key(?:[_-]?id)?)"
)
# These are also words of ours, so they are names only before an equals sign or in quotes.
_WORDS = r"(?:signature|sig|credential|authorization)"
_QUOTED = r"b?\"[^\"]*\"?|b?'[^']*'?"
_PLAIN = r"\[hidden\]|[^\s,;&<>\"'}\])\\]+"

_SECRETS = (
    # A header: all of its line, or up to the quote that ends it.
    (
        re.compile(
            r"(authorization\\*[\"']?\s{0,9}:\s{0,9}\\*|authorization\\*[\"']\s{0,9}[:,]\s{0,9}\\*)"
            rf"(?:\[hidden\]|{_QUOTED}|[^\r\n\"']+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # A member of JSON or of a Python mapping, a pair in a list, an element of XML, an assignment.
    (
        re.compile(
            rf"({_NAMES}\\*[\"']\s{{0,9}}[:=,]\s{{0,9}}\\*|{_NAMES}\s{{0,9}}[:=]\s{{0,9}}\\*"
            rf"|{_NAMES}>|{_WORDS}\\*[\"']\s{{0,9}}[:=,]\s{{0,9}}\\*|{_WORDS}[=>]\\*)"
            rf"(?:{_QUOTED}|{_PLAIN})",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # The rest of a header whose name is elsewhere, or of another name.
    (
        re.compile(r"\b(bearer\s{1,9})(?=\S{0,80}[\d_=])[\w.~+/=-]{8,}", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b([Bb]asic\s{1,9})(?=\S{0,80}[A-Z0-9=])[\w+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(SharedKey(?:Lite)?\s{1,9})[\w.-]{1,64}:[\w+/=-]+"), rf"\1{HIDDEN}"),
    # Credentials that are known by their look: Hugging Face, GitHub, Google, AWS key ids, JSON web
    # tokens, PEM.
    (re.compile(r"\b(?:hf_(?!transfer\b)|api_org_|gh[opsu]_)[A-Za-z0-9]{6,}"), HIDDEN),
    (re.compile(r"\bgithub_pat_\w{6,}"), HIDDEN),
    (re.compile(r"\bya29\.[\w.-]{8,}"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}"), HIDDEN),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"), HIDDEN),
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
            r".*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        HIDDEN,
    ),
)


_VARIABLE = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|COOKIE|CONNECTION_STRING|SAS|API_?KEY"
    r"|_(?:PASS|PAT|PWD)|OPENAI_KEY"
    r"|(?:SECRET|ACCESS|ACCOUNT|SHARED|PRIVATE|CUSTOMER|ENCRYPTION|MASTER|STORAGE|SAS)_?KEY"
    r"(?:_ID|_BASE64)?)\Z",
    re.IGNORECASE,
)
"""The end of the name of a variable whose value is a credential, as in AWS_SESSION_TOKEN, HF_TOKEN
or AZURE_STORAGE_CONNECTION_STRING. One that ends in _FILE or _PATH holds a path."""

SHORTEST_VALUE = 8
"""Characters of a credential; a shorter value is a word that ordinary texts have, too."""


def redact(text: str) -> str:
    """Return `text` without what looks like a credential; the rest is left as it is.

    >>> redact("GET https://host/b/k?X-Amz-Signature=ab12 said 403")
    'GET https://host/b/k?[hidden] said 403'
    """
    for value in _values_of_credentials():
        text = text.replace(value, HIDDEN)
    text = _ADDRESS.sub(_without_user_and_query, text)
    text = _QUERY.sub(f"?{HIDDEN}", text)
    text = _USER.sub(f"{HIDDEN}@", text)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _values_of_credentials() -> list[str]:
    """Return the values of the credential variables, also as an address or a `repr` has them.

    The longest come first, since one may be a part of another. They are read each time: credentials
    are renewed, and user code sets them late.
    """
    found: set[str] = set()
    for name in list(os.environ):
        value = os.environ.get(name, "").strip() if _VARIABLE.search(name) else ""
        if len(value) >= SHORTEST_VALUE:
            found |= _spell(value)
    return sorted(found, key=lambda value: (-len(value), value))


@functools.lru_cache(maxsize=64)
def _spell(value: str) -> frozenset[str]:
    """Return a credential as addresses, JSON, XML and encodings of bytes write it."""
    import html

    quoted = {urllib.parse.quote(value, safe=safe) for safe in ("", "/")}
    data = value.encode()
    spelt = {
        *(value, repr(value)[1:-1], html.escape(value), html.escape(value, quote=False)),
        *(json.dumps(value)[1:-1], json.dumps(value)[1:-1].replace("/", r"\/")),
        *quoted,
        *(re.sub("%..", lambda escape: escape[0].lower(), each) for each in quoted),
        *(base64.b64encode(data).decode().rstrip("="), data.hex(), data.hex().upper()),
    }
    return frozenset(spelt)


def _without_user_and_query(address: re.Match[str]) -> str:
    _, at, host = address["host"].rpartition("@")
    user = f"{HIDDEN}@" if at else ""
    query = f"?{HIDDEN}" if address["query"] else ""
    return f"{address['scheme']}{user}{host}{address['path']}{query}"


class Tainted(Exception):
    """Stands for an exception of somebody else's, with its type and its redacted text."""


def tainted(error: BaseException) -> Tainted:
    """Return what may stand as the cause of an error in place of an SDK's own exception."""
    return Tainted(redact(f"{type(error).__module__}.{type(error).__qualname__}: {error}"))


def describe_error(error: BaseException) -> str:
    """Return `KeyError: 'no such weights'`: type and first line of what was raised, redacted.

    Of what another replica raised, and Ray carried here, those of its cause: Ray's own text begins
    with where it was.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and isinstance(error, type(cause)):
        error = cause
    # Redacted before it is cut, in lines too: half of a secret is not found.
    line = (redact(str(error)).strip().splitlines() or [""])[0]
    return redact(f"{type(error).__name__}: {line}")[:300]


def loggable(error: BaseException) -> Tainted:
    """Return what may be logged as `exc_info` in place of an exception: its frames, no credentials.

    Of what it was raised from each is replaced as well.
    """
    first = last = tainted(error).with_traceback(error.__traceback__)
    seen = {id(error)}
    while (cause := _find_cause(error)) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
        last.__cause__ = tainted(error).with_traceback(error.__traceback__)
        last = last.__cause__
    return first


def _find_cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# Texts of requests ---------------------------------------------------------------------------

SHOWN = 1000
"""Characters of a signature, a reason or an event wherever one is shown."""

NAME_CHARS = 40
"""A longer key is taken for a text, not for a name in code."""


def shorten(text: str, most: int = SHOWN) -> str:
    """Return `text` cut to `most` characters, with dots where something is missing."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def is_name(key: str) -> bool:
    """Return whether a key reads as a name in code, such as `input_ids`, or as a small index.

    >>> [is_name(key) for key in ("input_ids", "0", "a@b.c", "5551234567")]
    [True, True, False, False]
    """
    if len(key) > NAME_CHARS:
        return False
    return key.isidentifier() or (len(key) <= 4 and key.isdecimal())


# Python's `repr` puts no line break into a literal, and no letter right before one; an apostrophe
# has one. A literal that nothing ends goes on to the end of its line.
_TEXT = re.compile(
    r"""
    (?P<code>(?:\b(?:File|filename:|function\ name:|stance\ is)|<class)\ (?:'[^'\n]*'|"[^"\n]*"))
    | (?P<path>\b(?:tensor|type\ of)\ )
      '(?P<of>\w+(?:\.\w+(?:\(\))?|\[(?:\d+|'[^'\\\n]*')\])*)'(?=\ )
    | (?<!\w)(?P<kind>[bBrRuUfF]{0,2})
      (?:'(?P<one>[^'\\\n]*(?:\\.[^'\\\n]*)*)(?:'|\\?$)
        |"(?P<two>[^"\\\n]*(?:\\.[^"\\\n]*)*)(?:"|\\?$))
    """,
    re.VERBOSE | re.MULTILINE,
)
_ESCAPE = re.compile(r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[0-7]{1,3}|.)")


def hide_texts(source: str) -> str:
    """Return Python source, or a guard of torch, with type and length in place of each text.

    Texts that name code stay: a subscript or a key of a dict that `is_name`, and what torch puts
    in quotes (files, functions, classes, tensors).

    >>> hide_texts("self._modules['encoder'].user == 'a@b.c'")
    "self._modules['encoder'].user == str[5]"
    """
    return _TEXT.sub(_size, source)


def _size(found: re.Match[str]) -> str:
    if found["code"]:
        return found[0]
    if found["path"]:
        return f"{found['path']}'{hide_texts(found['of'])}'"
    text = found["one"] if found["two"] is None else found["two"]
    start, end = found.span()
    before, after = found.string[max(0, start - 2) : start], found.string[end : end + 1]
    is_subscript = (
        after == "]" and before[1:] == "[" and (before[0].isalnum() or before[0] in "_])")
    )
    is_key = after == ":" and before[-1:] in ("{", " ")
    if (is_subscript or is_key) and is_name(text):
        return found[0]
    kind = "bytes" if "b" in found["kind"].lower() else "str"
    return f"{kind}[{len(_ESCAPE.sub('.', text))}]"
