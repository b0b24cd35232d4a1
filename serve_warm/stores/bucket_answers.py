# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Failures of buckets: what S3's, Google's and Azure's error codes mean, and what to do.

A store says in its error code why it refuses a request. So the hint depends on the code. An unknown
code gets no hint, because a wrong hint costs more time than none. obstore's errors contain the
server's answer only as text, so this module reads text. It sends no requests.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from serve_warm._records import record
from serve_warm._redaction import first_line
from serve_warm._store_address import BucketScheme
from serve_warm.stores.redirects import ENDPOINTS, NO_PROXY_THERE

VARIABLES: Mapping[BucketScheme, str] = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

CREDENTIALS: Mapping[BucketScheme, str] = {
    "s3": "give the process AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role (web "
    "identity, pod identity, instance); renew expired credentials",
    "gs": "give the process GOOGLE_APPLICATION_CREDENTIALS, or an attached service account",
    "az": "give the process AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a "
    "managed identity",
}

RIGHTS: Mapping[BucketScheme, str] = {
    "s3": "s3:ListBucket and s3:GetObject (to publish, also s3:PutObject)",
    "gs": "storage.objects.list and storage.objects.get (to publish, also storage.objects.create)",
    "az": "the role Storage Blob Data Reader (to publish, Storage Blob Data Contributor)",
}

OTHER_SERVER: Mapping[BucketScheme, str] = {
    "s3": "check that AWS_ENDPOINT_URL is the address of the S3 API and not of a web console, and "
    "that HTTPS_PROXY, NO_PROXY or a login page of the network do not send requests elsewhere",
    "gs": "check that HTTPS_PROXY, NO_PROXY or a login page of the network do not send requests "
    "elsewhere",
    "az": "check that AZURE_STORAGE_ENDPOINT is the address of the blob service, and that "
    "HTTPS_PROXY, NO_PROXY or a login page of the network do not send requests elsewhere",
}
"""The hint for an answer that no store gives."""


@record(frozen=True, kw_only=True)
class Cause:
    """The cause of a failed request, in one line of text."""

    what: str
    hint: str = ""
    is_final: bool = False
    """Whether a retry cannot help."""


@record(frozen=True, kw_only=True)
class _Advice:
    """What a group of error codes means. The hint can contain `{credentials}` and `{rights}`."""

    says: str
    hint: str
    codes: tuple[str, ...]
    is_final: bool = True


NO_BUCKET = _Advice(
    says="there is no such bucket",
    hint="create the bucket, or correct the address, the region or the endpoint",
    codes=(
        *("NoSuchBucket", "InvalidBucketName", "ContainerNotFound", "ContainerBeingDeleted"),
        *("FilesystemNotFound", "InvalidResourceName"),
    ),
)
EXPIRED = _Advice(
    says="the credentials have expired",
    hint="renew the credentials: {credentials}",
    codes=("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"),
)
CLOCK = _Advice(
    says="the clock of this machine is wrong",
    hint="set the clock of this machine, for example with NTP: the store refuses requests whose "
    "time is more than 15 minutes off",
    codes=("RequestTimeTooSkewed", "RequestExpired"),
)
REGION = _Advice(
    says="the store says that the bucket is in another region",
    hint="set AWS_REGION to the region of the bucket{region}",
    codes=(
        *("AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"),
        *("IllegalLocationConstraintException", "IncorrectEndpoint"),
    ),
)
KEY_SERVICE = _Advice(
    says="the key that encrypts the objects cannot be used",
    hint="check that the key exists and is enabled, and give this identity the right to use it "
    "(AWS: kms:Decrypt, and to publish kms:GenerateDataKey)",
    codes=(
        *("KeyVaultEncryptionKeyNotFound", "KeyVaultAccessTokenCannotBeAcquired"),
        "KeyVaultVaultNotFound",
    ),
)
"""The codes of AWS that begin with `KMS.` also belong to this group."""

