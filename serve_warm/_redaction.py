# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Redaction, which keeps credentials and request texts out of logs, metrics and errors.

A text can contain a credential for two reasons: an SDK puts a signed address or a header into its
message, or a user writes a credential into an address that serve_warm repeats. So every serve_warm
error passes its text through `redact`. A logged traceback prints the whole chain of causes. So
`tainted` replaces an SDK's exception before the exception becomes the cause of an error.

Most credentials can be recognized by their form or by the name before them. But a server can return
a credential in any form and without a name. So some environment variables of this process count as
credentials (`_VARIABLE`), and their values are hidden as well.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import urllib.parse

HIDDEN = "[hidden]"

# A text may come from any server, and may be long. So each pattern either matches a whole run of
# characters or stops after a limited number, so that no pattern needs more than linear time.

# The query may be the credential, as in X-Amz-Signature, Azure's sig or Google's Signature. Some
# clients print a path without its host.
_ADDRESS = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,30}://)(?P<host>[^\s\"'<>/?#]*)(?P<path>[^\s\"'<>?]*)"
    r"(?P<query>\?[^\s\"'<>)]*)?",
    re.IGNORECASE,
)
_QUERY = re.compile(r"\?[A-Za-z0-9_.~%-]{1,100}=[^\s\"'<>)]*")

_USER = re.compile(r"(?<![\w.+/@:-])[\w.+-]{1,64}:[^\s\"'<>/@]{1,256}@(?!sha256:)(?=[A-Za-z0-9])")

# Only the end of a name, because any text may come before it: X-Amz-Security-Token, MY_PASSWORD.
_NAMES = (
    r"(?:token|secret|passw(?:or)?d|pwd|passphrase|cookie|api[_-]?key"
    r"|(?:secret|access|account|shared|private|customer|encryption)[_-]?key(?:[_-]?id)?)"
)
# serve_warm's texts use these words too, so they count only before an equals sign or in quotes.
_WORDS = r"(?:signature|sig|credential|authorization)"
_QUOTED = r"b?\"[^\"]*\"?|b?'[^']*'?"
NO_FLAG = re.RegexFlag(0)
_PLAIN = r"\[hidden\]|[^\s,;&<>\"'}\])\\]+"

