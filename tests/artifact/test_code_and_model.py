# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which of several fitting artifacts a replica takes, and when an older one is a rollback."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

import pytest

from artifacts import APPLICATION, DEPLOYMENT, PLACE, MemoryStore, build, fingerprint, trusting
from serve_warm.artifact.code_and_model import NOTHING_KNOWN, CodeAndModel, find_newer_used
from serve_warm.artifact.manifest import Manifest, Place
from serve_warm.artifact.pull import confirm, expect, find_fitting
from serve_warm.artifact.push import copy, push
from serve_warm.artifact.statements import statements_of
from serve_warm.errors import AlreadyPublished, ArtifactNotFound, ArtifactRefused, StoreDenied
from serve_warm.stores import Listed
from serve_warm.trust.envelope import sign
from transfers import KEY, NEWER, NEWEST, OLDER, publish, pull_here, store_fixture, supersede  # noqa: F401 - a fixture

C1, C2, M1, M2 = ("1" * 16, "2" * 16, "a" * 64, "b" * 64)


def of(code: str, model: str) -> CodeAndModel:
    return CodeAndModel(code=code, model=model)


HERE = of(C1, M1)


# --- how close ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("made_of", "here", "closeness"),
    [
        (of(C1, M1), HERE, 3),
        (of(C2, M1), HERE, 2),
        (of(C1, M2), HERE, 1),
        (of(C2, M2), HERE, 0),
        # What is unknown matches nothing, not even what is unknown there too.
        (of("", M1), HERE, 2),
        (of(C1, ""), HERE, 1),
        (NOTHING_KNOWN, HERE, 0),
        (of(C1, M1), of(C1, ""), 1),
        (of(C1, ""), of(C1, ""), 1),
        (NOTHING_KNOWN, NOTHING_KNOWN, 0),
    ],
)
def test_the_model_counts_more_than_the_code(
    made_of: CodeAndModel, here: CodeAndModel, closeness: int
):
    assert made_of.closeness(here) == closeness
    assert closeness <= here.closeness(here)


@pytest.mark.parametrize("digest", ["g" * 16, "1" * 15, "1" * 65, "../" * 8])
def test_only_digests_are_accepted(digest: str):
    with pytest.raises(ValueError, match="is not a digest"):
        CodeAndModel(code=digest)


def test_a_statement_keeps_its_place_code_and_model():
    manifest, _ = build(made_of=HERE, application="pkg.app", deployment="Model")
    read = Manifest.from_statement(manifest.to_statement())
    assert read == manifest
    assert (read.place.application, read.place.deployment) == ("pkg.app", "Model")


@pytest.mark.parametrize("member", ["application", "code", "model"])
def test_a_statement_without_one_of_them_is_refused(member: str):
    payload = json.loads(build(made_of=HERE)[0].to_statement())
    del payload["predicate"][member]
    with pytest.raises(ArtifactRefused, match=member):
        Manifest.from_statement(json.dumps(payload).encode())


# --- which one is taken ---------------------------------------------------------------------
CREATED = (OLDER, NEWER, NEWEST)


@pytest.mark.parametrize(
    "order", [*itertools.permutations([of(C1, M1), of(C2, M1), of(C2, M2)])], ids=range(6)
)
def test_the_closest_is_taken_at_any_age(store: MemoryStore, order: tuple[CodeAndModel, ...]):
    for created, made_of in zip(CREATED, order, strict=True):
        supersede(store, created=created, made_of=made_of, raw={"cache": created.encode()})
    chosen = pull_here(store, here_of=HERE).chosen
    is_newest = chosen.manifest.created == NEWEST
    (line,) = (str(seen) for seen in chosen.trace if seen.statement == chosen.key)
    assert chosen.manifest.made_of == HERE
    assert "same code and model" in line
    assert ("taken although a newer one fits" in line) is not is_newest
    assert sorted(seen.message.partition(",")[0] for seen in chosen.trace) == [
        "neither code nor model is the same",
        "same code and model",
        "same model",
    ]


