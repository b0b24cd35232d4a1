# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a replica without an artifact may serve uncompiled code, or must compile first.

An eager replica is RUNNING at once, so a rollout without a fitting artifact would turn a warm fleet
eager within minutes, at any time of the day. So a replica runs eagerly only if nobody serves
compiled code of its deployment. If Serve has stopped the only replica first, nobody serves: then an
eager answer is the fastest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from ray import serve

from serve_warm._redaction import describe_error
from serve_warm.report import Verdict

logger = logging.getLogger(__name__)

ANSWER_LIMIT_S = 10.0
"""Longest wait for the answers of Serve and of the other replicas, in seconds."""

KUBERAY = "RAY_USAGE_STATS_KUBERAY_IN_USE"
"""Variable that KubeRay's operator sets in its pods (seen in 1.1 to 1.6)."""


async def why_not_eager(
    application: str, deployment: str, *, first_install: bool, environ: Mapping[str, str]
) -> str:
    """Return why a replica must compile although the policy is `eager`; empty if it need not.

    `first_install` says that no other cluster serves this application.
    """
    try:
        answers = await asyncio.wait_for(_ask(application, deployment), ANSWER_LIMIT_S)
        compiled = [each for each in answers or () if _is_compiled(each)]
    except Exception as error:  # noqa: BLE001 - whatever Serve or a replica answers
        return f"it is not known whether other replicas run compiled code: {describe_error(error)}"
    if answers is None:
        if environ.get(KUBERAY, "") in ("", "0") or first_install:
            return ""
        return (
            "a RayService may be replacing another cluster, whose replicas cannot be asked; set "
            "first_install: true for the first installation"
        )
    if not compiled:
        return ""
    if len(answers) == 1:
        return f"another replica of {deployment} runs compiled code, or may"
    return (
        f"{len(compiled)} of {len(answers)} other replicas of {deployment} run compiled code, or "
        "may"
    )


def _is_compiled(report: Mapping[str, Any]) -> bool:
    """Return whether a replica runs compiled code, or may: without a warm-up, nobody knows."""
    # Not by its stage, which a `reconfigure` changes while the replica serves.
    runs_none = report["uncompiled"] or report["nothing_compiles"]
    return not runs_none and report["verdict"] != Verdict.EAGER.value


async def _ask(application: str, deployment: str) -> list[dict[str, Any]] | None:
    """Return the reports of all running replicas; None if no replica is running."""
    status = await asyncio.to_thread(serve.status)
    found = status.applications.get(application)
    states = dict(found.deployments[deployment].replica_states) if found else {}
    # This replica is STARTING, and STOPPING ones get no requests. All others serve, or may again.
    if not any(count for state, count in states.items() if state not in ("STARTING", "STOPPING")):
        return None
    handle: Any = serve.get_deployment_handle(deployment, application)
    # From Ray 2.57 on; an older Serve cannot ask all replicas.
    return list(await handle.broadcast("warmup_report").results_async(timeout_s=ANSWER_LIMIT_S))
