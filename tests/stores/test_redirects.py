# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Redirects and links to another host: no credential goes there, and the error names the cause."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from redirecting import SECRET, Redirected, credentials, redirecting
from serve_warm.errors import ServeWarmError, StoreDenied
from serve_warm.stores import list_keys, open_store
from serve_warm.stores.hub import HubStore
from serve_warm.stores.redirects import confine
from store_answers import any_answer, bucket_environment

CREDENTIALS = tuple(credentials("http://127.0.0.1:1", Path(os.devnull).parent / "shm"))


@pytest.fixture
def servers() -> Iterator[Redirected]:
    with redirecting() as running:
        yield running


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or "PROXY" in name.upper():
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("name", CREDENTIALS)
@pytest.mark.parametrize("request_", ["list", "read", "write"])
def test_a_redirect_of_a_bucket_takes_no_credential_along(
    servers: Redirected, name: str, request_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri, environ = credentials(servers.url, tmp_path)[name]
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    store = open_store(uri)
    ask = {
        "list": lambda: list_keys(store, "statements/"),
        "read": lambda: store.get("statements/a", max_bytes=100),
        "write": lambda: store.create("statements/a", b"1"),
    }

    try:
        ask[request_]()
    except ServeWarmError as error:
        said = str(error)
    else:
        said = ""

    assert servers.asked
    assert not servers.leaked
    if name in ("S3 with a session token", "Azure with a SAS token"):
        assert servers.seen == []
        assert "redirects to another host, which would receive the credentials" in said
        assert SECRET not in said


@pytest.mark.parametrize(
    ("environ", "confined"),
    [
        ({"AWS_ENDPOINT_URL": "https://minio.local:9000"}, True),
        ({}, False),
        ({"AWS_ENDPOINT_URL": "https://minio.local", "https_proxy": "http://proxy:1"}, False),
        ({"AWS_ENDPOINT_URL": "https://minio.local", "HTTPS_PROXY": ""}, True),
        ({"AWS_ENDPOINT_URL": "http://[not an address"}, False),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}, True),
        ({"AWS_ENDPOINT_URL": "http://[fd00::1]:9000"}, True),
        ({"AWS_ENDPOINT_URL": "http://xn--bcher-kva.example"}, True),
        *(
            ({"AWS_ENDPOINT_URL": f"http://{host}:9000"}, False)
            for host in ("127.1", "0x7f.1", "store.0x7f", "[fd00:0::1]", "bücher.example", "a%62")
        ),
    ],
)
def test_only_a_foreign_server_without_a_proxy_is_confined(environ: dict[str, str], confined: bool):
    """AWS redirects to its own hosts. A proxy that the operator needs stays."""
    assert bool(confine("s3", environ)) == confined


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("host", ["127.1", "0x7f.0.0.1", "2130706433"])
def test_a_store_is_reached_whatever_the_spelling_of_its_host(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with any_answer() as server:
        url = server.url.replace("127.0.0.1", host)
        for name, value in bucket_environment(url, tmp_path).items():
            monkeypatch.setenv(name, value)
        with suppress(ServeWarmError):
            open_store("s3://bucket/pre").get("statements/a", max_bytes=1)
        assert server.requests


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("more", ["AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_SECRET"])
def test_an_azure_login_server_is_reached_beside_a_sas_token(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A client prefers the login, whose server is on another host than the store."""
    (tmp_path / "token").write_text(SECRET)
    with any_answer() as server, any_answer() as login:
        environ = bucket_environment(server.url, tmp_path)
        del environ["AZURE_STORAGE_ACCOUNT_KEY"]
        environ |= {
            "AZURE_STORAGE_SAS_KEY": "sv=1&sig=x",
            "AZURE_AUTHORITY_HOST": login.url.replace("127.0.0.1", "localhost"),
            "AZURE_CLIENT_ID": "id",
            "AZURE_TENANT_ID": "tenant",
            more: str(tmp_path / "token"),
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with suppress(ServeWarmError):
            open_store("az://bucket/pre").get("statements/a", max_bytes=1)
        assert login.requests


@pytest.fixture
def hub(servers: Redirected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStore]:
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, servers.url)
    monkeypatch.setattr(constants, "ENDPOINT", servers.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    yield HubStore(repository="owner/name", silence_s=20)
    huggingface_hub.close_session()


def test_a_next_page_on_another_host_is_refused(servers: Redirected, hub: HubStore):
    with pytest.raises(StoreDenied) as caught:
        list_keys(hub, "")
    assert servers.seen == []
    assert f"the listing continues on another host, {servers.other}" in str(caught.value)
    assert "HF_ENDPOINT" in caught.value.hint


def test_a_file_on_another_host_is_read_without_the_token(servers: Redirected, hub: HubStore):
    """As large files, which the Hub sends from a CDN with a signed URL."""
    assert hub.get("statements/a", max_bytes=100) == b"[]"
    assert servers.seen
    assert not servers.leaked


def test_an_answer_about_files_on_another_host_gets_no_token(servers: Redirected, hub: HubStore):
    """A redirected request for JSON is followed, but without the token."""
    with pytest.raises(ServeWarmError):
        hub.head("statements/a")
    assert servers.seen
    assert not servers.leaked
