# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What is taken out of a text, what is left in it, and that no text takes long."""

from __future__ import annotations

import ast
import asyncio
import base64
import html
import json
import logging
import pickle
import re
import traceback
import urllib.parse
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

import secret_forms
import serve_warm
from serve_warm._redaction import (
    HIDDEN,
    describe_error,
    excerpt,
    first_line,
    hide_texts,
    loggable,
    redact,
    tainted,
)
from serve_warm.compiler.cuda_graphs import first_words
from serve_warm.errors import REFUSAL_REASONS, ArtifactRefused, InputError, StoreError
from serve_warm.inputs import Input
from serve_warm.precompile.facts.table import _short, take
from serve_warm.precompile.facts.torch_errors import describe_failure
from serve_warm.replica.serve.calls import Exchange
from serve_warm.stores.bucket_answers import boil_down
from serve_warm.stores.hub_client import explain_failure

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
SESSION = "FwoGZXIvYXdzEJr//////////wEaDKd+example=="
SIGNED = "b9a1c0ffee5e7d2f4a6c8e0b1d3f5a7c9e2b4d6f8a0c1e3f"
HUB = "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"
WEB_TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJjaSJ9.c2lnbmF0dXJl-_x"
PRIVATE = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v"
PEM = f"-----BEGIN PRIVATE KEY-----\n{PRIVATE}\n-----END PRIVATE KEY-----\n"

PRESIGNED = (
    f"https://bucket.s3.amazonaws.com/blobs/sha256/9f2c?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Credential={KEY_ID}%2F20261120%2Fus-east-1%2Fs3%2Faws4_request"
    f"&X-Amz-Security-Token=FwoGZX%2F%2F&X-Amz-Signature={SIGNED}"
)

