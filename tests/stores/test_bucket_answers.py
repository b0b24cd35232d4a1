# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What serve_warm says about the answers of buckets: their codes, pages, dates and certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from serve_warm.errors import ObjectExists, StoreDenied, StoreError
from serve_warm.stores import list_keys, open_store
from serve_warm.stores.bucket_answers import CODES
from store_answers import (
    ANSWERS,
    HTML,
    NO_STORES,
    ODD_LISTINGS,
    PAGE,
    Answer,
    AnyAnswer,
    any_answer,
    bucket_environment,
    find_fault,
    listing,
    make_certificates,
    xml,
)

# A server of the test answers each request, and some answers are requested three times.
pytestmark = pytest.mark.slow

SCHEMES = ("s3", "gs", "az")
ALL = [(scheme, answer) for scheme in SCHEMES for answer in ANSWERS[scheme]]
SERVERS = [(scheme, answer) for scheme in SCHEMES for answer in NO_STORES]


def ids(value: object) -> str:
    return value.name if isinstance(value, Answer) else str(value)


@pytest.fixture(scope="module")
def server() -> Iterator[AnyAnswer]:
    with any_answer() as running:
        yield running


@pytest.fixture(autouse=True)
def _settings(server: AnyAnswer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "SSL_")) or "PROXY" in name.upper():
            monkeypatch.delenv(name)
    for name, value in bucket_environment(server.url, tmp_path).items():
        monkeypatch.setenv(name, value)
    server.choose = lambda _method, _path: None
    server.requests.clear()


def ask(scheme: str, operation: str) -> StoreError:
    store = open_store(f"{scheme}://bucket/pre")
    operations = {
        "list": lambda: list_keys(store, "statements/"),
        "get": lambda: store.get("key", max_bytes=1000),
        "head": lambda: store.head("key"),
        "create": lambda: store.create("key", b"data"),
    }
    with pytest.raises(StoreError) as caught:
        operations[operation]()
    return caught.value


@pytest.mark.parametrize(("scheme", "answer"), ALL, ids=ids)
def test_the_hint_is_for_the_code(server: AnyAnswer, scheme: str, answer: Answer):
    """Each code has its own hint, an unknown code has none, and the code is always shown."""
    server.answer = answer
    error = ask(scheme, "list")
    assert find_fault(answer, error) == "", str(error)


@pytest.mark.parametrize(
    ("scheme", "answer"),
    [each for each in ALL if 400 <= each[1].status < 500 and each[1].status not in (404, 429)],
    ids=ids,
)
def test_a_refused_head_is_explained_by_the_code(server: AnyAnswer, scheme: str, answer: Answer):
    """The answer to HEAD has no body, and so no code. So serve_warm also requests one byte."""
    server.answer = answer
    error = ask(scheme, "head")
    assert find_fault(answer, error) == "", str(error)


def test_every_code_of_the_table_is_tested():
    tested = {answer.name.split()[1] for _, answer in ALL}
    from_other_servers = {"PermanentRedirect", "TemporaryRedirect", "invalid_grant"}
    assert set(CODES) <= tested | from_other_servers


@pytest.mark.parametrize(("scheme", "answer"), SERVERS, ids=ids)
def test_a_server_that_is_not_a_store_is_not_an_empty_store(
    server: AnyAnswer, scheme: str, answer: Answer
):
    """A console, a login page or a proxy is named, and the hint does not ask for credentials."""
    server.answer = answer
    error = ask(scheme, "list")
    assert find_fault(answer, error) == "", str(error)
    assert "give the process" not in error.hint


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_page_for_lists_and_404_for_objects_is_not_an_empty_store(server: AnyAnswer, scheme: str):
    """A web server that knows the bucket's path but no object is not a store."""
    server.answer = Answer(name="", status=404, body=PAGE, headers=HTML, says=(), hints=None)
    page = Answer(name="", status=200, body=PAGE, headers=HTML, says=(), hints=None)
    server.choose = lambda _method, path: page if "?" in path else None
    assert type(ask(scheme, "list")) is StoreDenied


@pytest.mark.parametrize("operation", ["get", "create"])
def test_a_page_is_not_an_object(server: AnyAnswer, operation: str):
    """A page is neither returned as an object nor taken for an object of another writer."""
    server.answer = NO_STORES[0]
    error = ask("s3", operation)
    assert not isinstance(error, ObjectExists)
    assert "not a store" in error.message
    assert "AWS_ENDPOINT_URL" in error.hint


