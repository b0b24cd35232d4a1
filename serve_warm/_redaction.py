# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Redaction, which keeps credentials and request texts out of logs, metrics and errors.

A text can contain a credential for two reasons: an SDK puts a signed address or a header into its
message, or a user writes a credential into an address that serve_warm repeats. So every serve_warm
error passes its text through `redact`. A logged traceback prints the whole chain of causes. So
`tainted` replaces an SDK's exception before the exception becomes the cause of an error.

Most credentials can be recognized by their form or by the name before them. But a server can return
a credential in any form and without a name. So some environment variables of this process count as
credentials (`_is_credential`), and their values are hidden as well.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import urllib.parse
from collections.abc import Sequence

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
_KEYS = (
    r"(?:secret|access|account|shared|private|customer|encryption|signing|ssh|deploy|master|storage"
    r"|sas|session|hmac|webhook|auth|license|subscription)"
)
_NAMES = (
    r"(?:token|secret(?:_key_base)?|passw(?:or)?d|pwd|passphrase|passcode|cookie|jwt|[_-]auth"
    r"|(?:db|user|mysql|pg|smtp|admin|root)_pass|[_-]creds|[_-]sas|api[_ -]?key"
    r"|(?:secret|access|private|encryption) key"
    rf"|{_KEYS}[_-]?key(?:[_-]?id)?|(?-i:[A-Z0-9]_(?:KEY|PASS|PAT)))"
)
# serve_warm's texts use these words too, so they count only before an equals sign or in quotes.
_WORDS = r"(?:signature|sig|credential|authorization|auth)"
# A backslash escapes a quote, unless the quote before the value was escaped as well.
_QUOTED = (
    r"b?(?<!\\)\"[^\"\\]*(?:\\[\s\S][^\"\\]*)*\"?|b?(?<!\\)'[^'\\]*(?:\\[\s\S][^'\\]*)*'?"
    r"|b?\"[^\"]*\"?|b?'[^']*'?"
)
NO_FLAG = re.RegexFlag(0)
_PLAIN = r"\[hidden\]|[^\s,;&<>\"'}\])\\]+"
# A list or a mapping hides as a whole. Before a plain value may be the name of a scheme.
_WITHIN = (
    r"\[(?=\s{0,9}\\*[\"'])[^\]\r\n]{1,2000}\]?"
    r"|\{(?=\s{0,9}\\*[\"'])[^}\r\n]{1,2000}\}?"
)
_SCHEME = r"(?:(?i:bearer|basic|digest|oauth|token|apikey)\s{1,9})"
_VALUE = rf"{_SCHEME}?(?:{_QUOTED}|{_WITHIN}|{_PLAIN})"
_EQUALS = r"(?::=|=>|={1,3}|:|%3d)"
_AFTER_QUOTE = r"\\*[\"']\s{0,9}(?:=>|[:=,]|value=|(?=\\*[\"']))\s{0,9}\\*"
_OPTION = rf"(?<![\w-])--?[\w-]{{0,64}}?(?:{_NAMES}|jwt|pass|auth|credentials?)"
# Words that follow the name of an option in a sentence about it.
_SENTENCE = r"(?:is|was|are|must|may|can|cannot|and|or|for|to|in|if|has|needs|requires|option)\b"

_ENDS = "=>\"'\\"

