# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Hub client, with its timeouts, progress bars, errors and logs."""

from __future__ import annotations

import logging
import re
import time
import urllib.parse
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from serve_warm._records import record
from serve_warm._redaction import excerpt, redact
from serve_warm.config import environment
from serve_warm.errors import MissingPackage, StoreDenied, StoreError
from serve_warm.stores import check_credential_file

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError


T = TypeVar("T")


LIBRARY = "serve_warm"
"""The library name in request headers."""

LOG_IN = (
    "huggingface_hub reads credentials from HF_TOKEN, HF_TOKEN_PATH or `hf auth login`; writing "
    "needs a token with write access"
)


_NO_TOKEN_FILE = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE")
"""Environment variables that the client prefers to the file with the token."""

_LOGGERS = (
    *("huggingface_hub.utils._http", "huggingface_hub.file_download", "httpx2", "httpx"),
    *(f"{library}.http{version}" for library in ("httpcore2", "httpcore") for version in (11, 2)),
)
"""Loggers of the client and of its HTTP libraries. Some of the URLs that they log are signed."""


class OutrunError(StoreError):
    """Another commit came first."""


class OverlongError(Exception):
    """An answer is longer than announced or allowed, and could fill the memory or the disk."""


class GivenUpError(Exception):
    """The caller gave up waiting for this call."""


@record(kw_only=True)
class Pulse:
    """The time of the last activity of a call, and whether the caller gave up."""

    at: float = field(default_factory=time.monotonic)
    given_up: bool = False

    def check_wanted(self) -> None:
        """Raise GivenUpError if the caller gave up."""
        if self.given_up:
            raise GivenUpError

    def beat(self) -> None:
        """Record activity; raise GivenUpError if the caller gave up."""
        self.check_wanted()
        self.at = time.monotonic()


class NoHubError(Exception):
    """The answer is not the JSON that a Hub sends."""


class OtherHostError(Exception):
    """A listing names a next page on another host. The token must not be sent there."""


OTHER_SERVER = (
    "check that HF_ENDPOINT is the address of a Hub, and that HTTPS_PROXY, NO_PROXY or a login "
    "page of the network do not send requests elsewhere"
)
"""The hint for an answer that no Hub gives."""

Explained = tuple[type[StoreError], str, str]
"""The error class, the text and the hint for a failure."""

_SERVER_TROUBLE = "retry later; if this lasts, read the status page https://status.huggingface.co"

_ANSWERS: Mapping[str | int, Explained] = {
    # The header X-Error-Code comes first. It is missing in many answers.
    "GatedRepo": (
        StoreDenied,
        "the repository is gated, and this account has no access",
        f"request access on the repository's page; {LOG_IN}",
    ),
    "RepoNotFound": (
        StoreDenied,
        "the repository does not exist, or this account cannot see it",
        f"create it with `hf repos create {{repository}}`, or log in: {LOG_IN}",
    ),
    "DisabledRepo": (
        StoreDenied,
        "the Hub has disabled the repository",
        "use another repository, or ask the Hub's support",
    ),
    "RevisionNotFound": (
        StoreDenied,
        "the repository has no revision {revision!r}",
        "create the branch, or correct the address",
    ),
    401: (StoreDenied, "the Hub denied access", LOG_IN),
    402: (
        StoreDenied,
        "the account has no storage left or needs a payment",
        "read the billing page of the account, or delete artifacts",
    ),
    403: (StoreDenied, "the Hub denied access", LOG_IN),
    409: (
        OutrunError,
        "another commit reached the branch first",
        "retry, or publish to another branch",
    ),
    412: (
        OutrunError,
        "another commit reached the branch first",
        "retry, or publish to another branch",
    ),
    429: (
        StoreError,
        "the Hub received too many requests from this account or network",
        "start fewer replicas at once, raise pull_deadline_s, or use a token with higher limits",
    ),
    **dict.fromkeys(range(500, 505), (StoreError, "the Hub has a problem", _SERVER_TROUBLE)),
}
"""What the Hub's error codes and HTTP statuses mean. The text and the hint are format strings."""