_ADVICE = (
    NO_BUCKET,
    EXPIRED,
    CLOCK,
    REGION,
    KEY_SERVICE,
    _Advice(
        says="the credentials are not accepted",
        hint="{credentials}",
        codes=(
            *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"),
            *("MissingSecurityHeader", "NotSignedUp", "InvalidClientTokenId"),
            *("InvalidIdentityToken", "IDPRejectedClaim", "AuthenticationRequired"),
            *("InvalidAuthenticationInfo", "NoAuthenticationInformation"),
        ),
    ),
    _Advice(
        says="the credentials are not accepted",
        hint="{credentials}; if they are right, set the clock of this machine",
        # Azure's code for a wrong key and for a wrong time; Google's for a key and its time.
        codes=("AuthenticationFailed", "invalid_grant"),
    ),
    _Advice(
        says="this identity lacks a permission",
        hint="give this identity {rights}, or use another identity: {credentials}",
        codes=(
            *("AccessDenied", "AllAccessDisabled", "AuthorizationPermissionMismatch"),
            *("InsufficientAccountPermissions", "AuthorizationResourceTypeMismatch"),
            *("AuthorizationServiceMismatch", "PublicAccessNotPermitted"),
        ),
    ),
    _Advice(
        says="the storage account does not allow this request",
        hint="allow this network in the firewall of the storage account, and give this identity "
        "{rights}",
        codes=("AuthorizationFailure", "AuthorizationSourceIPMismatch"),
    ),
    _Advice(
        says="the storage account does not accept account keys",
        hint="use a managed identity or a workload identity, or allow keys in the account",
        codes=("KeyBasedAuthenticationNotPermitted",),
    ),
    _Advice(
        says="the store accepts only https",
        hint="use an endpoint that begins with https://",
        codes=("AuthorizationProtocolMismatch", "AccountRequiresHttps"),
    ),
    _Advice(
        says="the account that owns the bucket is disabled or has a billing problem",
        hint="ask the owner of the account to fix this in the provider's console",
        codes=("AccountProblem", "AccountIsDisabled", "UserProjectAccountProblem"),
    ),
    _Advice(
        says="the bucket bills the caller (requester pays)",
        hint="turn requester pays off for this bucket",
        codes=("UserProjectMissing",),
    ),
    _Advice(
        says="the object is in an archive",
        hint="restore the object, and exclude artifacts from lifecycle rules that archive objects",
        codes=("InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"),
    ),
    _Advice(
        says="a retention rule or a lease protects the object",
        hint="wait until the rule or lease ends, or remove it",
        codes=("BlobImmutableDueToPolicy", "LeaseIdMissing", "ObjectLocked"),
    ),
    _Advice(
        says="the store is full",
        hint="delete objects (`serve-warm prune`), or raise the quota",
        codes=("QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"),
    ),
    _Advice(
        says="the server does not support this request",
        hint="check that the endpoint is the address of a bucket service, and not of a web console",
        codes=("MethodNotAllowed",),
    ),
    _Advice(
        says="the store receives too many requests",
        hint="start fewer replicas at once, or raise pull_deadline_s",
        codes=(
            *("SlowDown", "TooManyRequests", "ServerBusy", "Throttling", "ThrottlingException"),
            *("RequestLimitExceeded", "BandwidthLimitExceeded"),
        ),
        is_final=False,
    ),
    _Advice(
        says="the store has a problem of its own",
        hint="retry later; if this lasts, read the provider's status page or the server's log",
        codes=(
            *("InternalError", "ServiceUnavailable", "OperationTimedOut", "RequestTimeout"),
            "XMinioServerNotInitialized",
        ),
        is_final=False,
    ),
)

_BY_CODE: Mapping[str, _Advice] = {code: each for each in _ADVICE for code in each.codes}

CODES = tuple(_BY_CODE)
"""All codes that have a hint."""

TRANSIENT = (408, 429, 500, 502, 503, 504)

_TLS = (
    # The sign in obstore's text, what it means, and what to do.
    (
        "NotValidForName",
        "the server's certificate is for another host name",
        "use a host name in the endpoint that the certificate contains",
    ),
    (
        "Expired",
        "the server's certificate has expired",
        "renew the certificate, or set the clock of this machine",
    ),
    (
        "NotValidYet",
        "the server's certificate is not valid yet",
        "set the clock of this machine or of the machine that made the certificate",
    ),
    (
        "",
        "the server's certificate is not signed by a known CA",
        "name the certificate file of your CA in SSL_CERT_FILE{bundle}",
    ),
)

_REASONS = (
    # The first match in obstore's text wins. The text shows the cause below the message.
    ("ConnectionRefused", "connection refused"),
    ("ConnectionReset", "the connection was reset"),
    ("dns error", "the host name cannot be resolved"),
    ("TimedOut", "timeout: no complete answer in time"),
    ("IncompleteMessage", "the connection ended before the answer was complete"),
    ("IncompleteBody", "the answer ended early"),
    ("UnexpectedEof", "the answer ended early"),
    ("BadScheme", "an endpoint with http://"),
)

