# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Forms in which a text can contain a credential, as a table for tests of the redaction.

The tokens are made up, and are put together here so that scanners do not report this file. The
prefixes are those in the rules of gitleaks 8 and detect-secrets 1.5, and in the pages of providers.
"""

from __future__ import annotations

Forms = dict[str, list[tuple[str, tuple[str, ...]]]]
"""The texts of each form, and the credentials in each text."""

VALUE = "hunter2Xk9Lm4Qp"
"""A password: it has no form by which it could be recognized."""

_MIXED = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zC" * 8
_HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 8
_UPPER = "A2BC3DE4FG5HI6JK7LM2NO3PQ4RS5TU6" * 8


def _tokens() -> dict[str, str]:
    mixed = {
        **dict.fromkeys(("sk-", "gsk_", "hf_", "api_org_"), 34),
        **dict.fromkeys(("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-v1-", "sk-lf-"), 60),
        **dict.fromkeys(("sk-ant-api03-", "sk-ant-admin01-", "sk-ant-oat01-"), 95),
        **dict.fromkeys(("glpat-", "gldt-", "glrt-", "glcbt-1_", "glft-", "glsoat-"), 20),
        **dict.fromkeys(("glimt-", "glagent-", "gloas-", "glffct-", "glptt-", "GR1348941"), 26),
        **dict.fromkeys(("xoxb-1234567890-1234567890-", "xoxp-1-2-3-", "xoxa-2-", "xoxr-"), 24),
        **dict.fromkeys(("xoxe-1-", "xoxe.xoxp-1-", "xoxs-1-2-3-", "xoxd-", "xapp-1-A1-2-"), 32),
        **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_11AB_"), 36),
        **dict.fromkeys(("AIza", "GOCSPX-", "ya29.", "npm_", "pypi-AgEIcHlwaS5vcmc"), 35),
        **dict.fromkeys(("sk_live_", "sk_test_", "rk_live_", "rk_prod_", "whsec_"), 24),
        **dict.fromkeys(("sntrys_eyJpYXQiO", "glc_", "glsa_", "hvs.", "hvb.", "hvr."), 48),
        **dict.fromkeys(("tskey-auth-", "dckr_pat_", "dckr_oat_", "figd_", "fio-u-"), 32),
        **dict.fromkeys(("pplx-", "r8_", "nvapi-", "xai-", "fw_", "csk-", "pcsk_"), 40),
        **dict.fromkeys(("lsv2_pt_", "lsv2_sk_", "sbp_", "sb_secret_", "nfp_", "ntn_"), 40),
        **dict.fromkeys(("lin_api_", "lin_oauth_", "rdme_", "pnu_", "CLOJARS_", "PMAK-"), 40),
        **dict.fromkeys(("pscale_tkn_", "pscale_oauth_", "pscale_pw_", "EZAK", "EZTK"), 54),
        **dict.fromkeys(("AKCp", "cmVmd", "ATATT3", "ATCTT3", "ATBB", "EAAM", "sq0atp-"), 68),
        **dict.fromkeys(("sq0csp-", "EAAA", "LTAI", "dp.pt.", "dp.st.", "ico-", "HRKU-AA"), 43),
        **dict.fromkeys(("fo1_", "fm2_", "duffel_live_", "sm_pat_", "p8e-", "LKH3-ops_eyJ"), 43),
        **dict.fromkeys(("tk-us-", "sha256~", "ABSK", "1//0", "FLWSECK_TEST-", "sl."), 48),
        **dict.fromkeys(("AGE-SECRET-KEY-1", "pat.aB3dE6.", "dop_v1_", "doo_v1_", "dor_v1_"), 58),
    }
    hexadecimal = {
        **dict.fromkeys(("dapi", "SK", "shpat_", "shpca_", "shppa_", "shpss_", "key-"), 32),
        **dict.fromkeys(("pul-", "rubygems_", "sntryu_", "xkeysib-", "sgp_", "shippo_live_"), 40),
    }
    upper = {
        **dict.fromkeys(("AKIA", "ASIA", "AROA", "AIDA", "ABIA", "ACCA"), 16),
        **dict.fromkeys(("NRAK-", "API-"), 27),
    }
    found = {prefix: prefix + _MIXED[:size] for prefix, size in mixed.items()}
    found |= {prefix: prefix + _HEX[:size] for prefix, size in hexadecimal.items()}
    found |= {prefix: prefix + _UPPER[:size] for prefix, size in upper.items()}
    web = f"eyJ{_MIXED[:20]}.eyJ{_MIXED[:30]}.{_MIXED[:43]}"
    return found | {
        "SG.": f"SG.{_MIXED[:22]}.{_MIXED[:43]}",
        "a web token": web,
        "an encrypted web token": f"eyJ{_MIXED[:20]}.{_MIXED[:30]}.{_MIXED[:16]}.{_HEX}.x9Yz",
        "a token of a Telegram bot": f"1234567890:AA{_MIXED[:33]}",
        "a secret of Azure's directory": f"abc8Q~{_MIXED[:33]}",
        "a token of Terraform": f"{_MIXED[:14]}.atlasv1.{_MIXED[:64]}",
        "a key of 1Password": f"A3-{_UPPER[:6]}-{_UPPER[:11]}" + f"-{_UPPER[:5]}" * 3,
    }


TOKENS = _tokens()
"""A token for each prefix that a provider uses."""

TOKEN_SHAPES = (
    "Incorrect API key provided: {}.",
    "{}",
    "GET /v1 with '{}' said 401",
    'it answered {{"error": "bad {}"}}',
    "/home/ci/{}/x",
    "first {},second",
    r"said:\n{}\n",
    "https://h/x%20{}",
)

NAMES = (
    *("password", "passwd", "DB_PASS", "PGPASSWORD", "MYSQL_PWD", "passphrase", "PASSCODE"),
    *("JWT", "MY_JWT", "SIGNING_KEY", "signing_key", "signingKey", "SSH_KEY", "DEPLOY_KEY"),
    *("REGISTRY_AUTH", "registry_auth", "NPM_AUTH", "DB_CREDENTIALS", "db_credentials", "CI_CREDS"),
    *("AWS_CREDENTIALS", "API_KEY", "apikey", "x-api-key", "X-Auth", "STRIPE_KEY", "MASTER_KEY"),
    *("client_secret", "ClientSecret", "SECRET", "SECRET_KEY", "secret_key_base", "TOKEN"),
    *("ACCESS_TOKEN", "refreshToken", "id_token", "PRIVATE-TOKEN", "X-Vault-Token", "AUTH_KEY"),
    *("encryption_key", "HMAC_KEY", "session_key", "license_key", "webhook_key", "GITHUB_PAT"),
    *("AZURE_SAS", "storage_key", "account_key", "Ocp-Apim-Subscription-Key", "API_CREDENTIAL"),
)

NAME_SHAPES = (
    "sent {name}=Bearer {value}",
    '{{"{name}": ["{value}", "b"]}}',
    "{{'{name}': {{'value': '{value}'}}}}",
    "{name}={value}",
    "export {name}='{value}'",
    "{name}: {value}",
    "{name} = {value}, x",
    '{{"{name}": "{value}"}}',
    "{{'{name}': '{value}'}}",
    "('{name}', '{value}')",
    "'{name}' => '{value}'",
    "{name}:={value}",
    '{{\\"{name}\\": \\"{value}\\"}}',
    "<{name}>{value}</{name}>",
    "a%26{name}%3D{value}",
)

OPTIONS = (
    *("--password", "--token", "--api-key", "--secret", "--client-secret", "--access-key"),
    *("--auth-token", "--db-password", "--passphrase", "-Password", "--secret-access-key"),
    *("--signing-key", "--registry-auth", "--jwt", "--aws-credentials", "--pass"),
    *("--accessToken", "--hf_token", "-token"),
)

OPTION_SHAPES = (
    "run {option} Bearer {value}",
    "run {option} {value} x",
    "run {option}={value}",
    "run {option} '{value}' x",
    'run {option}="{value}"',
    "Command '['run', '{option}', '{value}']' failed",
    'run "{option}" "{value}"',
)

VARIABLES = (
    *("JWT", "MY_JWT", "SIGNING_KEY", "COSIGN_KEY", "REGISTRY_AUTH", "NPM_AUTH", "DOCKER_AUTH"),
    *("DB_CREDENTIALS", "AWS_CREDENTIALS", "API_CREDENTIAL", "CI_CREDS", "STRIPE_KEY", "SSH_KEY"),
    *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DB_PASS", "GITHUB_PAT", "MYSQL_PWD"),
    *("DJANGO_SECRET_KEY", "SECRET_KEY_BASE", "VAULT_ROLE_SECRET", "PASSCODE", "SENTRY_DSN"),
    *("SIGNING_KEY_BASE64", "SLACK_WEBHOOK", "SLACK_WEBHOOK_URL"),
    *("AUTHORIZATION", "PROXY_AUTHORIZATION", "BEARER", "AZURE_STORAGE_SAS", "ADMIN_PASSWORDS"),
)
"""Names of environment variables whose values are credentials."""

_LONG = _MIXED[:40]

OTHERS = {
    "a password of curl": (f"curl -u ci:{VALUE} https://h/x", (VALUE,)),
    "a password of curl, in quotes": (f"curl --user 'ci:{VALUE}' https://h/x", (VALUE,)),
    "a password of sshpass": (f"sshpass -p {VALUE} ssh h", (VALUE,)),
    "a password of mysql": (f"mysql -h h -uci -p{VALUE} db", (VALUE,)),
    "a password of redis": (f"redis-cli -h h -a {VALUE} ping", (VALUE,)),
    "an address with a slash in it": (f"postgresql://ci:a/{VALUE}@h:5432/db", (VALUE, "ci:a")),
    "an address with a question in it": (f"redis://:a?{VALUE}@h:6379/0", (VALUE, ":a")),
    "an address with a hash in it": (f"amqp://ci:a#{VALUE}@h/x", (VALUE, "ci:a")),
    "an address of a database": (f"mongodb+srv://ci:{VALUE}@h/db", (VALUE,)),
    "a fragment": (f"https://h/cb#access_token={_LONG}&x=1", (_LONG,)),
    "an address of Java": (f"jdbc:mysql://h/db?user=ci&password={VALUE}", (VALUE,)),
    "a data source": (f"Server=h;User Id=ci;Password={VALUE};Encrypt=yes", (VALUE,)),
    "a short data source": (f"Server=h;Uid=ci;Pwd={VALUE};", (VALUE,)),
    "libpq": (f"connection to host=h user=ci password={VALUE} dbname=x failed", (VALUE,)),
    "a key of Azure's service bus": (
        f"Endpoint=sb://h/;SharedAccessKeyName=x;SharedAccessKey={_LONG}=",
        (_LONG,),
    ),
    "a webhook of Slack": (f"POST https://hooks.slack.com/services/T0/B0/{_LONG}: 404", (_LONG,)),
    "a webhook of Discord": (f"https://discord.com/api/webhooks/12/{_LONG} said 404", (_LONG,)),
    "a webhook of Teams": (f"https://x.webhook.office.com/webhookb2/{_LONG}@1/x/2", (_LONG,)),
    "a bot in an address": (f"https://api.telegram.org/bot123456789:AA{_LONG}/get", (_LONG,)),
    "a second cookie": (f"Cookie: theme=dark; session={_LONG}; x=1", (_LONG,)),
    "cookies of a mapping": (f"{{'Cookie': 'a=b; session={_LONG}', 'Host': 'h'}}", (_LONG,)),
    "a password with a quote in it": (f'{{"password": "a\\"{VALUE}", "x": 1}}', (VALUE,)),
    "a password with a quote, of Python": (f"{{'password': 'a\\'{VALUE}', 'x': 1}}", (VALUE,)),
    "a password after its word": (f"wrong password '{VALUE}' for ci", (VALUE,)),
    "a password after is": (f'the password is "{VALUE}"', (VALUE,)),
    "a password of SQL": (f"ALTER USER ci IDENTIFIED BY '{VALUE}'", (VALUE,)),
    "an attribute of XML": (f'<db user="ci" password="{VALUE}"/>', (VALUE,)),
    "an element with an attribute": (f'<password type="x">{VALUE}</password>', (VALUE,)),
    "a setting of NuGet": (f'<add key="ClearTextPassword" value="{VALUE}" />', (VALUE,)),
    "netrc": (f"machine h login ci password {VALUE}", (VALUE,)),
    "npmrc": (f"//registry.example.org/:_authToken={VALUE}", (VALUE,)),
    "npmrc, old": (f"//registry.example.org/:_auth={VALUE}", (VALUE,)),
    "Docker's settings": (f'{{"auths": {{"h": {{"auth": "{VALUE}"}}}}}}', (VALUE,)),
    "a key of PGP": (
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{_LONG}\n-----END PGP PRIVATE KEY BLOCK-----",
        (_LONG,),
    ),
    "a key of OpenSSH": (
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{_LONG}\n-----END OPENSSH PRIVATE KEY-----",
        (_LONG,),
    ),
    "a key of SSH's old form": (
        f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{_LONG}\n---- END",
        (_LONG,),
    ),
    "a header of an unknown scheme": (f"Authorization: Token {VALUE}", (VALUE,)),
    "a digest": (f'Authorization: Digest username="ci", response="{_LONG}"', (_LONG,)),
    "a bearer without digits": ("sent Authorization Bearer abcDEFghiJKLmno", ("abcDEFghi",)),
    "a cookie that is cut": (f'Cookie: session="{_LONG}', (_LONG,)),
    "a cookie after quotes": (f"Cookie: prefs='x'; session={_LONG}", (_LONG,)),
    "a cookie of JSON": (f'Cookie: {{"a":"{_LONG}"}}', (_LONG,)),
    "a digest with other quotes": (
        f"Authorization: Digest username='ci', response='{_LONG}'",
        (_LONG,),
    ),
    "a signature that is cut": (
        f'Authorization: OAuth oauth_token="x", oauth_signature="{_LONG}',
        (_LONG,),
    ),
    "a scheme in XML": (f"<Authorization>Bearer {VALUE}</Authorization>", (VALUE,)),
    "words for names": (f"API key: {VALUE}", (VALUE,)),
    "more words for names": (f"secret access key = {VALUE}", (VALUE,)),
}
"""Texts of other shapes, with the credentials in them."""


def texts() -> Forms:
    """Return all texts that need no environment variable, by form, with the credentials in them."""
    found: Forms = {
        f"the token {prefix}": [
            (shape.format(token), (token.removeprefix(prefix),)) for shape in TOKEN_SHAPES
        ]
        for prefix, token in TOKENS.items()
    }
    found |= {
        f"the name {name}": [
            (shape.format(name=name, value=VALUE), (VALUE,)) for shape in NAME_SHAPES
        ]
        for name in NAMES
    }
    found |= {
        f"the option {option}": [
            (shape.format(option=option, value=VALUE), (VALUE,)) for shape in OPTION_SHAPES
        ]
        for option in OPTIONS
    }
    return found | {name: [form] for name, form in OTHERS.items()}
