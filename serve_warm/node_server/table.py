# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics that the node server adds, and the rows of metrics that replicas write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from serve_warm.node import WHO
from serve_warm.report import Verdict

OUTCOMES = (*(verdict.value for verdict in Verdict), "failed", "died")
"""Outcomes of a start: the verdict of a replica that became ready, `failed`, or `died`. `died`
means that the process ended before READY or FAILED: it was killed, it crashed, or Serve stopped
it."""

NODE_METRICS = {
    "serve_warm_node_ready": ("gauge", (), "1 while /readyz answers 200."),
    "serve_warm_node_check": (
        "gauge",
        ("check",),
        "1 if this /readyz check (warm, raylet, proxy or draining) passes.",
    ),
    "serve_warm_node_replicas": (
        "gauge",
        ("condition",),
        "Replicas on this node, by condition. Includes the last 100 dead replicas.",
    ),
    "serve_warm_node_states_readable": (
        "gauge",
        (),
        "1 while the state directory is readable. 0 means that the replicas' metrics are stale.",
    ),
    "serve_warm_node_excused": (
        "gauge",
        (),
        "Unready replicas that /readyz ignores, because they were added to a warm node.",
    ),
    "serve_warm_replica_alive": (
        "gauge",
        WHO,
        "1 while the replica's process is alive, 0 after the process has ended.",
    ),
    "serve_warm_heartbeat_age_seconds": (
        "gauge",
        WHO,
        "Seconds since a live replica last wrote its state.",
    ),
    "serve_warm_stage_age_seconds": (
        "gauge",
        WHO,
        "Seconds since a live replica entered its current stage.",
    ),
    "serve_warm_starts": (
        "counter",
        ("application", "deployment", "outcome"),
        (
            "Number of replicas whose start ended while this server was running, by outcome: the "
            "verdict, 'failed' or 'died'."
        ),
    ),
    "serve_warm_start_duration_seconds": (
        "histogram",
        ("application", "deployment", "outcome"),
        (
            "Seconds from a replica's creation to READY, FAILED or, if it died, the last state "
            "that it wrote. The histogram covers starts that ended while this server was running."
        ),
    ),
}
"""Kind, labels and help of the server's own metrics. Replicas write all other metrics under
`metrics` (`serve_warm.metrics.as_data`)."""

OWN = tuple(f"{name}_" for name in NODE_METRICS)
"""Each series of the server's own metrics has a name that begins with one of these prefixes."""

BUCKETS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
)
"""Upper bounds of the histograms in seconds, from a level-3 start to a cold compile of a large
model."""


def samples_of(row: dict[str, Any]) -> Iterator[tuple[dict[str, str], float]]:
    """For one row, yield each sample's labels and value; yield nothing if the row is malformed."""
    labels: Any = row.get("labels")
    samples: Any = row.get("samples")
    if not isinstance(labels, list) or not isinstance(samples, list):
        return
    for each in labels:
        if not isinstance(each, str) or not re.fullmatch("[a-z][a-z_]{0,99}", each):
            return
    if len({*labels, *WHO, "le"}) != len(labels) + len(WHO) + 1:
        return
    for sample in samples:
        if not isinstance(sample, list) or len(sample) != 2:
            continue
        key, value = sample
        if not isinstance(key, list) or not all(isinstance(each, str) for each in key):
            continue
        if len(key) == len(labels) and isinstance(value, (int, float)):
            try:
                number = float(value)
            except OverflowError:
                continue  # as in _number
            yield labels_of(labels, key), number


def labels_of(names: Iterable[str], values: Iterable[str]) -> dict[str, str]:
    """Return labels by name, with values that can be exported."""
    return dict(zip(names, map(utf8, values), strict=True))


def utf8(value: str) -> str:
    """Return text that can be encoded in UTF-8."""
    # Half of a surrogate pair cannot be encoded in UTF-8, and scrapers read only UTF-8.
    return value if value.isascii() else value.encode(errors="replace").decode()