_CREDENTIAL_SOURCES = re.compile(
    r"performing \w+ (https?://(?:169\.254\.[\d.]+|\[fd00:ec2:[^\]]+\]|sts\.[\w.-]+"
    r"|login\.microsoftonline\.com|oauth2\.googleapis\.com)"
    r"|https?://[^/\s]+(?=/latest/(?:api|meta-data)/|/computeMetadata/|/metadata/identity/))"
    r"|performing POST REDACTED|Invalid AssumeRoleWithWebIdentity response"
)
"""Pattern that matches the address of a credential endpoint in the error text of a failed request
for credentials. obstore does not show the address of AWS STS."""

_TOKEN_FILE = re.compile(r"(?:Failed to read|Error reading) [\w ]{0,40}token file")
"""Pattern that matches the error text if the token file of a web identity or pod identity is
missing."""

_STATUS = re.compile(r"status code: (\d{3})")
# Google's and Microsoft's services for credentials answer in JSON.
_CODE = re.compile(r"<Code>([\w.:-]{1,60})</Code>|\"error\"\s?:\s?\"([a-z_]{1,60})\"")
_HTML = re.compile(r"<(?:!doctype )?html", re.IGNORECASE)
_TO_TLS_PORT = re.compile(
    r"HTTP request to an HTTPS server|plain HTTP request was sent to HTTPS port", re.IGNORECASE
)
_NO_STORE = re.compile(
    r"(?<=Got invalid list response: )(?:missing field|ill-formed|invalid type: .{1,500}expected "
    r"struct).{0,200}|\b[\w-]{1,40} Header missing from response"
)
"""Pattern that matches what obstore says about an answer that is not a listing or an object."""
_BAD_VALUE = re.compile(r"Got invalid list response: (?!unexpected `Event::Eof`)(.{1,200})")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")


def status_and_code(text: str) -> tuple[int, str]:
    """Return the HTTP status and the store's error code from an error text; 0 and "" if missing."""
    status, code = _STATUS.search(text), _CODE.search(text)
    return (
        int(status.group(1)) if status else 0,
        (code.group(1) or code.group(2)) if code and status else "",
    )


def is_html(text: str) -> bool:
    """Return whether an error text contains an HTML page."""
    return _HTML.search(text) is not None


def boil_down(error: BaseException) -> str:
    """Return a short description of an obstore error, whose own text has several lines."""
    text = str(error)
    status, code = status_and_code(text)
    if status:
        return f"HTTP {status} {code}".rstrip() + (" (an HTML page)" if is_html(text) else "")
    for sign, reason in _REASONS:
        if sign in text:
            return reason
    return first_line(text, 200)


def explain_credentials(
    error: BaseException, scheme: BucketScheme, environ: Mapping[str, str]
) -> Cause | None:
    """Return the reason if a request for credentials failed, or if their file is missing."""
    text = str(error)
    status, code = status_and_code(text)
    asked_in_vain = _CREDENTIAL_SOURCES.search(text) and status not in TRANSIENT
    if not (asked_in_vain or (not status and _TOKEN_FILE.search(text))):
        return None
    advice = _BY_CODE.get(code)
    hint = CREDENTIALS[scheme]
    if "BadScheme" in text and "REDACTED" in text:
        hint = "use an address with https:// in AWS_ENDPOINT_URL_STS: serve_warm sends the token "
        hint += "of a web identity only over TLS"
    elif advice in (EXPIRED, CLOCK):
        hint = _fill(advice.hint, scheme, text)
    elif scheme == "s3" and _has_profile(environ):
        hint += (
            "; AWS_PROFILE and the files in ~/.aws are not read: run "
            '`eval "$(aws configure export-credentials --format env)"`'
        )
    return Cause(what=f"no credentials: {boil_down(error)}", hint=hint, is_final=True)


def explain_transport(error: BaseException, scheme: BucketScheme) -> Cause:
    """Return the reason for a request without an HTTP answer from the store."""
    text = str(error)
    if (reason := _explain_tls(text, scheme)) is not None:
        return reason
    if "error following redirect" in text:
        what = "the server redirects to another address, which serve_warm does not follow"
        return Cause(what=what, hint=OTHER_SERVER[scheme], is_final=True)
    if f"{NO_PROXY_THERE}," in text:
        return Cause(
            what="the server redirects to another host, which would receive the credentials",
            hint="use the address of that host as the endpoint, or a server without redirects",
            is_final=True,
        )
    if found := _NO_STORE.search(text):
        what = f"the answer is not from a store ({first_line(found[0], 80)})"
        # The end of a listing may be missing, so a listing that is not whole is requested again.
        is_whole = not found[0].startswith("ill-formed")
        return Cause(what=what, hint=OTHER_SERVER[scheme], is_final=is_whole)
    value = _BAD_VALUE.search(text)
    if value or isinstance(error, (ValueError, TypeError, LookupError, ArithmeticError)):
        odd = first_line(value[1] if value else text, 80)
        return Cause(what=f"the answer has a value that cannot be read ({odd})")
    hint = ""
    if "HTTP error" in text or any(sign in text for sign, _ in _REASONS):
        hint = "check that the store is up and can be reached from here"
    if "IncompleteMessage" in text and "http://" in text:
        hint += "; if the server expects TLS on this port, use https:// in the endpoint"
    return Cause(what=boil_down(error), hint=hint)


