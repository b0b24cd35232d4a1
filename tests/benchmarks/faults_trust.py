# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which bad keys are trusted, and which credentials stay in a text.

    python tests/benchmarks/faults_trust.py --json tests/benchmarks/results/faults.json

A row of kind `trust` has a key, a PEM or base64. Its outcome is `refused`, or `leaked` if trust in
it is possible. For a weak key, each try first forges a signature without a private key. A row of
kind `secret` has a form of a credential, and a try for each text in which it stands. Its outcome is
`hidden`, or `leaked` if a part of the credential is left in one of these texts. `said` is the
message, or the last text that is shown. The rows of `faults_redirects.py` are added. The rows
replace those of both kinds in the file. The exit status is 1 if a row leaked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

import secret_forms  # noqa: E402 - found through the line above
from artifacts import new_key  # noqa: E402
from benchmarks import faults_redirects  # noqa: E402
from benchmarks.fault_rows import FaultRow, add_rows  # noqa: E402
from charts import ENGINES, Refused, example, laid_over  # noqa: E402
from serve_warm._redaction import redact  # noqa: E402
from serve_warm.errors import ServeWarmError  # noqa: E402
from serve_warm.trust.envelope import Envelope, sign  # noqa: E402
from serve_warm.trust.keys import TrustedKey, public_pem  # noqa: E402
from weak_keys import forge, loosen, not_canonical, off_curve, pem_of, small_order  # noqa: E402

KINDS = ("trust", "secret")
TRIES = 10
ECHOED = "correct horse/battery+staple"

Rows = Iterator[FaultRow]


def row(kind: str, name: str, *, tries: int, outcome: str, said: str) -> FaultRow:
    return {"name": name, "kind": kind, "tries": tries, "outcome": outcome, "said": said}


def refuses(name: str, tries: int, trust: Callable[[], object]) -> FaultRow:
    """Return the row of something that must be refused."""
    try:
        trust()
    except (ServeWarmError, Refused) as error:
        said = str(error).strip().replace("\n", " ")[:300]
        return row("trust", name, tries=tries, outcome="refused", said=said)
    return row("trust", name, tries=tries, outcome="leaked", said="it is trusted")


def forged(raw: bytes) -> int:
    """Return for how many messages of `TRIES` a signature can be made without a private key."""
    return sum(forge(raw, b"message %d" % number) is not None for number in range(TRIES))


def weak_keys() -> Rows:
    for raw in small_order():
        name = f"a key of small order, forged for {forged(raw)} of {TRIES} messages: {raw.hex()}"
        yield refuses(name, TRIES, lambda raw=raw: TrustedKey(name="ci", raw=raw))
    others = {
        "a key that is not canonical": sorted({*not_canonical()} - {*small_order()}),
        "a key off the curve": off_curve(TRIES),
    }
    for what, keys in others.items():
        for raw in keys:
            name = f"{what}: {raw.hex()}"
            yield refuses(name, 1, lambda raw=raw: TrustedKey.from_pem(pem_of(raw), name="ci"))


def pems() -> Rows:
    pem, other = (public_pem(new_key().public_key()).decode() for _ in range(2))
    texts = {
        "two keys in a PEM": pem + other,
        "a key twice in a PEM": pem * 2,
        "a certificate after a key": f"{pem}-----BEGIN CERTIFICATE-----\nMAA=\n",
        "a private key after a key": f"{pem}-----BEGIN PRIVATE KEY-----\nMAA=\n",
        "half a key after a key": pem + other[:50],
        "base64 with a bit after its data": loosen(pem),
        "base64 with a bit after its data, in two lines": f"{loosen(pem)[:40]}\n{loosen(pem)[40:]}",
        "base64 with more padding": pem.replace("=\n", "==\n"),
        "base64 without padding": pem.replace("=\n", "\n"),
        "padding inside base64": pem.replace("=\n", "=AAA\n"),
    }
    for name, text in texts.items():
        yield refuses(name, 1, lambda text=text: TrustedKey.from_pem(text, name="ci"))


def envelopes() -> Rows:
    fields = json.loads(sign(b"{}", new_key()))
    for name, payload in {
        "a payload with a bit after its data": "e31=",
        "a payload with more padding": "e30==",
        "padding inside a payload": "e30=e30=",
    }.items():
        data = json.dumps({**fields, "payload": payload}).encode()
        yield refuses(name, 1, lambda data=data: Envelope.parse(data))


def charts() -> Rows:
    pem = public_pem(new_key().public_key()).decode()
    texts = {raw.hex(): pem_of(raw) for raw in sorted({*small_order(), *not_canonical()})}
    texts |= {"two keys": pem * 2, "a bit after the data": loosen(pem)}
    for name, text in texts.items():
        values = laid_over(example("minimal"), {"trust": {"keys": [{"name": "ci", "pem": text}]}})
        yield refuses(f"in the chart: {name}", 1, lambda values=values: ENGINES["helm_4"](values))


def secrets() -> Rows:
    for name, forms in secret_forms.texts().items():
        yield hides(name, forms)
    for name in secret_forms.VARIABLES:
        before = os.environ.get(name)
        os.environ[name] = ECHOED
        shapes = ("no user {} here", "{}", "body: {!r}", "a{}b")
        yield hides(f"the value of {name}", [(shape.format(ECHOED), (ECHOED,)) for shape in shapes])
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def hides(name: str, forms: Sequence[tuple[str, tuple[str, ...]]]) -> FaultRow:
    """Return the row of texts that must not show their credentials."""
    redacted = [(redact(text), hidden) for text, hidden in forms]
    leaked = [text for text, hidden in redacted if any(each in text for each in hidden)]
    return row(
        "secret",
        name,
        tries=len(forms),
        outcome="leaked" if leaked else "hidden",
        said=[*(text for text, _ in redacted), *leaked][-1],
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, help="add the rows to this file, or replace them")
    options = parser.parse_args(argv)
    parts = (weak_keys, pems, envelopes, charts, secrets, faults_redirects.run)
    rows = [each for part in parts for each in part()]
    if options.json is not None:
        add_rows(options.json, rows, whole=KINDS)
    leaked = [each for each in rows if each["outcome"] not in ("refused", "hidden")]
    for each in leaked:
        sys.stderr.write(f"{each['kind']}: {each['name']}: {each['said']}\n")
    tries = sum(each["tries"] for each in rows)
    sys.stdout.write(f"{len(rows)} rows, {tries} tries, {len(leaked)} leaked\n")
    return 1 if leaked else 0


if __name__ == "__main__":
    sys.exit(main())
