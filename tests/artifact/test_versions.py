# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Two releases share a store during a rollout: each uses what it can use, or says why not."""

from __future__ import annotations

import pytest

from artifacts import MemoryStore, build, fingerprint, of_format_2, publish_statement
from serve_warm.artifact.manifest import FORMAT
from serve_warm.artifact.push import push
from serve_warm.errors import ArtifactRefused
from transfers import KEY, NEWEST, OLDER, publish, pull_here


def test_a_later_format_is_passed_over_with_its_reason():
    """The older release loads the newest artifact that it can read."""
    store = MemoryStore()
    readable, _ = publish(store, created=OLDER)
    later, _ = build(created=NEWEST)
    name = publish_statement(store, of_format_2(later), KEY, name="0" * 16)
    chosen = pull_here(store).chosen.key
    store.delete(readable)
    with pytest.raises(ArtifactRefused) as caught:
        pull_here(store)
    assert chosen == readable
    assert caught.value.reason == "newer_format"
    assert f"format {FORMAT + 1}, but this release reads format {FORMAT}" in caught.value.message
    assert "upgrade" in caught.value.hint
    assert [considered.statement for considered in caught.value.trace] == [name]


@pytest.mark.parametrize("first", ["rules 1", "rules 2"])
def test_each_release_uses_the_artifact_of_its_own_rules(first: str):
    """Neither artifact supersedes the other one, whichever release builds first."""
    store, keys = MemoryStore(), {}
    second = {"rules 1": "rules 2", "rules 2": "rules 1"}[first]
    for created, rules in ((OLDER, first), (NEWEST, second)):
        here = fingerprint(serve_warm=rules)
        manifest, stored = build(created=created, built_for=here, raw={"cache": rules.encode()})
        keys[rules] = push(store, manifest, stored, [KEY])
    pulled = {rules: pull_here(store, here=fingerprint(serve_warm=rules)) for rules in keys}
    assert {rules: each.chosen.key for rules, each in pulled.items()} == keys
    assert all(bytes(each.raw["cache"]) == rules.encode() for rules, each in pulled.items())
