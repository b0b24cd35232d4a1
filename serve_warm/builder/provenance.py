# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The provenance of an artifact in its manifest: the source commit, the image and the builder.

In a CI job, the source and the builder come from environment variables of the CI system. Variables
whose meaning is uncertain are not used.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_warm.errors import ConfigError
from serve_warm.trust.policy import FACTS

MAX_CHARACTERS = 1000


def read_provenance(
    environ: Mapping[str, str], *, source: str = "", image: str = "", builder: str = ""
) -> dict[str, str]:
    """Return the given values, or else values from the environment variables of a CI job.

    Unknown values are left out.

    >>> read_provenance({"GITLAB_CI": "true", "CI_COMMIT_SHA": "4f2c"}, image="app:1")
    {'source': '4f2c', 'image': 'app:1'}

    Raises:
        ConfigError: a value is too long or not printable.
    """
    said = {**_of_ci(environ), **_without_empty(source=source, image=image, builder=builder)}
    for name, text in said.items():
        if not text.isprintable() or len(text) > MAX_CHARACTERS:
            raise ConfigError(
                f"{name} must be one line of at most {MAX_CHARACTERS} printable characters: "
                f"{text!r:.80}"
            )
    return {name: said[name] for name in FACTS if name in said}


def _of_ci(environ: Mapping[str, str]) -> dict[str, str]:
    if environ.get("GITHUB_ACTIONS") == "true":
        # The workflow file with its ref, which differs for a fork or another branch.
        workflow = environ.get("GITHUB_WORKFLOW_REF", "")
        server = environ.get("GITHUB_SERVER_URL", "https://github.com")
        return _without_empty(
            source=environ.get("GITHUB_SHA", ""), builder=workflow and f"{server}/{workflow}"
        )
    if environ.get("GITLAB_CI") == "true":
        return _without_empty(source=environ.get("CI_COMMIT_SHA", ""))
    return {}


def _without_empty(**texts: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}