# The shapes of messages of boto, obstore, requests, huggingface_hub, Azure, Google; the secrets in
# them; and what must still be there.
# ruff: noqa: ISC004 - a text of two lines is one text
SECRETS = {
    "presigned": (f"GET {PRESIGNED} said 403", (KEY_ID, SIGNED, "FwoGZX"), "amazonaws.com/blobs"),
    "presigned in brackets": (f"failed ({PRESIGNED}), giving up", (SIGNED,), "), giving up"),
    "presigned in quotes": (f'url="{PRESIGNED}" status=403', (SIGNED,), '" status=403'),
    "urllib3": (
        "HTTPSConnectionPool(host='b.s3.amazonaws.com', port=443): Max retries exceeded with "
        f"url: /k?X-Amz-Credential={KEY_ID}&X-Amz-Signature={SIGNED} (Caused by ReadTimeout)",
        (KEY_ID, SIGNED),
        "url: /k?[hidden] (Caused by ReadTimeout)",
    ),
    "query without names": (f"https://h/x?{SIGNED}", (SIGNED,), "https://h/x?"),
    "old presigned": (
        f"http://h/b/k?AWSAccessKeyId={KEY_ID}&Expires=1&Signature={SIGNED}",
        (KEY_ID, SIGNED),
        "http://h/b/k",
    ),
    "azure shared": (
        f"https://acc.blob.core.windows.net/c/k?sv=2024-11-04&se=2026&sig={SIGNED}%3D: 404",
        (SIGNED,),
        "blob.core.windows.net/c/k",
    ),
    "azure token alone": (f"se=2026-11&sp=r&sig={SIGNED}", (SIGNED,), "sp=r"),
    "azure connection": (
        f"DefaultEndpointsProtocol=https;AccountName=acc;AccountKey={SECRET}==;EndpointSuffix=x",
        (SECRET,),
        "AccountName=acc",
    ),
    "azure header": (f"SharedKey acc:{SECRET}=", (SECRET,), "SharedKey"),
    "google shared": (
        f"https://storage.googleapis.com/b/k?GoogleAccessId=ci@x&Expires=1&Signature={SIGNED}",
        (SIGNED,),
        "storage.googleapis.com/b/k",
    ),
    "google token": ("token ya29.a0AfH6SMBx-1_y was refused", ("a0AfH6SMBx",), "was refused"),
    "google account": (
        f'{{"client_email": "ci@x", "private_key": "{PRIVATE}", "token_uri": "u"}}',
        (PRIVATE,),
        '"client_email": "ci@x"',
    ),
    "user": (f"https://ci:{SECRET}@host/path", (SECRET, "ci:"), "host/path"),
    "user with an at": (f"https://ci:a@{SECRET}@host/path", (SECRET,), "@host/path"),
    "user alone": (f"https://{HUB}@huggingface.co/x", (HUB,), "@huggingface.co/x"),
    "proxy": (f"proxy ci:{SECRET}@proxy:3128 refused", (SECRET,), "@proxy:3128 refused"),
    "header line": (f"authorization: Bearer {SIGNED}\nhost: h", (SIGNED,), "host: h"),
    "header with parts": (
        f"Authorization: AWS4-HMAC-SHA256 Credential={KEY_ID}/20261120/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={SIGNED}",
        (KEY_ID, SIGNED),
        "Authorization: ",
    ),
    "parts alone": (f"Credential={KEY_ID}/2026, Signature={SIGNED}", (KEY_ID, SIGNED), ""),
    "headers as a mapping": (
        f"{{'Authorization': 'Bearer {SIGNED}', 'x-amz-security-token': '{SESSION}', 'Host': 'h'}}",
        (SIGNED, SESSION),
        "'Host': 'h'",
    ),
    "headers as bytes": (
        f"[(b'authorization', b'Bearer {SIGNED}'), (b'host', b'h')]",
        (SIGNED,),
        "(b'host', b'h')",
    ),
    "headers as pairs": (
        f'[("X-Amz-Security-Token", "{SESSION}"), ("Host", "h")]',
        (SESSION,),
        '("Host", "h")',
    ),
    "basic": (f"Proxy-Authorization: Basic {SECRET}=", (SECRET,), ""),
    "basic alone": ("sent Basic dXNlcjpwYXNzd29yZA== there", ("dXNlcjpw",), "there"),
    "bearer alone": (f"sent bearer {SIGNED} there", (SIGNED,), "there"),
    "xet": (f"x-xet-access-token: {SIGNED}", (SIGNED,), "x-xet-access-token"),
    "cookie": (f"Set-Cookie: session={SIGNED}; Path=/", (SIGNED,), "Set-Cookie"),
    "customer key": (
        f"x-amz-server-side-encryption-customer-key: {SECRET}",
        (SECRET,),
        "x-amz-server-side",
    ),
    "environment": (
        f"AWS_ACCESS_KEY_ID={KEY_ID} AWS_SECRET_ACCESS_KEY={SECRET} AWS_SESSION_TOKEN={SESSION} "
        f"AZURE_CLIENT_SECRET={SECRET} AZURE_STORAGE_ACCOUNT_KEY={SECRET}== HF_TOKEN={HUB} X=1",
        (KEY_ID, SECRET, SESSION, HUB),
        "X=1",
    ),
    "environment as a mapping": (
        f"environ({{'AWS_SECRET_ACCESS_KEY': '{SECRET}', 'MY_TOKEN': 'abc', 'A': 'b'}})",
        (SECRET, "abc"),
        "'A': 'b'",
    ),
    "arguments": (
        f"S3Store(bucket='b', aws_secret_access_key='{SECRET}', session_token=\"{SESSION}\", x=1)",
        (SECRET, SESSION),
        "bucket='b'",
    ),
    "metadata service": (
        f'{{"AccessKeyId" : "{KEY_ID}", "SecretAccessKey" : "{SECRET}", "Token" : "{SESSION}"}}',
        (KEY_ID, SECRET, SESSION),
        "",
    ),
    "JSON in JSON": (
        f'{{"body": "{{\\"SecretAccessKey\\": \\"{SECRET}\\", \\"Code\\": 1}}"}}',
        (SECRET,),
        "Code",
    ),
    "XML": (
        f"<SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{SESSION}</SessionToken>"
        "<Code>ExpiredToken</Code>",
        (SECRET, SESSION),
        "<Code>ExpiredToken</Code>",
    ),
    "XML of a denied request": (
        f"<AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId><SignatureProvided>x</SignatureProvided>",
        (KEY_ID,),
        "",
    ),
    "hub token": (f"Invalid user token {HUB}.", (HUB,), "Invalid user token"),
    "hub token in a path": (f"/home/{HUB}/x", (HUB,), "/home/"),
    "hub organisation": ("api_org_qWeRtYuIoP", ("qWeRtYuIoP",), ""),
    "other tokens": ("ghp_abcDEF123456 github_pat_11AB_cdEF", ("abcDEF", "cdEF"), ""),
    "key id": (f"The key {KEY_ID} does not exist", (KEY_ID,), "does not exist"),
    "web token": (f"assertion {WEB_TOKEN} expired", (WEB_TOKEN, "eyJzdWIi", "c2lnbm"), "expired"),
    "PEM": (f"in {PEM} here", (PRIVATE,), "here"),
    "PEM of another kind": (PEM.replace("PRIVATE", "RSA PRIVATE"), (PRIVATE,), ""),
    "PEM cut short": (PEM[:60], (PRIVATE[:20],), ""),
    "PEM in one line": (PEM.replace("\n", "\\n"), (PRIVATE,), ""),
    "cut short in quotes": (f'{{"token": "{SIGNED}', (SIGNED,), ""),
    "password": (f"password: {SECRET}, user: ci", (SECRET,), "user: ci"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_taken_out_and_the_rest_is_left(name: str):
    """Whatever shape a client gives a credential, none of it is left, and the context is."""
    text, secrets, kept = SECRETS[name]
    assert all(secret in text for secret in secrets), "the test itself"

    redacted = redact(text)

    assert [secret for secret in secrets if secret in redacted] == []
    assert HIDDEN in redacted
    assert kept in redacted
    assert redact(redacted) == redacted, "a redacted text does not change again"


FORMS = secret_forms.texts()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_table_is_hidden(form: str):
    """Each token, name and option, in each shape in which programs and servers write it."""
    redacted = [redact(text) for text, _ in FORMS[form]]

    for (text, secrets), shown in zip(FORMS[form], redacted, strict=True):
        assert [secret for secret in secrets if secret not in text] == [], "the test itself"
        assert [secret for secret in secrets if secret in shown] == [], shown
        assert redact(shown) == shown


def test_an_ordinary_text_is_searched_by_no_pattern(monkeypatch: pytest.MonkeyPatch):
    """Otherwise each text of a start would cost ten times as much, or a compile of the patterns."""
    searched = []
    monkeypatch.setattr(re, "sub", lambda pattern, _, text, **__: searched.append(pattern) or text)

    for text in ORDINARY[1:8]:
        redact(text)
    assert searched == []
    redact("password=x")

    assert len(searched) == 2


ORDINARY = (
    "",
    f"part cache: sha256 is {SIGNED}, but the manifest says {SIGNED[:16]}",
    f"sha256:{SIGNED}{SIGNED[:16]}",
    f"blobs/sha256/{SIGNED}: no object 'blobs/sha256/{SIGNED}'",
    "s3://bucket/prefix/statements/Embedder/0123456789abcdef-g2.dsse.json",
    "hf://owner/repo@0123456789abcdef0123456789abcdef01234567/prefix: HTTP 403 Forbidden",
    "file:///srv/artifacts: cannot read 'blobs/x': No such file or directory",
    "az://container/prefix gs://bucket",
    "http://127.0.0.1:9000/bucket/key: connection refused",
    "PUT https://host:8443/b/k said 412 (PreconditionFailed)",
    "a token of 3 words, the signature of 'ci' (0123456789abcdef) does not belong to it",
    "reason=bad_signature: the signature of 'ci' is wrong; signature: (8, 16) float32",
    "no credentials: the environment has none; credential for x",
    "tokens: 17, tokenizer=bert, key='x', keys: 3",
    "ci@builder.example and python3.11: 12:30:05.123 warm",
    "registry/image:tag@sha256:0123",
    "basic settings, Basic auth, bearer authentication. Bearer tokens",
    "hf_hub_download and hf_transfer and hf_xet are clients",
    "what? who? /path/to?x",
    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----",
    "verdict=refused reason=digest_mismatch bytes=3 in 0.1 s",
    "a task-1234567890abcdef0 on disk-1234567890abcdef0, and sk-learn",
    "build_hf_headers, npm_lifecycle_event, glc_client, EAAccess, fw_version, key-value-store",
    "date -u +%Y-%m-%dT%H:%M:%SZ; docker run --user 1000:1000 app; mysql is down",
    "the option --password is missing, and --token must be set; run --help",
    "no GOOGLE_APPLICATION_CREDENTIALS=/var/run/key.json and aws_credentials: ~/.aws/credentials",
    "a quiet pass: 3, passes=2, the author: ci, compass=north, a sort key: name",
    "hf://owner/repo@0123 and http://127.0.0.1:9000/b@2/k and s3://bucket/a@b/c",
    f"key-{SIGNED}{SIGNED[:16]} AC{SIGNED.upper()} SK{SIGNED}{SIGNED[:16]}",
    "fw_outs_saved_for_bw_1 and bw_graph_2 in sk_buff, some_path: x, disk_pattern = 3",
    "slack.com/services and example.org/webhooks/list",
    *REFUSAL_REASONS,
)


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_text_is_left_alone(text: str):
    """Digests, addresses, keys of a store and words about credentials are what errors are for."""
    assert redact(text) == text


def literals() -> list[tuple[str, str]]:
    """Return every text of the package that is passed to something, with where it stands."""
    found = []
    for path in sorted(Path(serve_warm.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                found += [(f"{path.name}:{node.lineno}", text_of(each)) for each in given]
    return found


def text_of(node: ast.expr) -> str:
    """Return a literal with a word in each of its gaps."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(value.value) if isinstance(value, ast.Constant) else "word" for value in node.values
        )
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.slow
def test_no_message_or_hint_of_the_package_is_redacted():
    """Advice that names a variable or a setting of credentials is read as it was written."""
    texts = [(where, text) for where, text in literals() if " " in text]

    assert len(texts) > 200
    assert [(where, text) for where, text in texts if redact(text) != text] == []


# --- errors --------------------------------------------------------------------------------


def test_an_error_never_shows_a_secret():
    """This covers message, hint, text, repr, traceback and pickled form."""
    error = ArtifactRefused(f"GET {PRESIGNED}", reason="denied", hint=f"token={SESSION}")

    again = pickle.loads(pickle.dumps(error))

    for each in (error, again):
        shown = [each.message, each.hint, str(each), repr(each), *map(str, each.args)]
        shown += traceback.format_exception(each)
        assert "GET https://bucket" in each.message
        assert [text for text in shown if SIGNED in text or SESSION in text] == []
    assert SIGNED.encode() not in pickle.dumps(error)
    assert (again.message, again.hint, again.reason) == (error.message, error.hint, "denied")


def test_the_cause_that_stands_for_an_sdk_has_no_secret(caplog: pytest.LogCaptureFixture):
    """A logged traceback names the exception inside, without its values."""

    class ClientError(Exception):
        def __init__(self) -> None:
            super().__init__(f"GET {PRESIGNED} said 403")
            self.request = {"Authorization": SECRET}

    try:
        try:
            raise ClientError
        except ClientError as error:
            raise StoreError("cannot read", hint="") from tainted(error)
    except StoreError as error:
        cause = error.__cause__
        logging.getLogger("test").exception("it broke")

    assert "ClientError: GET https://bucket.s3.amazonaws.com/blobs/sha256/9f2c?[hidden]" in str(
        cause
    )
    assert "said 403" in caplog.text
    assert [secret for secret in (SIGNED, SECRET, KEY_ID) if secret in caplog.text] == []
    assert SIGNED not in repr(vars(cause)) + repr(cause)


# --- values of credential variables ----------------------------------------------------------

ECHOED = "correct horse/battery+staple"
"""A credential without a look of its own."""

CREDENTIAL_VARIABLES = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_SSE_CUSTOMER_KEY_BASE64"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
    *("AZURE_CLIENT_SECRET", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    *("GOOGLE_API_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY", "CLOUDSDK_AUTH_ACCESS_TOKEN"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN", "REDIS_PASSWORD"),
    *("MYSQL_PWD", "DB_PASS", "GITHUB_PAT", "OPENAI_KEY"),
)


@pytest.mark.parametrize(
    "spelt",
    [
        urllib.parse.quote,
        lambda value: re.sub("%..", lambda e: e[0].lower(), urllib.parse.quote(value, safe="")),
        lambda value: json.dumps(value).replace("/", "\\/"),
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: value.encode().hex(),
        html.escape,
    ],
    ids=["path", "lower-case escapes", "json", "base64", "hex", "xml"],
)
def test_a_credential_is_hidden_in_any_common_spelling(monkeypatch, spelt):
    """Servers answer in JSON and XML, and put received values into addresses."""
    monkeypatch.setenv("HF_TOKEN", ECHOED + "&<")

    text = redact(f"it said: {spelt(ECHOED + '&<')}.")

    assert HIDDEN in text
    assert "correct" not in text
    assert "staple" not in text


def test_half_of_a_secret_of_several_lines_does_not_stay(monkeypatch):
    """A shown error is cut only after its secrets are hidden."""
    monkeypatch.setenv("DB_PASS", "correct horse\nbattery staple")

    assert "correct" not in describe_error(ValueError("login correct horse\nbattery staple failed"))


@pytest.mark.parametrize("name", sorted({*CREDENTIAL_VARIABLES, *secret_forms.VARIABLES}))
@pytest.mark.parametrize(
    "shape", ["no user {} here", "at http://h/{quoted}/x", "body: {!r}", "{}", "x{}x {}"]
)
def test_the_value_of_a_credential_variable_is_hidden(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: str
):
    """A server may echo a credential without any marker."""
    monkeypatch.setenv(name, ECHOED + "\n")
    text = shape.replace("{quoted}", "correct%20horse%2Fbattery%2Bstaple").format(ECHOED, ECHOED)

    redacted = redact(text)

    assert "correct" not in redacted
    assert "staple" not in redacted
    assert HIDDEN in redacted
    assert redact(redacted) == redacted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "minimal"),  # shorter than any credential, and a word
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("HF_TOKEN_PATH", "/var/run/secrets/token"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/secrets/token"),
        ("AWS_CREDENTIALS", "~/.aws/credentials"),
        ("RAY_AUTH_MODE", "disabled-here"),
        ("GIT_AUTHOR_NAME", "continuous-integration"),
        ("KEYBOARD", "international"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "warmaccount"),
        ("AWS_REGION", "eu-central-1"),
        ("TOKENIZERS_PARALLELISM", "everywhere"),
        ("PWD", "/srv/application"),
    ],
)
def test_what_is_no_credential_is_still_read(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    """Addresses, regions and files are what errors are for."""
    monkeypatch.setenv(name, value)

    text = f"cannot read from {value} in minimal time"
    assert redact(text) == text


def test_a_logged_traceback_has_no_value_of_a_credential_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Neither the exception nor its causes show the value. The lines of code stay."""
    monkeypatch.setenv("HF_TOKEN", ECHOED)
    try:
        try:
            raise ValueError(f"the server says: {ECHOED}")
        except ValueError as error:
            raise RuntimeError(f"no answer for {ECHOED}") from error
    except RuntimeError as error:
        logging.getLogger("test").warning("it broke", exc_info=loggable(error))

    assert ECHOED not in caplog.text
    assert "builtins.RuntimeError: no answer for [hidden]" in caplog.text
    assert "builtins.ValueError: the server says: [hidden]" in caplog.text
    assert caplog.text.count(Path(__file__).name) >= 2


# --- texts of requests -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guard", "shown"),
    [
        ("0/0: user == 'a@b.c'  # return f(user)", "0/0: user == str[5]  # return f(user)"),
        (r"""user == 'it\'s "me"\nhere'""", "user == str[14]"),
        (r"user is 'a\\' or y", "user is str[2] or y"),
        ('user == "it\'s"', "user == str[4]"),
        ("body == b'\\x00a'", "body == bytes[2]"),
        ("tags == {'bob@x'}", "tags == {str[5]}"),
        ("tags == ['bob']", "tags == [str[3]]"),
        ("tags in [['bob']]", "tags in [[str[3]]]"),
        ("___dict_contains('a@b.c', opts)", "___dict_contains(str[5], opts)"),
        ("opts['mode'] == 'fast'", "opts['mode'] == str[4]"),
        ("opts['a@b.c'] == 'fast'", "opts[str[5]] == str[4]"),
        ("opts == {'k': 'v', 'a b': 2}", "opts == {'k': str[1], str[3]: 2}"),
        ("user == 'no end\nnext 'a'", "user == str[6]\nnext str[1]"),
        ("user == 'no end\\", "user == str[6]"),
    ],
)
def test_a_text_is_shown_by_type_and_length(guard: str, shown: str):
    """Guards of torch compare texts of requests, which must stay private."""
    assert hide_texts(guard) == shown


@pytest.mark.parametrize(
    "guard",
    [
        "L['self']._modules['encoder']._modules['0'].scale == 2.0",
        "tensor 'x' size mismatch at index 0. expected 2, actual 3",
        "tensor 'batch['input_ids']' dtype mismatch. expected Float, actual Half",
        "___check_type_id(tags, 14018), type=<class 'app.Tags'>",
        '  File "/srv/app/model.py", line 11, in forward',
        "stance is 'fail_on_recompile'. filename: '/srv/m.py', function name: 'f', line number: 1",
        "# doesn't change",
    ],
)
def test_what_names_code_stays(guard: str):
    """A reason without the attribute, the file or the tensor would be of no use."""
    assert hide_texts(guard) == guard


def test_a_tensor_under_a_key_of_a_request():
    """The key of a mapping is a text, unless it reads as a name."""
    assert hide_texts("tensor 'b['a@b']' size mismatch") == "tensor 'b[str[3]]' size mismatch"


# --- time ----------------------------------------------------------------------------------

LONG = 1 << 18
PIECES = (
    *("a", "a.", "a-", "a:", "a:@", "://", "a://", "a://b@", "?", "?a=", "?a", " ", "@", "eyJ"),
    *("eyJ-", "eyJa.", "bearer ", "basic ", "Basic A", "token", "token ", "token=", 'token="'),
    *("token:'", "'token', ", "token\\", "authorization:", "authorization: ", "authorization"),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "A", "AKIA", "hf_", "SharedKey a", "key", "k_"),
    *("secret_", "Signature=", "Credential=a, ", "\\", '"', "'", "<Token>", "x@y:"),
    *("sk-", "sk-1", "xoxb-", "eyJaaaaaaaa.aaaa.", "1:AA", "12345678:AA", "a.atlasv1.", "aaa8Q~"),
    *("--a-", "--password ", "--", "-u a:", "mysql -", "mysql ", "password ", "password '"),
    *("login a ", "login a password ", "cookie: ", 'cookie: a="', "token =>", '<token a="', "%3d"),
    *(
        "a_credentials=",
        ":=",
        "SG.a",
        "SG.aaaaaaaaaa.",
        "AKCp",
        "sl.",
        "sl.1.",
        "glpat-",
        "glpat-.",
    ),
    *('token="\\', "token='\\'", 'password" value="', "api key", "hooks.slack.com/services/"),
    *("a://b:c/", "a://b:c", "A3-", "identified by ", "-----BEGIN PGP PRIVATE KEY BLOCK-----"),
    *("b'", "\\'", "tensor 'a", "tensor 'a['", "tensor 'a.", "type of 'a[0]", 'File "', "'a': "),
)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_no_long_text_takes_longer_than_its_length():
    """A server that sends hundreds of kilobytes of almost a secret does not delay a start."""
    # One that took the square of its length would need minutes for each of these.
    for piece in PIECES:
        redact(piece * (LONG // len(piece)))
        hide_texts(piece * (LONG // len(piece)))


def test_what_another_replica_raised_is_told_by_its_cause():
    """Ray's own text begins with the name of the process, which no hint follows from."""
    carried = RayTaskError("ServeReplica:shop:Ranker", "Traceback\n...", KeyError("no weights"))

    assert describe_error(carried.as_instanceof_cause()) == "KeyError: 'no weights'"


def test_an_error_is_cut_after_it_is_redacted():
    """Half a secret would not be recognised."""
    text = "x" * 270 + "https://user:" + "hunter2" * 10 + "@example.org/a"

    assert "hunter" not in describe_error(ValueError(text))


SLICES = {
    # Where a text is cut without `excerpt`, and why that is no text of others.
    "_state_file": {"stem[:100]"},  # names
    "artifact.choose": {"refused[:SHOWN_VARIANTS]", "nearest[:SHOWN_VARIANTS]"},  # records
    "artifact.newest_seen": {
        "self._digest()[:32]",
        "marks[:-MAX_MARKS]",
    },
    "artifact.statements": {"name[:100]"},  # of an object, which the name makes
    "builder.check_store": {"others[:MOST_NAMED]"},  # whole names
    "builder.portable": {"found[:SHOWN]"},  # instructions
    "builder.sample_values": {  # a text of our own
        "(TEXT * (least // len(TEXT) + 1))[:max(least, min(len(TEXT), most))]"
    },
    "cli.explaining": {"more[:SHOWN_LINES]"},  # whole lines
    "learn.any_size": {"by_calls[:MOST_OF_THEIR_OWN]"},  # recorded calls
    "learn.call_files": {"hashlib.sha256(joined.encode()).hexdigest()[:32]"},
    "learn.recorder": {"by_use[:COUNTED_KEPT // 2]"},  # kinds of calls
    "learn.request_recorder": {
        "hashlib.sha256(json.dumps([handler, *names]).encode()).hexdigest()[:32]"
    },
    "node_server.ledger": {"dead[:max(0, len(dead) - REMEMBERED)]"},  # records
    "private_apis.sources": {"hashlib.sha256(text.encode()).hexdigest()[:SIZE]"},
    "precompile.builders.assigned": {"short[:SHOWN]"},  # names of changed objects
    "precompile.entries.table": {"hashlib.sha256(data).hexdigest()[:32]"},
    "precompile.changes.model_state": {  # items
        "[*dict.items(value)][:ITEMS_READ]",
        "items[:ITEMS_READ]",
    },
    "replica.replay.call_evidence": {  # whole texts
        "[f'{function}: {why}' for function, why in given_up.items()][:MOST_NAMED]"
    },
    "replica.start.load": {
        "sorted(trace, key=lambda considered: not considered.accepted)[:TRACE_LINES]",  # records
        "[*map(str, facts.get(NARROW) or ())][:MOST_LINES]",  # whole lines
        "[*map(str, facts.get(UNVARIED) or ())][:MOST_LINES]",
    },
    "replica.replay.narrow": {  # records
        "_group(items, owner)[:MOST_GROUPS]",
        "axes[:AXES_SHOWN]",
        "found[:MOST_GROUPS]",
        "sorted(pairs)[:MOST_PAIRS]",
    },
    "replica.serve.calls": {"(self._answer + message.get('body', b''))[:KEPT_BYTES]"},  # long
    "replica.start.proof": {  # whole paths and names
        "uncalled[:MOST_UNCALLED]",
        "methods[:MOST_UNCALLED]",
    },
    "report": {"eager[:LINES_OF_EAGER]", "rest[:LINES_OF_LEVEL_1]"},  # records
    "artifact.pull": {"sorted(others)[:SHOWN_VARIANTS]"},  # names of applications
}
SHORTENED = {
    # Types, lengths and numbers of a call, and what torch says of it without its texts.
    "inputs": 2,
    "precompile.calls.signature": 1,
    "report": 1,
}
FEW = 30
"""Characters of which a credential shows little; a digest is shown with 16."""


def cuts(source: str) -> tuple[set[str], int]:
    """Return the slices from the start that keep more than a few, and the calls of `shorten`."""
    slices, calls = set(), 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "shorten":
            calls += 1
        if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
            continue
        upper = node.slice.upper
        is_many = isinstance(upper, ast.Constant) and isinstance(upper.value, int)
        is_many = is_many and upper.value >= FEW
        if node.slice.lower is None and (
            is_many or (re.search("[A-Z]{3}", ast.unparse(upper or node.value)) and upper)
        ):
            slices.add(ast.unparse(node))
    return slices, calls


@pytest.mark.slow
def test_no_text_of_others_is_cut_before_it_is_redacted():
    """Half of a credential is found by nobody, so `excerpt` is what cuts, and the rest is known."""
    package = Path(serve_warm.__file__).parent
    slices, shortened = {}, {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        if name in ("_redaction", "node"):  # its home, and what knows the standard library alone
            continue
        found, calls = cuts(path.read_text())
        if found:
            slices[name] = found
        if calls:
            shortened[name] = calls

    assert slices == SLICES
    assert shortened == SHORTENED


PLACES = {
    "a bucket": lambda text: boil_down(ValueError(text)),
    "the Hub": lambda text: explain_failure(ValueError(text))[1],
    "a capture": lambda text: first_words(RuntimeError(text), None),
    "torch": lambda text: describe_failure(RuntimeError(text)),
    "a path of facts": lambda text: take({}, "item", text).why,
    "a fact": _short,
    "anything": lambda text: excerpt(text, 300),
    "a first line": lambda text: first_line(text, 300),
}


@pytest.mark.parametrize("place", PLACES)
def test_half_of_a_credential_does_not_stay_anywhere(monkeypatch: pytest.MonkeyPatch, place: str):
    """Wherever a text is cut, and whatever stands before the credential in it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    shown = [PLACES[place]("x" * before + SECRET + "y" * 400) for before in range(0, 420, 7)]

    assert [text for text in shown if SECRET[:6] in text] == []


def test_an_answer_of_an_app_is_cut_after_it_is_redacted(monkeypatch: pytest.MonkeyPatch):
    """Whatever the sizes are that it comes in."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    request = Exchange(Input(target="GET /", name="one"), "GET", "/")

    async def answer() -> None:
        await request.send({"type": "http.response.start", "status": 500})
        for piece in ("x" * 490, SECRET[:10], SECRET[10:], "y" * 100_000):
            await request.send(
                {"type": "http.response.body", "body": piece.encode(), "more_body": True}
            )

    asyncio.run(answer())
    with pytest.raises(InputError) as caught:
        request.raise_for_status()

    assert SECRET[:6] not in caught.value.message