def explain_answer(error: HfHubHTTPError, *, repository: str, revision: str) -> Explained:
    """Return the error class, the text and the hint for an HTTP answer with an error status."""
    from huggingface_hub import errors

    headers, status = error.response.headers, error.response.status_code
    code = excerpt(headers.get("X-Error-Code", ""), 60)
    answer = f"HTTP {status} {code}".rstrip()
    if not code and is_html(error.response):
        kind = StoreError if status >= 500 else StoreDenied
        return kind, f"{answer} (an HTML page)", OTHER_SERVER
    known = code
    # The client recognizes these answers also without a code.
    if isinstance(error, errors.DisabledRepoError):
        known = "DisabledRepo"
    elif isinstance(error, errors.RepositoryNotFoundError) and code not in _ANSWERS:
        known = "RepoNotFound"
    kind, what, hint = _ANSWERS.get(known) or _ANSWERS.get(status) or (StoreError, "", "")
    if code and known not in _ANSWERS:
        hint = ""  # the code is unknown, and so is the cause
    filled = what.format(revision=revision)
    pause_s = read_retry_after(error)
    wait = f", and asks to wait {pause_s:.0f} s" if pause_s else ""
    text = f"{filled} ({answer}){wait}" if what else f"the Hub answered {answer}{wait}"
    return kind, text, hint.format(repository=repository)


def is_html(answer: Any) -> bool:
    """Return whether an HTTP answer is an HTML page."""
    return str(answer.headers.get("content-type", "")).startswith("text/html")


def read_retry_after(error: HfHubHTTPError) -> float:
    """Return for how many seconds a busy Hub asks to wait; 0 if it does not say."""
    headers = error.response.headers
    if error.response.status_code not in (429, 503):
        return 0.0
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value[:9])
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    # The Hub's own header, as in `"api";r=0;t=55`: no requests are left for 55 s.
    limit = re.search(r"\br\s?=\s?0\s?;\s?t\s?=\s?(\d{1,9})", headers.get("ratelimit", ""))
    return float(limit[1]) if limit else 0.0


def explain_failure(error: BaseException) -> Explained:
    """Return the error class, the text and the hint for a failure without an HTTP answer."""
    from huggingface_hub import errors

    known: Explained | None = None
    if isinstance(error, errors.OfflineModeIsEnabled):
        what = "HF_HUB_OFFLINE forbids requests to the Hub"
        known = StoreDenied, what, "unset HF_HUB_OFFLINE, or use a folder as the store"
    elif isinstance(error, OverlongError):
        known = StoreError, str(error), ""
    elif isinstance(error, OtherHostError):
        what = f"the listing continues on another host, {error}, which must not receive the token"
        known = StoreDenied, what, "set HF_ENDPOINT to a Hub, or to a mirror that names itself"
    elif isinstance(error, NoHubError):
        known = StoreDenied, f"the answer is not from a Hub ({error})", OTHER_SERVER
    # Compare the class by name, because hf_xet, which defines it, may not be installed.
    elif type(error).__name__ == "XetAuthenticationError":
        known = StoreDenied, "the Hub's storage backend denied access", LOG_IN
    if known is not None:
        return known
    text = excerpt(" ".join(redact(f"{type(error).__name__}: {error}").split()), 200)
    if "[SSL" in text:
        return _explain_tls(text)
    if isinstance(error, (errors.FileMetadataError, LookupError, TypeError, AttributeError)):
        return StoreError, f"the answer is not from a Hub ({text})", OTHER_SERVER
    return StoreError, text, ""


def _explain_tls(text: str) -> Explained:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        hint = "name the certificate file of your CA in SSL_CERT_FILE, or correct HF_ENDPOINT"
        return StoreDenied, f"the server's certificate is not accepted: {text}", hint
    hint = "check that HF_ENDPOINT names a port that speaks TLS, or use http://"
    return StoreDenied, f"the TLS handshake failed: {text}", hint


MAX_ANSWER_BYTES = 4 << 20
"""Limit in bytes for one JSON answer about files. A page of a thousand files takes a tenth of this
limit. A parsed answer takes at most 20 times the memory of its text."""

MAX_REDIRECTS = 5


