# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What must not be read in logs, metrics, errors and reports: one filter for all of them.

Credentials reach texts in few ways: an SDK puts a signed address or a header into its message, or
somebody writes one into an address that we repeat. Every error of ours passes its text through
`redact`, and an SDK's own exception is replaced by `tainted` before it stands in a chain of
causes, since whoever logs a traceback prints the whole chain.
"""

from __future__ import annotations

import re

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


def redact(text: str) -> str:
    """Return `text` without what looks like a credential; the rest is left as it is.

    >>> redact("GET https://host/b/k?X-Amz-Signature=ab12 said 403")
    'GET https://host/b/k?[hidden] said 403'
    """
    text = _ADDRESS.sub(_without_user_and_query, text)
    text = _QUERY.sub(f"?{HIDDEN}", text)
    text = _USER.sub(f"{HIDDEN}@", text)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


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
