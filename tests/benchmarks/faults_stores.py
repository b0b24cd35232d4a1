# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What serve_warm says about answers of stores, endless listings, junk, and files of other kinds.

    python tests/benchmarks/faults_stores.py --json tests/benchmarks/results/faults.json

A local server gives each answer in `tests/support/store_answers.py` to the real clients. Each
answer is tried once, because the server always gives the same answer. A row has the outcome:
`named` if the error names the cause and its hint fits, else `wrong hint`, `wrong kind` (retried or
not, wrongly), `start failed` (an exception that is not a StoreError), `no error` or `hung`.

A listing without an end is `ended` if a pull that was given up asks no further, else `asks on`. The
other rows are those of `faults_junk.py` and `faults_files.py`.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as HungError
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from benchmarks import faults_files, faults_junk  # noqa: E402
from benchmarks.fault_rows import FaultRow, add_rows  # noqa: E402
from serve_warm._daemon_threads import begin  # noqa: E402
from serve_warm.artifact.pull import find_fitting  # noqa: E402
from serve_warm.stores import list_keys, open_store  # noqa: E402
from serve_warm.trust import Trust  # noqa: E402
from store_answers import (  # noqa: E402
    ANSWERS,
    HUB_ANSWERS,
    NO_STORES,
    ODD_LISTINGS,
    Answer,
    AnyAnswer,
    any_answer,
    bucket_environment,
    endless_pages,
    find_fault,
    make_certificates,
)

HUNG_S = 60.0
GIVEN_UP_AFTER_S = 3.0
KIND = "store"


def cases() -> Iterator[tuple[str, Answer]]:
    for scheme in ("s3", "gs", "az"):
        yield from ((scheme, answer) for answer in ANSWERS[scheme])
        yield from ((scheme, answer) for answer in NO_STORES)
        if scheme != "az":
            yield from ((scheme, answer) for answer in ODD_LISTINGS)
    yield from (("hf", answer) for answer in HUB_ANSWERS)


def judge(answer: Answer, ask: Callable[[], object]) -> tuple[str, str]:
    """Return the outcome of a call, and the text of its error."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(ask)
    try:
        result = future.result(HUNG_S)
    except HungError:
        return "hung", ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is judged
        return find_fault(answer, error) or "named", str(error)
    finally:
        pool.shutdown(wait=False)
    return "no error", repr(result)


def run(server: AnyAnswer) -> Iterator[FaultRow]:
    for scheme, answer in cases():
        server.answer = answer
        store = open_store(f"{scheme}://bucket/pre")  # for the Hub, an owner and a repository
        outcome, said = judge(answer, lambda store=store: list_keys(store, "statements/"))
        yield row(f"{scheme}: {answer.name}", outcome, said.replace(server.url, "http://SERVER"))


def row(name: str, outcome: str, said: str) -> FaultRow:
    return {"name": name, "kind": KIND, "tries": 1, "outcome": outcome, "said": said}


def run_endless(server: AnyAnswer) -> Iterator[FaultRow]:
    """Begin pulls from endless listings, give them up, and count the requests after that."""
    server.choose = endless_pages(server)
    for scheme in ("s3", "gs", "az", "hf"):
        server.requests.clear()
        given_up, store = threading.Event(), open_store(f"{scheme}://bucket/pre")
        pull = functools.partial(
            find_fitting,
            store,
            deployment="Embedder",
            trust=Trust(),
            fingerprint=None,
            given_up=given_up,
        )
        begin(pull, name="pull")
        time.sleep(GIVEN_UP_AFTER_S)
        given_up.set()
        time.sleep(GIVEN_UP_AFTER_S)
        before = len(server.requests)
        time.sleep(GIVEN_UP_AFTER_S)
        after = len(server.requests) - before
        said = f"{before} requests until {GIVEN_UP_AFTER_S:.0f} s after that, then {after}"
        outcome = "ended" if before > 1 and not after else "asks on"
        yield row(f"{scheme}: empty pages without end, given up", outcome, said)
    server.choose = lambda _method, _path: None


TLS = (
    # The server's certificate, whether its CA is trusted, the message and the hint.
    ("good", False, "not signed by a known CA", "AWS_CA_BUNDLE"),
    ("other host", True, "another host name", "a host name in the endpoint"),
    ("expired", True, "has expired", "clock"),
    ("", False, "does not speak TLS", "AWS_ALLOW_HTTP"),
)


def run_tls(folder: Path) -> Iterator[FaultRow]:
    certificates = make_certificates(folder)
    for name, is_trusted, says, hints in TLS:
        with any_answer(certificates[name] if name else None) as server:
            os.environ["AWS_ENDPOINT_URL"] = server.url.replace("http:", "https:")
            os.environ["AWS_CA_BUNDLE"] = str(certificates["ca"]) if is_trusted else ""
            label = f"TLS: the certificate {name}" if name else "TLS: a port without TLS"
            answer = Answer(name=label, status=0, says=(says,), hints=hints)
            outcome, said = judge(answer, lambda: list_keys(open_store("s3://bucket/pre"), ""))
            said = said.replace(server.url.partition("://")[2], "SERVER")
            yield {
                "name": f"s3: {label}",
                "kind": KIND,
                "tries": 1,
                "outcome": outcome,
                "said": said,
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file whose rows of this kind are replaced")
    chosen = parser.parse_args()
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_")) or "PROXY" in name.upper():
            del os.environ[name]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, any_answer() as server:
        os.environ.update(bucket_environment(server.url, Path(folder)))
        os.environ.update({"HF_ENDPOINT": server.url, "HF_HOME": folder, "HF_TOKEN": "hf_hunter2"})
        rows = [*run(server), *run_endless(server), *run_tls(Path(folder))]
    logging.disable()  # each try would log what it found
    rows += [*faults_files.run(), *faults_junk.run()]
    counts = Counter(row["outcome"] for row in rows)
    wrong = [row for row in rows if row["outcome"] not in ("named", "ended", "found")]
    sys.stdout.writelines(f"{row['outcome']}: {row['name']}: {row['said']}\n" for row in wrong)
    took_s = time.perf_counter() - began
    sys.stdout.write(f"{len(rows)} answers in {took_s:.0f} s: {dict(counts)}\n")
    if chosen.json:
        add_rows(chosen.json, rows, whole=["store"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
