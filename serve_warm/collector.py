# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A `prometheus_client` collector that adds a node's metrics to an existing registry.

The node server exports the same metrics, from the same table and state files. Use this collector if
you already run an exporter and do not want to open a second port.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from serve_warm import metrics, node


class NodeCollector:
    """Collects the metrics of this node and of its replicas.

        from prometheus_client import REGISTRY
        from serve_warm.collector import NodeCollector

        REGISTRY.register(NodeCollector("/run/serve_warm/state"))

    Use the collector in a process that outlives the replicas and runs as the same user. `state_dir`
    is the folder with the replicas' state files, by default the replicas' own default folder.

    The collector does not check the raylet and the proxy, so `serve_warm_node_ready` reports only
    whether the replicas are warm under `policy`. Each collection also includes replicas that ended
    since the last collection, because the files of ended replicas are kept for `node.SWEEP_S`
    seconds. If the directory cannot be read or is not trusted, the metrics show a failed check, and
    no exception is raised. `clock` returns the current time in seconds, by the clock that replicas
    use for heartbeats.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        policy: node.Policy | None = None,
        clock: Callable[[], float] = node.boot_s,
    ) -> None:
        self._clock = clock
        directory = "" if state_dir is None else os.fspath(state_dir)
        self._settings = node.Settings.of(directory, policy=policy or node.Policy())
        self._ledger = node.Ledger(self._settings.policy.deployments, clock=clock)
        self._lock = threading.Lock()
        # Starts that ended before now do not count.
        self._ledger.note(node.judge(self._settings, health={}, clock=clock))

    def collect(self) -> Iterator[Metric]:
        """Yield all current metrics. Any thread can call this method."""
        with self._lock:
            readiness = node.judge(self._settings, health={}, clock=self._clock)
            self._ledger.note(readiness)
            families = list(self._ledger.families(readiness))
        for family in families:
            metric = Metric(family.name, family.text, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric

    def describe(self) -> Iterator[Metric]:
        """Yield every possible metric, so that a registry knows the names before replicas exist."""
        for name, (kind, _, text) in node.NODE_METRICS.items():
            yield Metric(name, text, kind)
        for row in metrics.METRICS:
            yield Metric(row.name, row.help, row.kind)
