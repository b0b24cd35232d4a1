# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that read and copy artifacts, without torch: `inspect`, `verify`, `push`, `pull`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from serve_warm.artifact import catalog
from serve_warm.artifact.manifest import VALUES, Manifest
from serve_warm.artifact.push import OnTaken, copy
from serve_warm.artifact.statements import describe_filter
from serve_warm.cli import NO, screen
from serve_warm.config import environment
from serve_warm.errors import did_you_mean
from serve_warm.stores import Store, open_existing_store, open_store
from serve_warm.trust.files import load_trust

application_option = click.option(
    "--application", help="Only the artifacts of this application, as `inspect` names it."
)
deployment_option = click.option("--deployment", help="Only the artifacts of this deployment.")

STORE_HELP = """\b
STORE is the address of a store. With a Serve YAML file or module:app, it is the
store that the application's replicas read.
"""


def open_named(store: str) -> Store:
    """Open the store at an address, or the one that an application's replicas read.

    Raises:
        ConfigError: the address is wrong, or the application cannot be read or names no store.
        StoreError: the store does not exist.
    """
    if APPLICATION.fullmatch(store):
        from serve_warm.builder.app import load_application

        application = load_application(store)
        store = application.store(list(application.warming), environment())
        click.echo(screen.show_line(f"store: {store}"), err=True)
    return open_existing_store(store)


APPLICATION = re.compile(r".+\.ya?ml|[\w.]+:[\w.]+")
"""What names an application, and no store: its address would have a slash after the colon."""


# Inspecting and verifying -----------------------------------------------------------------------


@click.command(epilog=STORE_HELP)
@click.argument("store")
@application_option
@deployment_option
@screen.json_option
def inspect(
    *, store: str, application: str | None, deployment: str | None, json_file: Path | None
) -> None:
    """Show the artifacts of a store: their signers, their fingerprints and their parts.

    The command reads only the statements, and downloads no parts.
    """
    opened = open_named(store)
    described = catalog.describe(
        opened, load_trust(), application=application, deployment=deployment
    )
    if json_file is not None:
        screen.data([_as_data(item) for item in described], json_file)
        return
    if not described:
        click.echo(nothing_there(opened, store, application, deployment), err=True)
    for item in described:
        click.echo(screen.show_line(item.statement))
        click.echo(f"  {screen.show_line(_standing(item))}")
        if item.message:
            click.echo(f"  {screen.show_line(item.message)}")
        if item.digest:
            click.echo(f"  digest sha256:{item.digest}")
        if item.manifest is not None:
            _show_manifest(item.manifest)
    _show_hints(described)


def _show_manifest(manifest: Manifest) -> None:
    place = manifest.place
    click.echo(
        f"  application {screen.show_line(place.application)}, "
        f"deployment {screen.show_line(place.deployment)}"
    )
    click.echo(f"  created {manifest.created}, variant {manifest.fingerprint.key}")
    made_of = manifest.made_of
    click.echo(f"  code {made_of.code[:16] or 'unknown'}, model {made_of.model[:16] or 'unknown'}")
    for part in manifest.parts:
        click.echo(
            f"  part {part.name}: {screen.size(part.stored_bytes)} stored, "
            f"{screen.size(part.raw_bytes)} raw, sha256 {part.sha256[:16]}…"
        )
    for name, said in manifest.provenance.items():
        click.echo(f"  {name} {screen.show_line(said)}")
    if values := manifest.facts.get(VALUES):
        click.echo(f"  contains the values of {screen.show_line(str(values))} recorded requests")
    entries = manifest.facts.get("entries")
    for line in (*screen.levels(entries), *screen.distances(entries)):
        click.echo(f"  {line}")
    for group, factors in manifest.fingerprint.to_json().items():
        for factor, value in factors.items():
            click.echo(f"  {group} {screen.show_line(factor)}: {screen.show_line(value)}")


@click.command(epilog=STORE_HELP)
@click.argument("store")
@application_option
@deployment_option
@screen.json_option
def verify(
    *, store: str, application: str | None, deployment: str | None, json_file: Path | None
) -> None:
    """Check the artifacts in STORE as a replica would, on any machine.

    The command checks signatures, age, deny-list, sizes, digests and the contents of the parts.
    Each part is downloaded and then deleted. Nothing is loaded. Run diff to see whether an artifact
    fits a machine.

    The exit code is 3 if an artifact is refused (for example because no key is trusted), or if no
    artifact exists.
    """
    opened = open_named(store)
    found = catalog.check(opened, load_trust(), application=application, deployment=deployment)
    checked = catalog.merge_signatures(found)
    # An artifact that another key signed again has two statements. One trusted statement suffices.
    vouched = {item.digest for item in checked if item.trusted}
    refused = [item for item in checked if not item.trusted and item.digest not in vouched]
    good = sum(item.trusted for item in checked)
    if json_file is not None:
        screen.data(
            {
                "store": opened.uri,
                "ok": good,
                "refused": len(refused),
                "artifacts": [_as_data(item) for item in checked],
            },
            json_file,
        )
    else:
        for item in checked:
            click.echo(_verdict(item, "REFUSED" if item in refused else "SKIPPED"))
        _show_hints(refused)
        if checked:
            click.echo(f"{good} verified, {len(refused)} refused", err=True)
    if not checked:
        click.echo(nothing_there(opened, store, application, deployment), err=True)
    if refused or not good:
        click.get_current_context().exit(NO)


