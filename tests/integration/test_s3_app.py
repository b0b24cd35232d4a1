# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An application whose artifact is built into a bucket and pulled from it, on real Ray."""

from __future__ import annotations

import dataclasses

import pytest

from s3_servers import Server
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build
from serve_warm.builder.publishing import Destination
from serve_warm.stores import open_store

pytestmark = [pytest.mark.ray, pytest.mark.long]


def test_an_application_is_built_into_a_bucket_and_starts_from_it(
    on, moto: Server, monkeypatch: pytest.MonkeyPatch
):
    """The builder publishes to s3://, and a replica pulls from there: a full hit, no compiler."""
    environment = moto.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = f"s3://{moto.new_bucket()}/models/v1"
    app = dataclasses.replace(
        load_app("tests.stress.app:app"), runtime_env={"env_vars": environment}
    )

    built = build(app, Destination.of(open_store(store)), on=on)
    with on.running(app, {"artifact": store, "on_missing": "fail"}) as started:
        report = started.report()

    assert built.published == "new"
    assert report["artifact"]["statement"] == built.statement
    assert report["artifact"]["store"] == store
    assert report["verdict"] == "full_hit"
    assert report["warmup"]["compiler_processes"] == 0
    assert built.cold["warmup"]["compiler_processes"] > 0
