# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A local server that answers every request alike, and the answers of stores that a test gives it.

Each answer has words that the error must contain, and words that a wrong hint would contain. The
list does not use the table of serve_warm, so that a wrong row of the table is noticed.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server sends, and what serve_warm must say."""

    name: str
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...]
    """Words that the message or the hint must contain."""
    hints: str | None
    """Words that the hint must contain; empty for no hint at all, None if this does not matter."""
    denied: bool = True
    """Whether the error must say that a retry cannot help."""


class AnyAnswer:
    """A server on the loopback interface that gives `answer` to every request."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.answer = Answer(name="", status=200, says=(), hints=None)
        self.choose: Callable[[str, str], Answer | None] = lambda _method, _path: None
        """Returns another answer for a request, or None."""
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append(f"{self.command} {self.path}")
                answer = outer.choose(self.command, self.path) or outer.answer
                self.send_response(answer.status)
                length = {"Content-Length": str(len(answer.body))}
                for name, value in {**length, **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the base class's names

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...

        self._server = Server(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def any_answer(certificate: Path | None = None) -> Iterator[AnyAnswer]:
    """Run a server, and stop it at the end."""
    server = AnyAnswer(certificate)
    try:
        yield server
    finally:
        server.close()


def bucket_environment(url: str, folder: Path) -> dict[str, str]:
    """Return the variables that make all three kinds of buckets use the server at `url`."""
    account = {"gcs_base_url": url, "disable_oauth": True, "private_key": "x"}
    account |= {"private_key_id": "x", "client_email": "x"}
    (folder / "account.json").write_text(json.dumps(account))
    return {
        "HOME": str(folder),
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "AKIAWARMWARMWARMWARM",
        "AWS_SECRET_ACCESS_KEY": "hunter2hunter2",
        "AWS_REGION": "us-east-1",
        "GOOGLE_SERVICE_ACCOUNT": str(folder / "account.json"),
        "GOOGLE_ALLOW_HTTP": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMmh1bnRlcjI=",
        "AZURE_STORAGE_ENDPOINT": f"{url}/account",
        "AZURE_ALLOW_HTTP": "true",
    }


def xml(code: str, more: str = "") -> bytes:
    text = f"<Error><Code>{code}</Code><Message>A test wants it.</Message>{more}</Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def listing(date: str = "2026-01-01T00:00:00Z", *, keys: int = 1) -> bytes:
    entry = f"<LastModified>{date}</LastModified><Size>1</Size><ETag>x</ETag>"
    entries = "".join(f"<Contents><Key>pre/{n}</Key>{entry}</Contents>" for n in range(keys))
    head = "<Name>bucket</Name><IsTruncated>false</IsTruncated>"
    return f'<?xml version="1.0"?><ListBucketResult>{head}{entries}</ListBucketResult>'.encode()


PAGE = b"<!DOCTYPE html><html><head><title>Log in</title></head><body></body></html>"
"""A page that is also well-formed XML, which obstore reads as an empty listing."""
LOOSE_PAGE = b"<!DOCTYPE html><html><body><p>Log in<br></body></html>"

_KEYS = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION", "az": "AZURE_STORAGE_ACCOUNT_KEY"}


def _coded(status: int, *codes: str, hints: str, denied: bool = True, more: str = "") -> Any:
    return [
        Answer(
            name=f"{status} {code}{' with more' if more else ''}",
            status=status,
            body=xml(code, more),
            says=(f"HTTP {status} {code}",),
            hints=hints,
            denied=denied,
        )
        for code in codes
    ]


ANSWERS: dict[str, list[Answer]] = {
    "s3": [
        *_coded(403, "InvalidAccessKeyId", "SignatureDoesNotMatch", hints=_KEYS["s3"]),
        *_coded(403, "InvalidSecurity", "NotSignedUp", hints=_KEYS["s3"]),
        *_coded(403, "InvalidClientTokenId", hints=_KEYS["s3"]),
        *_coded(400, "InvalidToken", "MissingSecurityHeader", hints=_KEYS["s3"]),
        *_coded(400, "InvalidIdentityToken", "IDPRejectedClaim", hints=_KEYS["s3"]),
        *_coded(400, "ExpiredToken", "TokenRefreshRequired", hints="renew"),
        *_coded(403, "ExpiredToken", "ExpiredTokenException", hints="renew"),
        *_coded(403, "AccessDenied", "AllAccessDisabled", hints="s3:GetObject"),
        *_coded(403, "RequestTimeTooSkewed", "RequestExpired", hints="clock"),
        *_coded(
            400,
            "AuthorizationHeaderMalformed",
            hints="AWS_REGION to the region of the bucket, eu-west-3",
            more="<Region>eu-west-3</Region>",
        ),
        *_coded(400, "AuthorizationHeaderMalformed", hints="AWS_REGION"),
        *_coded(400, "IllegalLocationConstraintException", "IncorrectEndpoint", hints="AWS_REGION"),
        *_coded(403, "InvalidObjectState", hints="restore the object"),
        *_coded(400, "KMS.DisabledException", "KMS.NotFoundException", hints="kms:Decrypt"),
        *_coded(400, "KMS.KMSInvalidStateException", "KMS.InvalidKeyUsage", hints="kms:Decrypt"),
        *_coded(403, "AccessDenied", hints="kms:Decrypt", more="<M>to perform: kms:Decrypt</M>"),
        *_coded(404, "NoSuchBucket", hints="create the bucket"),
        *_coded(400, "InvalidBucketName", hints="correct the address"),
        *_coded(403, "AccountProblem", hints="owner of the account"),
        *_coded(405, "MethodNotAllowed", hints="web console"),
        *_coded(403, "QuotaExceeded", hints="prune"),
        *_coded(507, "XMinioStorageFull", "InsufficientCapacity", hints="prune"),
        *_coded(403, "ObjectLocked", hints="rule or lease"),
        *_coded(503, "SlowDown", hints="fewer replicas", denied=False),
        *_coded(429, "TooManyRequests", "Throttling", hints="fewer replicas", denied=False),
        *_coded(400, "ThrottlingException", hints="fewer replicas", denied=False),
        *_coded(503, "RequestLimitExceeded", hints="fewer replicas", denied=False),
        *_coded(503, "BandwidthLimitExceeded", hints="fewer replicas", denied=False),
        *_coded(500, "InternalError", hints="status page", denied=False),
        *_coded(503, "ServiceUnavailable", hints="status page", denied=False),
        *_coded(503, "XMinioServerNotInitialized", hints="status page", denied=False),
        *_coded(400, "RequestTimeout", hints="status page", denied=False),
        *_coded(403, "SomethingNew", hints=""),
        *_coded(400, "SomethingNew", hints="", denied=False),
        *_coded(409, "SomethingNew", hints="", denied=False),
        *_coded(500, "SomethingNew", hints="", denied=False),
        Answer(
            name="301 without a place",
            status=301,
            body=xml("PermanentRedirect"),
            says=("another region",),
            hints="AWS_REGION",
        ),
    ],
    "gs": [
        *_coded(403, "SignatureDoesNotMatch", "InvalidSecurity", hints=_KEYS["gs"]),
        *_coded(401, "AuthenticationRequired", hints=_KEYS["gs"]),
        *_coded(400, "ExpiredToken", hints="renew"),
        *_coded(403, "AccessDenied", hints="storage.objects.get"),
        *_coded(403, "RequestTimeTooSkewed", hints="clock"),
        *_coded(404, "NoSuchBucket", hints="create the bucket"),
        *_coded(403, "UserProjectAccountProblem", "AccountProblem", hints="owner of the account"),
        *_coded(400, "UserProjectMissing", hints="requester pays"),
        *_coded(503, "SlowDown", hints="fewer replicas", denied=False),
        *_coded(500, "InternalError", hints="status page", denied=False),
        *_coded(403, "SomethingNew", hints=""),
    ],
    "az": [
        *_coded(403, "AuthenticationFailed", hints="clock"),
        *_coded(400, "InvalidAuthenticationInfo", hints=_KEYS["az"]),
        *_coded(401, "NoAuthenticationInformation", hints=_KEYS["az"]),
        *_coded(403, "AuthorizationPermissionMismatch", hints="Storage Blob Data Reader"),
        *_coded(403, "InsufficientAccountPermissions", hints="Storage Blob Data Reader"),
        *_coded(403, "AuthorizationResourceTypeMismatch", hints="Storage Blob Data Reader"),
        *_coded(403, "AuthorizationServiceMismatch", hints="Storage Blob Data Reader"),
        *_coded(409, "PublicAccessNotPermitted", hints="Storage Blob Data Reader"),
        *_coded(403, "AuthorizationFailure", "AuthorizationSourceIPMismatch", hints="firewall"),
        *_coded(403, "KeyBasedAuthenticationNotPermitted", hints="managed identity"),
        *_coded(403, "AuthorizationProtocolMismatch", hints="https://"),
        *_coded(400, "AccountRequiresHttps", hints="https://"),
        *_coded(403, "AccountIsDisabled", hints="owner of the account"),
        *_coded(404, "ContainerNotFound", "FilesystemNotFound", hints="create the bucket"),
        *_coded(409, "ContainerBeingDeleted", hints="create the bucket"),
        *_coded(400, "InvalidResourceName", hints="correct the address"),
        *_coded(409, "BlobArchived", "BlobBeingRehydrated", hints="restore the object"),
        *_coded(409, "BlobImmutableDueToPolicy", hints="rule or lease"),
        *_coded(412, "LeaseIdMissing", hints="rule or lease"),
        *_coded(403, "KeyVaultEncryptionKeyNotFound", hints="key exists"),
        *_coded(403, "KeyVaultAccessTokenCannotBeAcquired", hints="key exists"),
        *_coded(409, "KeyVaultVaultNotFound", hints="key exists"),
        *_coded(503, "ServerBusy", hints="fewer replicas", denied=False),
        *_coded(500, "OperationTimedOut", "InternalError", hints="status page", denied=False),
        *_coded(403, "SomethingNew", hints=""),
    ],
}
"""The answers of each kind of bucket, by scheme."""

HTML = {"Content-Type": "text/html"}

NO_STORES = [
    Answer(name="a page", status=200, body=PAGE, headers=HTML, says=("not",), hints="NO_PROXY"),
    Answer(
        name="a page that is not XML",
        status=200,
        body=LOOSE_PAGE,
        headers=HTML,
        says=("not from a store",),
        hints="NO_PROXY",
        denied=False,
    ),
    Answer(
        name="JSON",
        status=200,
        body=b'{"status": "ok"}',
        says=("not from a store",),
        hints="NO_PROXY",
    ),
    *(
        Answer(
            name=f"a page with {status}",
            status=status,
            body=PAGE,
            headers=HTML,
            says=(f"HTTP {status}", "an HTML page"),
            hints="NO_PROXY",
            denied=status < 500,
        )
        for status in (400, 401, 403, 404, 405, 502, 503)
    ),
    Answer(
        name="403 without a code",
        status=403,
        body=b"blocked",
        says=("HTTP 403",),
        hints="NO_PROXY",
    ),
    Answer(
        name="a redirect to a login page",
        status=302,
        headers={"Location": "/login"},
        says=("redirects",),
        hints="NO_PROXY",
    ),
    Answer(
        name="an http request to a TLS port",
        status=400,
        body=b"Client sent an HTTP request to an HTTPS server.\n",
        says=("expects TLS",),
        hints="use https://",
    ),
]
"""The answers of servers that are not stores, for every kind of bucket."""

ODD_LISTINGS = [
    Answer(
        name=f"a listing with the date {date}",
        status=200,
        body=listing(date),
        says=("a value that cannot be read",),
        hints="",
        denied=False,
    )
    for date in ("+010000-01-01T00:00:00Z", "-000001-01-01T00:00:00Z", "9999999-01", "", "never")
] + [
    Answer(
        name="a listing with the size -1",
        status=200,
        body=listing().replace(b"<Size>1<", b"<Size>-1<"),
        says=("a value that cannot be read",),
        hints="",
        denied=False,
    ),
    Answer(name="nothing", status=200, says=("ended early",), hints="is up", denied=False),
]
"""Listings of S3 and Google that cannot be read."""


def _hub(
    name: str, status: int, says: str, hints: str, body: bytes = b"{}", **headers: str
) -> Answer:
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    denied = bool(hints or status == 403) and status < 500 and status != 429
    return Answer(
        name=name, status=status, headers=sent, body=body, says=(says,), hints=hints, denied=denied
    )


_FOREIGN = "HF_ENDPOINT"

HUB_ANSWERS = [
    _hub("a page", 200, "an HTML page", _FOREIGN, PAGE, Content_Type="text/html"),
    _hub("a page without a type", 200, "not JSON", _FOREIGN, PAGE),
    _hub("nothing", 200, "not JSON", _FOREIGN, b""),
    *(
        _hub(
            f"a page with {status}",
            status,
            f"HTTP {status} (an HTML page)",
            _FOREIGN,
            PAGE,
            Content_Type="text/html",
        )
        for status in (401, 403, 404, 502)
    ),
    *(
        replace(_hub(f"other JSON: {body.decode()}", 200, "", _FOREIGN, body), denied=False)
        for body in (b"[]", b'{"status": "ok"}', b'{"sha": 7}', b"null", b"7")
    ),
    _hub("GatedRepo", 403, "HTTP 403 GatedRepo", "request access", X_Error_Code="GatedRepo"),
    _hub("RepoNotFound", 404, "HTTP 404 RepoNotFound", "create it", X_Error_Code="RepoNotFound"),
    _hub("no account", 401, "HTTP 401", "HF_TOKEN"),
    _hub(
        *("a wrong token", 401, "denied access (HTTP 401", "HF_TOKEN"),
        X_Error_Message="Invalid credentials in Authorization header",
    ),
    _hub(
        *("a disabled repository", 403, "disabled the repository (HTTP 403", "another repository"),
        X_Error_Message="Access to this resource is disabled.",
    ),
    _hub(
        *("RevisionNotFound", 404, "'main' (HTTP 404 RevisionNotFound)", "create the branch"),
        X_Error_Code="RevisionNotFound",
    ),
    _hub("402", 402, "HTTP 402", "billing"),
    _hub("403", 403, "HTTP 403", "HF_TOKEN"),
    _hub("429", 429, "HTTP 429", "fewer replicas"),
    _hub("429 for an hour", 429, "asks to wait 3600 s", "fewer replicas", Retry_After="3600"),
    *(
        _hub(f"{status}", status, f"HTTP {status}", "status page")
        for status in (500, 502, 503, 504)
    ),
    _hub("404 without a code", 404, "HTTP 404", ""),
    _hub("an unknown code", 403, "HTTP 403 SomethingNew", "", X_Error_Code="SomethingNew"),
    _hub("an unknown status", 418, "HTTP 418 Teapot", "", X_Error_Code="Teapot"),
]
"""The answers of the Hub, and of servers that are not a Hub."""


def find_fault(answer: Answer, error: BaseException) -> str:
    """Return what is wrong with an error for an answer: such as `wrong hint`; "" if none."""
    from serve_warm.errors import StoreDenied, StoreError

    if not isinstance(error, StoreError):
        return "start failed"
    text = str(error)
    if answer.hints is not None and bool(error.hint) != bool(answer.hints):
        return "wrong hint"
    if answer.hints and answer.hints not in error.hint:
        return "wrong hint"
    if not all(word in text for word in answer.says):
        return "wrong hint"
    return "" if isinstance(error, StoreDenied) == answer.denied else "wrong kind"


# Certificates ------------------------------------------------------------------------------------


def make_certificates(folder: Path) -> dict[str, Path]:
    """Return a private CA, and certificates that it signed: one good, two bad; and one without."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.now(timezone.utc)
    local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    paths: dict[str, Path] = {}
    signer: Any = None
    for name, host, days in (
        ("ca", local, 9),
        ("good", local, 9),
        ("other host", x509.DNSName("store.example"), 9),
        ("expired", local, -1),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(signer[0] if signer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=9))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=not signer, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([host]), critical=False)
            .sign(signer[1] if signer else key, hashes.SHA256())
        )
        signer = signer or (subject, key)
        paths[name] = folder / f"{name.replace(' ', '_')}.pem"
        paths[name].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        data = key.private_bytes(serialization.Encoding.PEM, form, plain)
        paths[name].with_suffix(".key").write_bytes(data)
    return paths


def endless_pages(server: AnyAnswer) -> Callable[[str, str], Answer | None]:
    """Return the answers of a server whose listings have no end, and no object."""
    s3 = b"<?xml version='1.0'?><ListBucketResult><Name>bucket</Name><IsTruncated>true"
    s3 += b"</IsTruncated><NextContinuationToken>more</NextContinuationToken></ListBucketResult>"
    azure = b"<?xml version='1.0'?><EnumerationResults><Blobs/><NextMarker>more</NextMarker>"
    azure += b"</EnumerationResults>"
    xml_type, json_type = {"Content-Type": "application/xml"}, {"Content-Type": "application/json"}

    def choose(_method: str, path: str) -> Answer | None:
        said: dict[str, Any] = {"name": "endless", "status": 200, "says": (), "hints": None}
        if "/api/models/" in path and "/revision/" in path:
            return Answer(**said, body=json.dumps({"sha": "0" * 40}).encode(), headers=json_type)
        if "/api/models/" in path:
            following = {"Link": f'<{server.url}{path.partition("?")[0]}?cursor=1>; rel="next"'}
            return Answer(**said, body=b"[]", headers={**json_type, **following})
        if path.startswith("/api/"):
            return Answer(**{**said, "status": 404})
        return Answer(**said, body=azure if "comp=list" in path else s3, headers=xml_type)

    return choose