def _verdict(item: catalog.Described, otherwise: str) -> str:
    statement = screen.show_line(item.statement)
    if not item.trusted or item.manifest is None:
        text = f"{otherwise}  {statement} ({item.reason}): {screen.show_line(item.message)}"
        return (
            text
            if otherwise == "REFUSED"
            else f"{text}; another statement of this artifact is trusted"
        )
    manifest = item.manifest
    sizes = ", ".join(
        f"{part.name} {screen.size(part.stored_bytes)} ({screen.size(part.raw_bytes)} raw)"
        for part in manifest.parts
    )
    return (
        f"OK       {statement} {screen.show_line(_standing(item))}, created {manifest.created}, "
        f"variant {manifest.fingerprint.key}, {sizes}"
    )


def _standing(item: catalog.Described) -> str:
    """Return whether an artifact is trusted, and why."""
    if not item.trusted:
        return f"not trusted ({item.reason})"
    if item.how == "unsigned_ok":
        return "trusted, unsigned: its store is listed under unsigned_ok"
    return "trusted, " + (
        f"signed by {', '.join(item.signers)}" if item.signers else "its digest is pinned"
    )


def _show_hints(described: Sequence[catalog.Described]) -> None:
    for hint in dict.fromkeys(item.hint for item in described if item.hint):
        for number, line in enumerate(hint.split("\n")):
            click.echo(f"{'' if number else 'hint: '}{screen.show_line(line)}", err=True)


def nothing_there(
    opened: Store, store: str, application: str | None, deployment: str | None
) -> str:
    """Return the message for a store without artifacts, or without artifacts with these names."""
    text = f"{store} has no artifacts{describe_filter(application, deployment)}"
    known = [] if application is deployment is None else catalog.places(opened)
    names = sorted({name for _, name in known})
    if deployment in names or not (question := did_you_mean(deployment or "", names)):
        there = ", ".join(f"{name} of {application}" for application, name in known)
        question = f"the store has artifacts for {there}" if known else ""
    text += f": {question}" if question else ""
    return screen.show_line(text)


def _as_data(item: catalog.Described) -> dict[str, Any]:
    manifest = item.manifest
    return {
        "statement": item.statement,
        "trusted": item.trusted,
        "how": item.how,
        "signers": list(item.signers),
        "digest": item.digest,
        "reason": item.reason,
        "message": item.message,
        "hint": item.hint,
        "manifest": None
        if manifest is None
        else {
            "application": manifest.place.application,
            "deployment": manifest.place.deployment,
            "code": manifest.made_of.code,
            "model": manifest.made_of.model,
            "created": manifest.created,
            "variant": manifest.fingerprint.key,
            "fingerprint": manifest.fingerprint.to_json(),
            "parts": [
                {
                    "name": part.name,
                    "sha256": part.sha256,
                    "stored_bytes": part.stored_bytes,
                    "raw_bytes": part.raw_bytes,
                }
                for part in manifest.parts
            ],
            "facts": dict(manifest.facts),
        },
    }


# Copying ----------------------------------------------------------------------------------------

if_published = click.option(
    "--if-published",
    "on_taken",
    type=click.Choice(["refuse", "supersede"]),
    default="refuse",
    show_default=True,
    help="What to do if the target already has the same variant with different content.",
)


@click.command()
@click.argument("folder")
@click.argument("store")
@application_option
@deployment_option
@if_published
@screen.json_option
def push(
    *,
    folder: str,
    store: str,
    application: str | None,
    deployment: str | None,
    on_taken: OnTaken,
    json_file: Path | None,
) -> None:
    """Verify the artifacts in FOLDER, and publish them to STORE.

    A published artifact is never replaced. With --if-published supersede, the command adds the new
    artifact of a variant, and keeps the old one. Replicas use the one that fits best.
    """
    _copy(folder, store, application, deployment, on_taken, json_file=json_file)


@click.command()
@click.argument("store")
@click.argument("folder")
@application_option
@deployment_option
@if_published
@screen.json_option
def pull(
    *,
    store: str,
    folder: str,
    application: str | None,
    deployment: str | None,
    on_taken: OnTaken,
    json_file: Path | None,
) -> None:
    """Verify the artifacts in STORE, and copy them into FOLDER.

    Use this command to fill a mirror or a container image. Replicas need no such command: they
    download the matching artifact themselves.
    """
    _copy(store, folder, application, deployment, on_taken, json_file=json_file)


def _copy(
    source_uri: str,
    target_uri: str,
    application: str | None,
    deployment: str | None,
    on_taken: OnTaken,
    *,
    json_file: Path | None,
) -> None:
    source, target, trust = open_existing_store(source_uri), open_store(target_uri), load_trust()
    click.echo(screen.show_line(f"copying {source.uri} to {target.uri}"), err=True)
    done = copy(
        source,
        target,
        trust=trust,
        application=application,
        deployment=deployment,
        on_taken=on_taken,
    )
    if json_file is not None:
        screen.data(
            {
                "source": source.uri,
                "target": target.uri,
                "statements": done.statements,
                "refused": screen.refusals(done.refused),
            },
            json_file,
        )
    else:
        for key in done.statements:
            click.echo(screen.show_line(key))
    screen.end_with_refusals(done.refused)
