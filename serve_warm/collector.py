# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of a node for a registry of the user's own: a collector of `prometheus_client`.

They are those that the node's own server exports, from the same table and the same state files, for
whoever has an exporter in place and wants no second port.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from prometheus_client.core import Metric

from serve_warm import metrics, node


class NodeCollector:
    """Collects what the replicas of this node have written, and what the node's server knows.

        from prometheus_client import REGISTRY
        from serve_warm.collector import NodeCollector

        REGISTRY.register(NodeCollector("/run/serve_warm/state"))

    For a process of the replicas' user that lives longer than they do. `state_dir` is where they
    write; default as theirs. Neither raylet nor proxy is asked, so `serve_warm_node_ready` says
    whether the replicas are warm, as `policy` has it. What happened between two collections is seen
    at the second one: the files of a replica that ended stay for `node.SWEEP_S`. A directory that
    cannot be read or believed is a failed check, no error.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        policy: node.Policy | None = None,
    ) -> None:
        directory = "" if state_dir is None else os.fspath(state_dir)
        self._settings = node.Settings.of(directory, policy=policy or node.Policy())
        self._ledger = node.Ledger(self._settings.policy.deployments)
        self._lock = threading.Lock()
        # Starts that have ended by now are none that it has seen.
        self._ledger.note(node.judge(self._settings, health={}))

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as of now. From any thread."""
        with self._lock:
            readiness = node.judge(self._settings, health={})
            self._ledger.note(readiness)
            families = list(self._ledger.families(readiness))
        for family in families:
            metric = Metric(family.name, family.text, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric

    def describe(self) -> Iterator[Metric]:
        """Yield what there can be, so that a registry knows the names before there are replicas."""
        for name, (kind, _, text) in node.NODE_METRICS.items():
            yield Metric(name, text, kind)
        for row in metrics.METRICS:
            yield Metric(row.name, row.help, row.kind)