def test_of_the_equally_close_the_newest_is_taken(store: MemoryStore):
    for created in CREATED:
        supersede(store, created=created, made_of=of(C2, M1), raw={"cache": created.encode()})
    chosen = pull_here(store, here_of=HERE).chosen
    assert chosen.manifest.created == NEWEST
    assert {seen.message for seen in chosen.trace} == {"same model"}


def test_a_closer_artifact_for_another_machine_is_not_taken(store: MemoryStore):
    publish(store, made_of=HERE, built_for=fingerprint(torch="2.15.0+cpu"))
    publish(store, made_of=of(C2, M2))
    assert pull_here(store, here_of=HERE).chosen.manifest.made_of == of(C2, M2)


def test_of_many_artifacts_an_old_one_that_is_closest_is_found(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """In a large store, reading does not end with a newer one that matches less."""
    monkeypatch.setattr("serve_warm.artifact.reading_order.READ_WHOLE", 8)
    for day in range(1, 29):
        key, manifest = supersede(
            store,
            created=f"2026-10-{day:02}T10:00:00.000000Z",
            made_of=HERE if day == 7 else of(C2, M2),
            raw={"cache": bytes([day])},
        )
        store.modified[key] = manifest.created_unix
    assert pull_here(store, here_of=HERE).chosen.manifest.made_of == HERE


def test_what_was_fetched_is_kept_only_if_the_model_does_not_matter(store: MemoryStore):
    """The model is known only after `__init__`, when the artifact is already there."""
    _, older = publish(store, created=OLDER, made_of=of(C1, M1))
    supersede(store, created=NEWER, made_of=of(C1, M2), raw={"cache": b"newer"})
    asked = {"fingerprint": fingerprint(), "trust": trusting(KEY)}
    found = find_fitting(store, place=PLACE, trust=trusting(KEY), fingerprint=None)
    chosen = expect(found, **asked, unknown=(), here=of(C1, ""))
    assert not isinstance(chosen, str)
    pulled = pull_here(store, here_of=of(C1, ""))
    assert chosen.manifest.created == pulled.chosen.manifest.created == NEWER
    assert confirm(pulled, found, **asked, here=of(C1, M1)) is None
    again = confirm(pulled, found, **asked, here=of(C1, M2))
    assert again is not None
    assert again.chosen.manifest.created == NEWER
    assert pull_here(store, here_of=of(C1, M1)).chosen.manifest == older


# --- rollbacks ------------------------------------------------------------------------------
OWN, SAME_MODEL, SAME_CODE, OTHER = of(C1, M1), of(C2, M1), of(C1, M2), of(C2, M2)


@pytest.mark.parametrize(
    ("used", "taken", "created", "newer"),
    [
        # Nothing used yet, the same again, and a newer one.
        ({}, OWN, OLDER, ""),
        ({OWN: NEWER}, OWN, NEWER, ""),
        ({OWN: NEWER}, OWN, NEWEST, ""),
        # The newest was deleted: an older one that matches no better is a rollback.
        ({OWN: NEWER}, OWN, OLDER, NEWER),
        ({OWN: NEWER}, SAME_MODEL, OLDER, NEWER),
        ({OWN: NEWER}, OTHER, OLDER, NEWER),
        ({OTHER: NEWER}, OTHER, OLDER, NEWER),
        ({SAME_CODE: NEWER, OTHER: NEWEST}, SAME_CODE, OLDER, NEWER),
        # An older one that matches better than all newer ones is none.
        ({OTHER: NEWER}, OWN, OLDER, ""),
        ({SAME_MODEL: NEWEST, SAME_CODE: NEWER}, OWN, OLDER, ""),
        # But it is, if a newer one of the same code and model was used: somebody put it back.
        ({OTHER: NEWEST, OWN: NEWER}, OWN, OLDER, NEWER),
        # A newer artifact is never a rollback, although a closer one was used.
        ({OWN: NEWER}, OTHER, NEWEST, ""),
        # After an edit, nothing used matches: the newest used of all still counts.
        ({OTHER: NEWER, of("3" * 16, "c" * 64): NEWEST}, OTHER, OLDER, NEWEST),
        # Unknown on both sides counts as before: by time alone.
        ({NOTHING_KNOWN: NEWER}, NOTHING_KNOWN, OLDER, NEWER),
    ],
)
def test_a_rollback_is_an_artifact_that_was_not_preferred_when_it_was_there(
    used: dict[CodeAndModel, str], taken: CodeAndModel, created: str, newer: str
):
    assert find_newer_used(used, taken=taken, created=created, here=HERE) == newer


# --- applications ---------------------------------------------------------------------------
SHOP, SEARCH = (Place(application=name, deployment="Model") for name in ("shop.app", "search.app"))


def test_two_applications_with_a_class_of_the_same_name_find_their_own(store: MemoryStore):
    """Neither supersedes the other, whichever was published last."""
    for number, place in enumerate((SHOP, SEARCH)):
        names = {"application": place.application, "deployment": place.deployment}
        publish(store, **names, created=CREATED[number], raw={"cache": place.application.encode()})
    for place in (SHOP, SEARCH):
        pulled = pull_here(store, place=place)
        assert pulled.raw["cache"].decode() == place.application  # type: ignore[attr-defined]
        assert len(pulled.chosen.trace) == 1


def test_a_statement_that_was_copied_to_another_application_is_refused(store: MemoryStore):
    key, _ = publish(store, application="search.app", deployment="Model")
    store.objects[key.replace("search.app", "shop.app")] = store.objects[key]
    with pytest.raises(ArtifactRefused, match=r"'Model' of application 'search\.app'") as refused:
        pull_here(store, place=SHOP)
    assert refused.value.reason == "bad_statement"


def test_a_miss_is_a_miss_although_other_applications_may_not_be_listed():
    """A bucket's policy may allow only the folder of the own application."""

    class Restricted(MemoryStore):
        def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
            if not prefix.startswith("statements/shop.app/"):
                raise StoreDenied(f"{self.uri}: the store denied access")
            return super().pages(prefix)

    with pytest.raises(ArtifactNotFound, match=r"has no artifact for") as missed:
        pull_here(Restricted(), place=SHOP)
    assert "serve-warm build" in missed.value.hint


def test_a_miss_names_the_applications_that_have_the_deployment(store: MemoryStore):
    publish(store, application="search.app", deployment="Model")
    publish(store, application="search.app", deployment="Other")
    with pytest.raises(ArtifactNotFound) as missed:
        pull_here(store, place=SHOP)
    assert "has artifacts for 'Model' of other applications: 'search.app'" in missed.value.message
    assert "set `application`" in missed.value.hint
    with pytest.raises(ArtifactNotFound) as missed:
        pull_here(store, place=Place(application="shop.app", deployment="Third"))
    assert "other applications" not in missed.value.message


def test_statements_of_the_old_layout_are_named_and_not_read(store: MemoryStore):
    manifest, stored = build()
    key = f"statements/{DEPLOYMENT}/{manifest.fingerprint.key}.dsse.json"
    store.objects[key] = sign(manifest.to_statement(), KEY)
    with pytest.raises(ArtifactNotFound) as missed:
        pull_here(store)
    assert "in the layout of an older version of serve_warm" in missed.value.message
    assert f"statements/{DEPLOYMENT}/" in missed.value.message
    assert "build an artifact again" in missed.value.hint
    assert key not in store.read
    push(store, manifest, stored, [KEY])
    assert pull_here(store).chosen.key.startswith(f"statements/{APPLICATION}/{DEPLOYMENT}/")


def test_an_artifact_is_copied_with_its_application(store: MemoryStore):
    target = MemoryStore(uri="memory:target")
    for place in (SHOP, SEARCH):
        publish(store, application=place.application, deployment="Model")
    done = copy(store, target, trust=trusting(KEY), application="shop.app")
    assert [key.rpartition("/")[0] + "/" for key in done.statements] == [statements_of(SHOP)]


def test_a_taken_variant_says_how_two_applications_stay_apart(store: MemoryStore):
    """With only `--if-published supersede` as advice, two teams would supersede each other."""
    publish(store)
    with pytest.raises(AlreadyPublished, match="of application 'app'") as refused:
        publish(store, created=NEWEST)
    assert "set `application`" in refused.value.hint
