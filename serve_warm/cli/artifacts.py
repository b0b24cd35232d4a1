# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that read and copy artifacts, without torch: `inspect`, `push`, `pull`."""

from __future__ import annotations

import json
from typing import Any

import click

from serve_warm import transfer
from serve_warm.cli import screen
from serve_warm.stores import open_store
from serve_warm.trust import load_trust


@click.command()
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def inspect(*, store: str, as_json: bool) -> None:
    """Show the artifacts of a store: who signed them, what they are for, what is in them."""
    described = transfer.describe(open_store(store), load_trust())
    if as_json:
        click.echo(json.dumps([_as_data(item) for item in described], indent=2))
        return
    if not described:
        click.echo(f"{store} has no artifacts", err=True)
    for item in described:
        click.echo(_shown(item.statement))
        signed = "trusted, signed by " + ", ".join(item.signers) if item.signers else "trusted"
        click.echo("  " + (_shown(signed) if item.trusted else f"not trusted ({item.reason})"))
        if item.message:
            click.echo(f"  {_shown(item.message)}")
        if item.manifest is None:
            continue
        manifest = item.manifest
        click.echo(f"  created {manifest.created}, variant {manifest.fingerprint.key}")
        for part in manifest.parts:
            click.echo(
                f"  part {part.name}: {screen.size(part.stored_bytes)} stored, "
                f"{screen.size(part.raw_bytes)} raw, sha256 {part.sha256[:16]}…"
            )
        for group, factors in manifest.fingerprint.to_json().items():
            for factor, value in factors.items():
                click.echo(f"  {group} {_shown(factor)}: {_shown(value)}")


def _shown(text: str) -> str:
    # Anybody may have written an untrusted statement: escape sequences in it would reach the
    # terminal, and could draw a line that says "trusted".
    return text if text.isprintable() else repr(text)


def _as_data(item: transfer.Described) -> dict[str, Any]:
    manifest = item.manifest
    return {
        "statement": item.statement,
        "trusted": item.trusted,
        "signers": list(item.signers),
        "reason": item.reason,
        "message": item.message,
        "manifest": None
        if manifest is None
        else {
            "deployment": manifest.deployment,
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


@click.command()
@click.argument("folder")
@click.argument("store")
@click.option("--deployment", help="Only the artifacts of this deployment.")
def push(*, folder: str, store: str, deployment: str | None) -> None:
    """Publish the artifacts of FOLDER in STORE, each verified first."""
    _copy(folder, store, deployment)


@click.command()
@click.argument("store")
@click.argument("folder")
@click.option("--deployment", help="Only the artifacts of this deployment.")
def pull(*, store: str, folder: str, deployment: str | None) -> None:
    """Copy the artifacts of STORE into FOLDER, each verified first.

    A replica pulls the one that fits by itself; this is for mirrors and images.
    """
    _copy(store, folder, deployment)


def _copy(source: str, target: str, deployment: str | None) -> None:
    with screen.progress() as progress:
        progress(f"copying {source} to {target}")
        keys = transfer.copy(
            open_store(source), open_store(target), trust=load_trust(), deployment=deployment
        )
    for key in keys:
        click.echo(key)
