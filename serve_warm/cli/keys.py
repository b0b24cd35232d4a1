# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that make signing keys and sign with them: `keygen`, `sign`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serve_warm.artifact import push
from serve_warm.artifact.unsigned import OfPublished, sign_unsigned
from serve_warm.cli import screen
from serve_warm.config import environment
from serve_warm.stores import open_existing_store, open_store
from serve_warm.trust.files import load_trust, trust_lines
from serve_warm.trust.keys import load_signing_key, write_key_pair

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from serve_warm.stores import Store


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="What to call the key in trust files; default: after the file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def keygen(*, file: Path, name: str | None, as_json: bool) -> None:
    """Make an Ed25519 signing key: FILE is the private half, FILE.pub the public one.

    Prints the lines for the trust.toml of the machines that shall believe it. The private half
    belongs to whoever builds, and to no replica.
    """
    name = file.stem if name is None else name
    if not name or not name.isprintable():
        raise click.UsageError(f"{name!r} cannot be the name of a key; give another with --name")
    key = write_key_pair(file)
    lines = trust_lines(key.public, name=name)
    if as_json:
        screen.data(
            {
                "private": str(file),
                "public": f"{file}.pub",
                "name": name,
                "id": key.id,
                "trust": lines,
            }
        )
        return
    private, public = screen.show_line(str(file)), screen.show_line(f"{file}.pub")
    click.echo(f"wrote {private}, which only whoever builds may have, and {public}", err=True)
    click.echo("/etc/serve_warm/trust.toml of machines that shall believe it needs:", err=True)
    click.echo(lines, nl=False)


@click.command()
@click.argument("store")
@click.option(
    "--key",
    "key_files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="Ed25519 private key, PEM, to sign with; may be repeated.",
)
@click.option(
    "--deployment",
    "deployments",
    multiple=True,
    help="Only the artifacts of this deployment; required and may be repeated with --unsigned.",
)
@click.option(
    "--unsigned",
    is_flag=True,
    help="Sign what carries no signature at all, as serve-warm build --unsigned leaves it. Anyone "
    "who can write to STORE decides what that is.",
)
@click.option("--source-commit", default="", help="With --unsigned: signed as its origin.")
@click.option("--image", default="", help="With --unsigned: signed as its origin.")
@click.option(
    "--builder",
    default="",
    help="With --unsigned: signed as its origin. What the build says of the three is dropped.",
)
@click.option(
    "--publish", "target", help="With --unsigned: publish it in this store; default: in STORE."
)
@click.option(
    "--if-published",
    "on_taken",
    type=click.Choice(["refuse", "keep", "supersede"]),
    help="With --unsigned: of a variant that is published already; default: refuse.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def sign(
    *,
    store: str,
    key_files: tuple[Path, ...],
    deployments: tuple[str, ...],
    unsigned: bool,
    source_commit: str,
    image: str,
    builder: str,
    target: str | None,
    on_taken: OfPublished | None,
    as_json: bool,
) -> None:
    """Sign the artifacts of STORE once more, without uploading a part again.

    For the rotation of keys: each artifact gets a statement that carries the new signatures beside
    those that it has. What is not trusted here before is left out, because a signature vouches for
    all of an artifact; the exit code is 3 then.

    With --unsigned for the first signature of what a build has left without one. Its parts are
    checked before, and nothing of it is loaded: the key need not be where the code of a model runs.
    That code could write anything about itself, so the deployment and the origin are said here.
    """
    if not unsigned and (target or on_taken or source_commit or image or builder):
        raise click.UsageError(
            "--publish, --if-published, --source-commit, --image and --builder are for --unsigned"
        )
    if unsigned and not deployments:
        raise click.UsageError(
            "--unsigned needs --deployment NAME: the build could name any deployment"
        )
    if not unsigned and len(deployments) > 1:
        raise click.UsageError("--deployment may be repeated with --unsigned alone")
    keys = [load_signing_key(file) for file in key_files]
    opened = open_existing_store(store)
    if unsigned:
        origin = {"source": source_commit, "image": image, "builder": builder}
        each = _sign_first(
            opened,
            open_store(target or store),
            keys,
            deployments=deployments,
            origin=origin,
            on_taken=on_taken,
        )
    else:
        one = "".join(deployments) or None
        each = [push.sign(opened, keys, trust=load_trust(), deployment=one)]
    _show_signed(opened, each, unsigned=unsigned, as_json=as_json)


def _show_signed(store: Store, each: Sequence[push.Done], *, unsigned: bool, as_json: bool) -> None:
    """Print what was signed, and end with 3 where something was left out."""
    signed = [key for done in each for key in done.statements]
    refused = [refusal for done in each for refusal in done.refused]
    already = sum(done.unchanged for done in each)
    if as_json:
        screen.data(
            {
                "store": store.uri,
                "signed": signed,
                "already": already,
                "refused": screen.refusals(refused),
            }
        )
    else:
        for key in signed:
            click.echo(screen.show_line(key))
        unchanged = "kept as published" if unsigned else "signed already"
        click.echo(f"{len(signed)} signed, {already} {unchanged}", err=True)
    screen.end_with_refusals(refused)


def _sign_first(
    source: Store,
    target: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    deployments: Sequence[str],
    origin: Mapping[str, str],
    on_taken: OfPublished | None,
) -> list[push.Done]:
    """Sign what a build has left of some deployments, and return what became of each."""
    from serve_warm.builder.provenance import read_provenance

    provenance, trust = read_provenance(environment(), **origin), load_trust()
    with screen.bars() as progress:
        return [
            sign_unsigned(
                source,
                target,
                keys,
                trust=trust,
                deployment=name,
                provenance=provenance,
                on_taken=on_taken or "refuse",
                progress=progress,
            )
            for name in deployments
        ]