_SECRETS: tuple[tuple[str, re.RegexFlag, str], ...] = (
    # A header: its whole line, or the text up to the closing quote.
    (
        (
            r"(authorization\\*[\"']?\s{0,9}:\s{0,9}\\*|authorization\\*[\"']\s{0,9}[:,]\s{0,9}\\*)"
            rf"(?:\[hidden\]|{_QUOTED}|[^\r\n\"']+)"
        ),
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    # A member of JSON or of a Python mapping, a pair in a list, an element of XML, an assignment.
    (
        (
            rf"({_NAMES}\\*[\"']\s{{0,9}}[:=,]\s{{0,9}}\\*|{_NAMES}\s{{0,9}}[:=]\s{{0,9}}\\*"
            rf"|{_NAMES}>|{_WORDS}\\*[\"']\s{{0,9}}[:=,]\s{{0,9}}\\*|{_WORDS}[=>]\\*)"
            rf"(?:{_QUOTED}|{_PLAIN})"
        ),
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    # The value of a header whose name is missing or unknown.
    (r"\b(bearer\s{1,9})(?=\S{0,80}[\d_=])[\w.~+/=-]{8,}", re.IGNORECASE, rf"\1{HIDDEN}"),
    (r"\b([Bb]asic\s{1,9})(?=\S{0,80}[A-Z0-9=])[\w+/=-]{8,}", NO_FLAG, rf"\1{HIDDEN}"),
    (r"\b(SharedKey(?:Lite)?\s{1,9})[\w.-]{1,64}:[\w+/=-]+", NO_FLAG, rf"\1{HIDDEN}"),
    # Credentials with a known form: Hugging Face, GitHub, Google, AWS key ids, JSON web tokens,
    # PEM.
    (r"\b(?:hf_(?!transfer\b)|api_org_|gh[opsu]_)[A-Za-z0-9]{6,}", NO_FLAG, HIDDEN),
    (r"\bgithub_pat_\w{6,}", NO_FLAG, HIDDEN),
    (r"\bya29\.[\w.-]{8,}", NO_FLAG, HIDDEN),
    (r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}", NO_FLAG, HIDDEN),
    (r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?", NO_FLAG, HIDDEN),
    (
        (
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
            r".*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
        ),
        re.DOTALL,
        HIDDEN,
    ),
)
"""Pattern, flags and replacement. `re` compiles a pattern at its first use and caches it. Compiling
all patterns would cost each start 2 ms, but most starts redact no text."""


_VARIABLE = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|COOKIE|CONNECTION_STRING|SAS|API_?KEY"
    r"|_(?:PASS|PAT|PWD)|OPENAI_KEY"
    r"|(?:SECRET|ACCESS|ACCOUNT|SHARED|PRIVATE|CUSTOMER|ENCRYPTION|MASTER|STORAGE|SAS)_?KEY"
    r"(?:_ID|_BASE64)?)\Z",
    re.IGNORECASE,
)
"""A variable holds a credential if its name ends in one of these words. Examples are HF_TOKEN,
AWS_SESSION_TOKEN and AZURE_STORAGE_CONNECTION_STRING. A variable whose name ends in _FILE or _PATH
holds a path instead."""

SHORTEST_VALUE = 8
"""A value shorter than this does not count as a credential, because it may be an ordinary word."""


def redact(text: str) -> str:
    """Return `text` with everything that looks like a credential hidden.

    >>> redact("GET https://host/b/k?X-Amz-Signature=ab12 said 403")
    'GET https://host/b/k?[hidden] said 403'
    """
    for value in _values_of_credentials():
        text = text.replace(value, HIDDEN)
    text = _ADDRESS.sub(_without_user_and_query, text)
    text = _QUERY.sub(f"?{HIDDEN}", text)
    text = _USER.sub(f"{HIDDEN}@", text)
    for pattern, flags, replacement in _SECRETS:
        text = re.sub(pattern, replacement, text, flags=flags)
    return text


def _values_of_credentials() -> list[str]:
    """Return the values of credential variables, each in all spellings that `_spell` returns.

    The longest values come first, because a value can be part of another value. Each call reads the
    environment again, because user code can set or renew a credential at any time.
    """
    found: set[str] = set()
    for name in list(os.environ):
        value = os.environ.get(name, "").strip() if _VARIABLE.search(name) else ""
        if len(value) >= SHORTEST_VALUE:
            found |= _spell(value)
    return sorted(found, key=lambda value: (-len(value), value))


@functools.lru_cache(maxsize=64)
def _spell(value: str) -> frozenset[str]:
    """Return all spellings of a credential: in addresses, `repr`, JSON, XML, base64 and hex."""
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
    """Replaces another library's exception, and shows that exception's type and redacted text."""


def tainted(error: BaseException) -> Tainted:
    """Return an exception that can replace an SDK's exception as the cause of an error."""
    return Tainted(redact(f"{type(error).__module__}.{type(error).__qualname__}: {error}"))


def describe_error(error: BaseException) -> str:
    """Return the type and first line of an exception, redacted: `KeyError: 'no such weights'`.

    If the exception is Ray's wrapper for an exception in another replica, this function describes
    the cause instead, because Ray's own text begins with a traceback.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and isinstance(error, type(cause)):
        error = cause
    return excerpt(f"{type(error).__name__}: {first_line(str(error))}", 300)


def join_lines(text: str) -> str:
    r"""Return several lines joined into one sentence.

    >>> join_lines("no artifact fits:\n  threads: artifact 1, here 2\nhint: build one")
    'no artifact fits: threads: artifact 1, here 2; hint: build one'
    """
    joined = "; ".join(" ".join(line.split()) for line in text.splitlines())
    return joined.replace(":; ", ": ")


def loggable(error: BaseException) -> Tainted:
    """Return an exception to log as `exc_info` instead of `error`: same frames, no credentials.

    Each exception in the chain of causes is replaced as well.
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
"""Maximum length in characters of a signature, a reason or an event in any output."""

NAME_CHARS = 40
"""A key longer than this counts as user text, not as a name in code."""


def shorten(text: str, most: int = SHOWN) -> str:
    """Return `text` cut to `most` characters, with dots at the end if `text` was longer.

    Use this function only for texts that serve_warm wrote. Use `excerpt` for texts from errors,
    servers and machines.
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def excerpt(text: str, most: int = SHOWN) -> str:
    """Return `text` redacted and then cut to `most` characters.

    The text is redacted before it is cut, because redaction cannot recognize part of a secret. Use
    this function for every text that serve_warm did not write.
    """
    return shorten(redact(text), most)


def first_line(text: str, most: int = SHOWN) -> str:
    """Return the first non-blank line of `text`, redacted and cut as in `excerpt`; "" if none."""
    return shorten((redact(text).strip().splitlines() or [""])[0], most)


def is_name(key: str) -> bool:
    """Return whether a key looks like a name in code, such as `input_ids`, or like a small index.

    >>> [is_name(key) for key in ("input_ids", "0", "a@b.c", "5551234567")]
    [True, True, False, False]
    """
    if len(key) > NAME_CHARS:
        return False
    return key.isidentifier() or (len(key) <= 4 and key.isdecimal())


# In Python's `repr`, a literal has no line break and no letter directly before it, so an apostrophe
# in a word is not a literal. A literal without a closing quote ends with its line.
_TEXT = r"""
    (?P<code>(?:\b(?:File|filename:|function\ name:|stance\ is)|<class)\ (?:'[^'\n]*'|"[^"\n]*"))
    | (?P<path>\b(?:tensor|type\ of)\ )
      '(?P<of>\w+(?:\.\w+(?:\(\))?|\[(?:\d+|'[^'\\\n]*')\])*)'(?=\ )
    | (?<!\w)(?P<kind>[bBrRuUfF]{0,2})
      (?:'(?P<one>[^'\\\n]*(?:\\.[^'\\\n]*)*)(?:'|\\?$)
        |"(?P<two>[^"\\\n]*(?:\\.[^"\\\n]*)*)(?:"|\\?$))
    """
_ESCAPE = re.compile(r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[0-7]{1,3}|.)")


def hide_texts(source: str) -> str:
    """Return Python source, or a torch guard, with each string replaced by its type and length.

    Strings that are names in code are kept: subscripts and dict keys that pass `is_name`, and the
    names that torch puts in quotes (files, functions, classes, tensors).

    >>> hide_texts("self._modules['encoder'].user == 'a@b.c'")
    "self._modules['encoder'].user == str[5]"
    """
    return re.sub(_TEXT, _size, source, flags=re.VERBOSE | re.MULTILINE)


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