_Row = tuple[tuple[str, ...], str, re.RegexFlag, str]
_SECRETS: tuple[_Row, ...] = (
    # A header: its whole line, or the text up to the closing quote.
    (
        ("authorization", "cookie"),
        (
            r"((?:authorization|cookie)\\*[\"']?\s{0,9}:\s{0,9}\\*"
            r"|authorization\\*[\"']\s{0,9}[:,]\s{0,9}\\*)"
            rf"(?:\[hidden\]|{_QUOTED}|{_WITHIN}"
            r"|[^\r\n\"']+(?:(?<==)(?:\"[^\r\n\"]*\"?|'[^\r\n']*'?)[^\r\n\"']*)*)"
        ),
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    # A member of JSON or of a Python mapping, a pair in a list, an element of XML, an assignment.
    (
        (
            *("token", "secret", "passw", "passphrase", "passcode", "_pass", "pwd", "cookie"),
            *("jwt", "_auth", "-auth", "_creds", "-creds", "_sas", "-sas", "key"),
            *(f"{word}{end}" for word in ("sig", "ure", "ial", "tion", "auth") for end in _ENDS),
            *(f"_pat{end}" for end in f"{_ENDS}: \t\r\n%"),
        ),
        (
            rf"({_NAMES}(?:{_AFTER_QUOTE}|\s{{0,9}}{_EQUALS}\s{{0,9}}\\*)"
            rf"|{_NAMES}(?:\s{{1,9}}[\w:-]{{1,32}}=[\"'][^<>]{{0,100}})?>"
            rf"|{_WORDS}\\*[\"']\s{{0,9}}[:=,]\s{{0,9}}\\*|{_WORDS}[=>]\\*)"
            rf"{_VALUE}"
        ),
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    # The value is often the path of a file.
    (
        ("credential",),
        (
            rf"([a-z0-9][_-]credentials?(?:{_AFTER_QUOTE}|\s{{0,9}}{_EQUALS}\s{{0,9}}\\*|>))"
            rf"(?![\"']?[~.]{{0,2}}/){_VALUE}"
        ),
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    # Options of commands.
    (
        ("--", "-token", "-secret", "-pass", "-jwt", "-auth", "-cred", "-access", "-api", "-key"),
        rf"({_OPTION}(?:\s{{1,9}}|=|\\*[\"'][\s,]{{1,9}})\\*)(?!-|{_SENTENCE}){_VALUE}",
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    (
        ("-u", "user"),
        (
            r"((?<![\w-])(?:-u|--user|--proxy-user)[\s=]{0,3}\\*[\"']?)(?!\d{1,10}:\d{1,10}\b)"
            r"[\w.@+-]{1,64}:[^\s\"']+"
        ),
        NO_FLAG,
        rf"\1{HIDDEN}",
    ),
    (
        ("sshpass", "mysql", "mariadb", "redis-cli"),
        (
            r"(\b(?:sshpass|mysql\w{0,9}|mariadb|redis-cli)\b[^\n]{0,200}?\s-[pa]\s?)"
            rf"{_VALUE}"
        ),
        NO_FLAG,
        rf"\1{HIDDEN}",
    ),
    # Sentences, SQL and netrc.
    (
        ("passw", "passphrase", "identified"),
        (
            r"((?:passw(?:or)?d|passphrase)\s{1,9}(?:is\s{1,9})?(?=[\"'])|identified\s{1,9}by\s{1,9}"
            rf"|\blogin\s{{1,9}}\S{{1,64}}\s{{1,9}}password\s{{1,9}}){_VALUE}"
        ),
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    # The value of a header whose name is missing or unknown.
    (
        ("bearer",),
        r"\b(bearer\s{1,9})(?=\S{0,80}[\d_=]|(?-i:\S{0,80}[a-z][A-Z]))[\w.~+/=-]{8,}",
        re.IGNORECASE,
        rf"\1{HIDDEN}",
    ),
    (
        ("basic",),
        r"\b([Bb]asic\s{1,9})(?=\S{0,80}[A-Z0-9=])[\w+/=-]{8,}",
        NO_FLAG,
        rf"\1{HIDDEN}",
    ),
    (
        ("sharedkey",),
        r"\b(SharedKey(?:Lite)?\s{1,9})[\w.-]{1,64}:[\w+/=-]+",
        NO_FLAG,
        rf"\1{HIDDEN}",
    ),
    # Addresses whose path is the credential.
    (
        ("hooks.slack", "/webhooks/", "/webhookb2/", "telegram.org/bot"),
        (
            r"(hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/|/webhookb2/"
            r"|telegram\.org/bot)[^\s\"'<>]+"
        ),
        NO_FLAG,
        rf"\1{HIDDEN}",
    ),
    (
        ("private key",),
        (
            r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
            r".*?(?:-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}|\Z)"
        ),
        re.DOTALL,
        HIDDEN,
    ),
)
"""Words, pattern, flags and replacement. A pattern is searched only in a text that contains one of
its words, in lower case. `re` compiles a pattern at its first use and caches it. Compiling all
patterns would cost each start several milliseconds, but most texts contain no such word."""

# A token may follow an escape: of a line end in `repr`, or of a character in an address.
_START = r"(?:(?<!\w)|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt]))"
_LONG = r"[\w=~-](?:[\w.=~-]{4,}[\w=~-])"
_BASE64 = r"(?=[A-Za-z_./+-]{0,40}\d)[\w./+-]{15,}[\w=/+]"
_DIGIT = r"(?=[A-Za-z_.-]{0,40}\d)[\w.=-]{15,}[\w=-]"
_ALNUM = r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{16,}"
_HEX = r"[0-9a-fA-F]{32,48}(?!\w)"
_TOKENS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        _LONG,
        (
            *("glpat-", "gldt-", "glrt-", "glcbt-", "glft-", "glsoat-", "glimt-", "glagent-"),
            *("gloas-", "glffct-", "glptt-", "GR1348941", "xapp-", "github_pat_", "AIza"),
            *("GOCSPX-", "ya29.", "pypi-AgE", "sk_live_", "sk_test_", "sk_prod_", "rk_live_"),
            *("rk_test_", "rk_prod_", "whsec_", "sntrys_", "sntryu_", "hvs.", "hvb.", "hvr."),
            *("tskey-", "dckr_pat_", "dckr_oat_", "figd_", "fio-u-", "pplx-", "nvapi-"),
            *("lsv2_pt_", "lsv2_sk_", "sb_secret_", "ntn_", "lin_api_", "lin_oauth_", "rdme_"),
            *("CLOJARS_", "PMAK-", "pscale_tkn_", "pscale_oauth_", "pscale_pw_", "sq0atp-"),
            *("sq0csp-", "dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "HRKU-AA", "duffel_live_"),
            *("duffel_test_", "sm_aat_", "sm_pat_", "sm_sat_", "shpat_", "shpca_", "shppa_"),
            *("shpss_", "dop_v1_", "doo_v1_", "dor_v1_", "AGE-SECRET-KEY-1", "FLWSECK", "NRAK-"),
            *("shippo_live_", "shippo_test_", "xkeysib-", "rubygems_", "pcsk_", "ops_eyJ"),
            *("dt0c01.", "tk-us-", "sha256~"),
        ),
    ),
    (
        _ALNUM,
        (
            *("gsk_", "npm_", "r8_", "xai-", "fw_", "csk-", "nfp_", "pnu_", "sbp_", "EZAK", "EZTK"),
            *("AKCp", "cmVmd", "LTAI", "ico-"),
        ),
    ),
    (
        _DIGIT,
        (
            *("ATATT3", "ATCTT3", "ATBB", "EAA", "fo1_", "p8e-", "sgp_", "sl.", "pat.", "sat."),
            *("API-", "1//0"),
        ),
    ),
    (_BASE64, ("glc_", "glsa_", "fm1a_", "fm1r_", "fm2_", "ABSK")),
    (_HEX, ("dapi", "SK", "key-", "pul-")),
    (r"(?:(?=[A-Za-z_-]{0,30}\d)[\w-]{6,}|[\w-]{20,})", ("sk-",)),
    (r"(?!transfer\b)[A-Za-z0-9]{6,}", ("hf_",)),
    (r"[A-Za-z0-9]{6,}", ("api_org_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_")),
    (r"[A-Z0-9]{12,}", ("AKIA", "ASIA", "AROA", "AIDA", "ABIA", "ACCA")),
)
"""What follows the prefix of a token, and the prefixes with which providers begin their tokens. The
prefixes are those of the rules of gitleaks 8, and of some providers that it does not list. Its
rules themselves also demand exact lengths, so they would leave the start of a token in a text that
a server has cut."""

_SHAPES: tuple[tuple[str, str], ...] = (
    ("xox", r"xox[a-z][.-][\w.-]{6,}"),
    ("eyJ", r"(?<!-)eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*){0,3}"),
    ("SG.", r"SG\.[\w-]{10,}\.[\w-]{10,}"),
    (":AA", r"\d{8,10}:AA[\w-]{30,}"),
    (".atlasv1.", r"[A-Za-z0-9]{1,64}\.atlasv1\.[\w-]{6,}"),
    ("Q~", r"[\w~.]{3}\dQ~[\w~.-]{30,}"),
    ("A3-", r"A3-[A-Z0-9]{6}-[A-Z0-9-]{20,}"),
)
"""A part of a token that has another form, and the pattern of the token."""


_VARIABLE = (
    r"(?:TOKEN|SECRET|PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|COOKIE|CONNECTION_STRING|SAS|JWT|DSN"
    r"|API_?KEY|AUTHORIZATION|BEARER|WEBHOOK(?:_URL)?|SECRET_KEY_BASE"
    r"|_(?:PASS|PAT|PWD|AUTH|KEY|CREDS|CREDENTIALS?)"
    r"|(?:SECRET|ACCESS|ACCOUNT|SHARED|PRIVATE|CUSTOMER|ENCRYPTION|SIGNING|MASTER|STORAGE|SAS)_?KEY"
    r"(?:_ID|_BASE64)?)\Z"
)
"""Pattern of the end of a variable's name. `re` compiles it at the first text."""

SHORTEST_VALUE = 8
"""A value shorter than this does not count as a credential, because it may be an ordinary word."""


def redact(text: str, *, credentials: Sequence[str] | None = None) -> str:
    """Return `text` with everything that looks like a credential hidden.

    A caller with many texts reads `find_credentials` once and passes the result.

    >>> redact("GET https://host/b/k?X-Amz-Signature=ab12 said 403")
    'GET https://host/b/k?[hidden] said 403'
    """
    for value in find_credentials() if credentials is None else credentials:
        text = text.replace(value, HIDDEN)
    text = _hide_in_addresses(text)
    folded = text.casefold()
    for words, pattern, flags, replacement in _SECRETS:
        if any(word in folded for word in words):
            text = re.sub(pattern, replacement, text, flags=flags)
    return _hide_tokens(text)


def _hide_in_addresses(text: str) -> str:
    if "://" in text:
        text = _ADDRESS.sub(_without_user_and_query, text)
    if "?" in text:
        text = _QUERY.sub(f"?{HIDDEN}", text)
    return _USER.sub(f"{HIDDEN}@", text) if "@" in text else text


def _hide_tokens(text: str) -> str:
    for rest, prefixes in _TOKENS:
        for prefix in prefixes:
            if prefix in text:
                text = re.sub(f"{_START}{re.escape(prefix)}{rest}", HIDDEN, text)
    for part, pattern in _SHAPES:
        if part in text:
            text = re.sub(_START + pattern, HIDDEN, text)
    return text


def find_credentials() -> list[str]:
    """Return the values of credential variables, each in all spellings that `_spell` returns.

    The longest values come first, because a value can be part of another value. Each call reads the
    environment again, because user code can set or renew a credential at any time.
    """
    found: set[str] = set()
    for name in list(os.environ):
        value = os.environ.get(name, "").strip() if _is_credential(name) else ""
        is_path = name.upper().endswith(("CREDENTIAL", "CREDENTIALS")) and value[:1] in "/~."
        if len(value) >= SHORTEST_VALUE and not is_path:
            found |= _spell(value)
    return sorted(found, key=lambda value: (-len(value), value))


@functools.lru_cache(maxsize=4096)
def _is_credential(variable: str) -> bool:
    """Return whether a variable holds a credential, by the end of its name.

    Examples are HF_TOKEN, SIGNING_KEY and AZURE_STORAGE_CONNECTION_STRING. A variable whose name
    ends in _FILE or _PATH holds a path instead.
    """
    return re.search(_VARIABLE, variable, re.IGNORECASE) is not None


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
    host, path, query = address["host"], address["path"], address["query"] or ""
    # A password may contain a slash, a question mark or a hash, although it should not.
    port = host.rpartition(":")[2]
    if "@" not in host and port != host and not port.isdecimal() and "@" in path + query:
        host, path, query = f"@{(host + path + query).rpartition('@')[2]}", "", ""
    _, at, host = host.rpartition("@")
    user = f"{HIDDEN}@" if at else ""
    query = f"?{HIDDEN}" if query else ""
    return f"{address['scheme']}{user}{host}{path}{query}"


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