def ask_json(pulse: Pulse, method: str, url: str, **sent: Any) -> tuple[Any, str]:
    """Return the JSON from an answer, and the URL of the next page (empty on the last page).

    Only the Hub itself is asked, because the request has the token. A redirect to another host is
    followed without the token.

    The client's own functions read the whole body of every answer, even if the body is very long.
    So this function uses the client's session directly, and reads at most `MAX_ANSWER_BYTES`.
    `sent` holds additional arguments for the session's request.

    Raises:
        OverlongError: the answer is too long or compressed, or there are too many redirects.
        NoHubError: the answer is not JSON.
        OtherHostError: `url` is not on the Hub.
        HfHubHTTPError: the Hub answered with an error status, such as not found.
    """
    import huggingface_hub.utils

    if _origin(url) != _origin(open_api().endpoint):
        scheme, host, port = _origin(url)
        raise OtherHostError(f"{scheme}://{host}:{port}")
    utils: Any = huggingface_hub.utils  # Any, because these names are not declared as public
    client = utils.get_session()
    headers = {**utils.build_hf_headers(library_name=LIBRARY), "accept-encoding": "identity"}
    request = client.build_request(method, url, headers=headers, **sent)
    for _ in range(MAX_REDIRECTS):
        with closing(client.send(request, stream=True, follow_redirects=False)) as answer:
            body = _read_bounded(answer, pulse)
            if answer.next_request is None:
                # Copy the answer with its body instead of the stream, because raising an error
                # reads the text.
                whole = type(answer)(
                    answer.status_code, headers=answer.headers, content=body, request=request
                )
                utils.hf_raise_for_status(whole)
                following = whole.links.get("next", {}).get("url", "")
                return _parse(whole), urllib.parse.urljoin(url, following) if following else ""
            request = answer.next_request  # has no token if it goes to another host
    raise OverlongError(f"more than {MAX_REDIRECTS} redirects")


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", "", None
    return parts.scheme, excerpt(parts.hostname or "", 100), port


def _parse(answer: Any) -> Any:
    if is_html(answer):
        raise NoHubError("an HTML page")
    try:
        return answer.json()
    except (ValueError, RecursionError):
        raise NoHubError("not JSON") from None


def _read_bounded(answer: Any, pulse: Pulse) -> bytes:
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise OverlongError("the answer is compressed, but serve_warm did not ask for compression")
    body = bytearray()
    for piece in answer.iter_raw():
        # Do not record pieces as activity, so that a slow answer ends at the timeout.
        pulse.check_wanted()
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise OverlongError(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


def listener(pulse: Pulse, *, max_bytes: int) -> Any:
    """Return a progress bar class that shows nothing and records activity in `pulse`."""

    class Listener(AbstractContextManager["Listener"]):
        def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
            self.n = initial

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: int = 1) -> None:
            pulse.beat()
            self.n += count
            if self.n > max_bytes:
                raise OverlongError("received more bytes than the Hub announced")

        def update_transfer(self, _: int = 1) -> None:
            pulse.beat()

        def set_postfix_str(self, *_: Any, **__: Any) -> None:
            pass

        set_transfer_postfix_str = set_postfix_str

        def refresh(self) -> None:
            pass

        def close(self) -> None:
            pass

    return Listener


def hide_progress_bars() -> None:
    """Hide the client's upload progress bars from now on.

    If HF_HUB_DISABLE_PROGRESS_BARS is set, for example to 0, this function changes nothing.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()


def import_client() -> None:
    """Raise `MissingPackage` if huggingface_hub is not installed."""
    try:
        # huggingface_hub imports its modules on first use. The store may be used in a thread, where
        # an import could deadlock with imports of user code.
        from huggingface_hub import HfApi  # noqa: F401
    except ImportError as error:
        raise MissingPackage("hf://", package="huggingface-hub") from error


def check_token_file(uri: str) -> None:
    """Refuse a pipe, folder or device in place of the file with the token.

    Raises:
        StoreDenied: the token comes from a file that is not a regular file.
    """
    from huggingface_hub import constants

    if not any(map(environment().get, _NO_TOKEN_FILE)):
        check_credential_file(uri, name="HF_TOKEN_PATH", path=constants.HF_TOKEN_PATH)


def open_api() -> HfApi:
    """Return the client, and keep signed URLs out of the client's logs from now on."""
    from huggingface_hub import HfApi

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_redact_record)
    return HfApi(library_name=LIBRARY)


def _redact_record(record: logging.LogRecord) -> bool:
    """Remove signed URLs from one of the client's log records."""
    record.msg, record.args = redact(record.getMessage()), ()
    return True
