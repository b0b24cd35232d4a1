# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Failures that obstore and bucket servers report, and short descriptions of them."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping

from serve_warm._redaction import first_line
from serve_warm._store_address import BucketScheme

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")

NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")

DENIED = (
    *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed"),
    *("AuthenticationFailed", "InvalidAuthenticationInfo", "InvalidIdentityToken"),
)
"""Error codes that mean that permission is missing. Some of these codes come with status 400."""

TRANSIENT = (408, 429, 500, 502, 503, 504)

CREDENTIAL_SOURCES = re.compile(
    r"performing \w+ (https?://(?:169\.254\.[\d.]+|\[fd00:ec2:[^\]]+\]|sts\.[\w.-]+"
    r"|login\.microsoftonline\.com|oauth2\.googleapis\.com)"
    r"|https?://[^/\s]+(?=/latest/(?:api|meta-data)/|/computeMetadata/|/metadata/identity/))"
)
"""Pattern that matches the address of a credential endpoint in the error text of a failed request
for credentials."""

TOKEN_FILE = re.compile(r"(?:Failed to read|Error reading) [\w ]{0,40}token file")
"""Pattern that matches the error text if the token file of a web identity or pod identity is
missing."""

CREDENTIALS: dict[BucketScheme, str] = {
    "s3": "give the process AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role (web "
    "identity, pod identity, instance); renew expired credentials",
    "gs": "give the process GOOGLE_APPLICATION_CREDENTIALS, or an attached service account",
    "az": "give the process AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a "
    "managed identity",
}

VARIABLES: dict[BucketScheme, str] = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

_REASONS = (
    # The first match in obstore's text wins. The text shows the cause below the message.
    ("ConnectionRefused", "connection refused"),
    ("ConnectionReset", "the connection was reset"),
    ("dns error", "the host name cannot be resolved"),
    ("certificate", "the server's certificate is not accepted"),
    ("TimedOut", "timeout: no complete answer in time"),
    ("IncompleteMessage", "the connection ended before the answer was complete"),
    ("IncompleteBody", "the answer ended early"),
    ("UnexpectedEof", "the answer ended early"),
    ("BadScheme", "an endpoint with http://"),
)


def status_and_code(text: str) -> tuple[int, str]:
    """Return the HTTP status and the store's error code from an error text; 0 and "" if missing."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return int(status.group(1)) if status else 0, code.group(1) if code else ""


def boil_down(error: BaseException) -> str:
    """Return a short description of an obstore error, whose own text has several lines."""
    text = str(error)
    status, code = status_and_code(text)
    if status:
        return f"HTTP {status} {code}".rstrip()
    for sign, reason in _REASONS:
        if sign in text:
            return reason
    return first_line(text, 200)


_ENDPOINTS: dict[BucketScheme, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Environment variables that select a server other than the provider's. The first variable that is
set wins."""


def describe_endpoint(scheme: BucketScheme, environ: Mapping[str, str]) -> str:
    """Return ` at SERVER (VARIABLE)` if an environment variable sets a server, else "".

    The text has only scheme, host and port, because a user name, path or query could contain a
    credential.

    >>> describe_endpoint("s3", {"AWS_ENDPOINT_URL": "http://me:secret@127.0.0.1:9/x?y"})
    ' at http://127.0.0.1:9 (AWS_ENDPOINT_URL)'
    """
    name = next((each for each in _ENDPOINTS[scheme] if environ.get(each)), None)
    if name is None:
        return ""
    try:
        parts = urllib.parse.urlsplit(environ[name].strip())
    except ValueError:
        return f" ({name} is not a server URL)"
    host = parts.netloc.rpartition("@")[2]
    return f" at {parts.scheme}://{host} ({name})" if host else f" ({name} is not a server URL)"
