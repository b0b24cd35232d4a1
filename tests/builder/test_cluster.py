# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to a Ray cluster that is not there."""

from __future__ import annotations

import socket

import pytest

from serve_warm.builder.cluster import ask_replicas
from serve_warm.errors import ConfigError


def test_an_address_without_a_cluster_is_refused_at_once():
    """Ray itself would ask again for minutes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "127.0.0.1:0", "127.0.0.1:99999", f"[::1]:{port}"):
        with pytest.raises(ConfigError, match="no Ray cluster at") as error:
            ask_replicas(address)
        assert error.value.hint.startswith("check --address, or leave it out")