def _explain_tls(text: str, scheme: BucketScheme) -> Cause | None:
    if "InvalidCertificate(" in text:
        what, hint = next((what, hint) for sign, what, hint in _TLS if sign in text)
        bundle = " or AWS_CA_BUNDLE" if scheme == "s3" else ""
        return Cause(what=what, hint=hint.format(bundle=bundle), is_final=True)
    if "InvalidMessage(" in text and "kind: Connect" in text:
        hint = "use the port for https, or an endpoint with http:// and "
        hint += f"{VARIABLES[scheme]}_ALLOW_HTTP=true"
        what = "the server does not speak TLS on this port"
        return Cause(what=what, hint=hint, is_final=True)
    if "AlertReceived(" in text or "PeerIncompatible(" in text:
        return Cause(
            what="the server ended the TLS handshake",
            hint="check that the server supports TLS 1.2 or 1.3 and needs no client certificate",
            is_final=True,
        )
    return None


def explain_answer(error: BaseException, scheme: BucketScheme, verb: str) -> Cause:
    """Return the reason for a request that the server refused with an HTTP status."""
    text = str(error)
    status, code = status_and_code(text)
    answer = boil_down(error)
    advice = _find_advice(text, code)
    if advice is None and not code and status == 404 and verb == "list" and not is_html(text):
        advice = NO_BUCKET
    if advice is not None:
        what = f"{advice.says} ({answer})" if status else advice.says
        hint = _fill(advice.hint, scheme, text)
        return Cause(what=what, hint=hint, is_final=advice.is_final)
    if _TO_TLS_PORT.search(text):
        hint = "use https:// in the endpoint"
        return Cause(what=f"the server expects TLS ({answer})", hint=hint, is_final=True)
    if code:
        return Cause(what=answer, is_final=status in (401, 403))
    if is_html(text):
        return Cause(what=answer, hint=OTHER_SERVER[scheme], is_final=status not in TRANSIENT)
    if status in (400, 401, 403):
        hint = "the answer has no error code, so another server may have sent it: "
        return Cause(what=answer, hint=hint + OTHER_SERVER[scheme], is_final=True)
    return Cause(what=answer)


def _find_advice(text: str, code: str) -> _Advice | None:
    if code.startswith("KMS.") or (code == "AccessDenied" and "kms:" in text):
        return KEY_SERVICE
    if not code and "Received redirect" in text:
        return REGION
    return _BY_CODE.get(code)


def _fill(hint: str, scheme: BucketScheme, text: str) -> str:
    region = _REGION.search(text)
    named = f", {region[1]}" if region else "; if it is right, check AWS_ACCESS_KEY_ID"
    return hint.format(credentials=CREDENTIALS[scheme], rights=RIGHTS[scheme], region=named)


def _has_profile(environ: Mapping[str, str]) -> bool:
    if environ.get("AWS_PROFILE"):
        return True
    home = environ.get("HOME", "")
    return bool(home) and any(
        Path(home, ".aws", name).exists() for name in ("credentials", "config")
    )


def describe_endpoint(scheme: BucketScheme, environ: Mapping[str, str]) -> str:
    """Return ` at SERVER (VARIABLE)` if an environment variable sets a server, else "".

    The text has only scheme, host and port, because a user name, path or query could contain a
    credential.

    >>> describe_endpoint("s3", {"AWS_ENDPOINT_URL": "http://me:secret@127.0.0.1:9/x?y"})
    ' at http://127.0.0.1:9 (AWS_ENDPOINT_URL)'
    """
    name = next((each for each in ENDPOINTS[scheme] if environ.get(each)), None)
    if name is None:
        return ""
    try:
        parts = urllib.parse.urlsplit(environ[name].strip())
    except ValueError:
        return f" ({name} is not a server URL)"
    host = parts.netloc.rpartition("@")[2]
    return f" at {parts.scheme}://{host} ({name})" if host else f" ({name} is not a server URL)"