@pytest.mark.parametrize("missing", [(404, "NoSuchKey"), (403, "AccessDenied"), (404, "")])
def test_an_empty_bucket_is_empty(server: AnyAnswer, missing: tuple[int, str]):
    """A store that says that it has no object, or does not say it, is a store."""
    status, code = missing
    body = xml(code) if code else b""
    server.answer = Answer(name="", status=status, body=body, says=(), hints=None)
    empty = Answer(name="", status=200, body=listing(keys=0), says=(), hints=None)
    server.choose = lambda _method, path: empty if "list-type" in path else None
    assert list_keys(open_store("s3://bucket/pre"), "") == []


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("answer", ODD_LISTINGS, ids=ids)
def test_a_listing_that_cannot_be_read_is_a_failure_of_the_store(
    server: AnyAnswer, scheme: str, answer: Answer
):
    """No value in a listing raises an exception that would end a start."""
    server.answer = answer
    error = ask(scheme, "list")
    assert find_fault(answer, error) == "", str(error)
    assert "give the process" not in error.hint


# --- TLS ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


LISTING = Answer(name="", status=200, body=listing(), says=(), hints=None)


@pytest.mark.parametrize(
    ("certificate", "trusted", "says", "hints"),
    [
        ("good", "", "not signed by a known CA", "AWS_CA_BUNDLE"),
        ("other host", "ca", "another host name", "host name"),
        ("expired", "ca", "has expired", "clock"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_explained(  # noqa: PLR0917
    certificates: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    certificate: str,
    trusted: str,
    says: str,
    hints: str,
):
    """The cause is named, and the start does not try again: the certificate stays the same."""
    if trusted:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates[trusted]))
    with any_answer(certificates[certificate]) as server:
        server.answer = LISTING
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        error = ask("s3", "list")
    assert type(error) is StoreDenied
    assert says in error.message
    assert hints in error.hint


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
@pytest.mark.parametrize("has_proxy_exceptions", [False, True])
def test_a_private_ca_can_be_named(
    certificates: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    has_proxy_exceptions: bool,
):
    monkeypatch.setenv(variable, str(certificates["ca"]))
    if has_proxy_exceptions:
        monkeypatch.setenv("AWS_PROXY_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_PROXY_EXCLUDES", "127.0.0.1")
    with any_answer(certificates["good"]) as server:
        server.answer = LISTING
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert list_keys(open_store("s3://bucket/pre"), "") == ["0"]


def test_other_settings_hold_with_a_private_ca(
    server: AnyAnswer, certificates: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
):
    """AWS_CA_BUNDLE does not switch AWS_ALLOW_HTTP off."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates["ca"]))
    server.answer = LISTING
    assert list_keys(open_store("s3://bucket/pre"), "") == ["0"]


def test_a_ca_file_that_is_not_mounted_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", "/not/mounted/ca.pem")
    with pytest.raises(StoreDenied, match=r"AWS_CA_BUNDLE=/not/mounted/ca\.pem"):
        open_store("s3://bucket")


def test_https_to_a_port_without_tls_is_explained(
    server: AnyAnswer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("http:", "https:"))
    error = ask("s3", "list")
    assert type(error) is StoreDenied
    assert "does not speak TLS" in error.message
    assert "AWS_ALLOW_HTTP=true" in error.hint


def test_http_to_a_port_with_tls_is_explained(
    certificates: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
):
    with any_answer(certificates["good"]) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("https:", "http:"))
        error = ask("s3", "list")
    assert "https://" in error.hint


# --- credentials -------------------------------------------------------------------------------
@pytest.fixture
def web_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("a token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/replica")


@pytest.mark.usefixtures("web_identity")
def test_an_sts_endpoint_without_encryption_is_named(
    server: AnyAnswer, monkeypatch: pytest.MonkeyPatch
):
    """AWS_ALLOW_HTTP does not apply to STS, so the hint does not name this variable."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    error = ask("s3", "list")
    assert type(error) is StoreDenied
    assert "AWS_ENDPOINT_URL_STS" in error.hint
    assert "ALLOW_HTTP" not in error.hint


@pytest.mark.usefixtures("web_identity")
@pytest.mark.parametrize(
    ("status", "body", "hints"),
    [
        (400, xml("ExpiredTokenException"), "renew the credentials"),
        (403, xml("AccessDenied"), "role"),
        (200, PAGE, "role"),
    ],
)
def test_a_refusal_of_sts_is_about_credentials(
    certificates: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
    hints: str,
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates["ca"]))
    with any_answer(certificates["good"]) as sts:
        sts.answer = Answer(name="", status=status, body=body, says=(), hints=None)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        error = ask("s3", "list")
    assert type(error) is StoreDenied
    assert "no credentials" in error.message
    assert hints in error.hint
    assert "s3:GetObject" not in error.hint


@pytest.mark.parametrize("named_by", ["AWS_PROFILE", "~/.aws"])
def test_a_profile_that_is_not_read_is_named(
    server: AnyAnswer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
):
    """If the credentials are only in a profile, the hint says how to pass them on."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
    server.answer = Answer(name="", status=404, says=(), hints=None)
    assert "profile" not in ask("s3", "list").hint.lower()
    if named_by == "AWS_PROFILE":
        monkeypatch.setenv("AWS_PROFILE", "work")
    else:
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws" / "credentials").write_text("[default]\n")
    assert "aws configure export-credentials" in ask("s3", "list").hint
