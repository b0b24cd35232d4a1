# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `keygen` and `sign` commands, which make signing keys and sign artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serve_warm.artifact import push
from serve_warm.artifact.manifest import Place
from serve_warm.artifact.unsigned import OfPublished, sign_unsigned
from serve_warm.cli import screen
from serve_warm.config import environment
from serve_warm.stores import Store, open_existing_store, open_store
from serve_warm.trust.files import load_trust, trust_lines
from serve_warm.trust.keys import load_signing_key, write_key_pair

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--name", help="Name of the key in trust files; default: the name of FILE without its suffix."
)
@screen.json_option
def keygen(*, file: Path, name: str | None, json_file: Path | None) -> None:
    """Make an Ed25519 signing key: FILE is the private key, and FILE.pub is the public key.

    The command prints the lines to add to trust.toml on machines that should trust the key. Keep
    the private key where you build artifacts, and never on a replica.
    """
    name = file.stem if name is None else name
    if not name or not name.isprintable():
        raise click.UsageError(f"{name!r} cannot be the name of a key; pass another --name")
    key = write_key_pair(file)
    lines = trust_lines(key.public, name=name)
    if json_file is not None:
        screen.data(
            {
                "private": str(file),
                "public": f"{file}.pub",
                "name": name,
                "id": key.id,
                "trust": lines,
            },
            json_file,
        )
        return
    private, public = screen.show_line(str(file)), screen.show_line(f"{file}.pub")
    click.echo(f"wrote {private} and {public}: give {private} only to builders", err=True)
    click.echo(
        "add these lines to /etc/serve_warm/trust.toml on machines that trust this key:", err=True
    )
    click.echo(lines, nl=False)


@click.command()
@click.argument("store")
@click.option(
    "--key",
    "key_files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="Ed25519 private key (PEM) to sign with; repeatable.",
)
@click.option(
    "--application",
    help="Sign only the artifacts of this application. Required with --unsigned.",
)
@click.option(
    "--deployment",
    "deployments",
    multiple=True,
    help="Sign only the artifacts of this deployment. With --unsigned, required and repeatable.",
)
@click.option(
    "--unsigned",
    is_flag=True,
    help="Sign artifacts that have no signature, such as those from serve-warm build --unsigned. "
    "Anyone who can write to STORE can create such artifacts.",
)
@click.option(
    "--source-commit",
    default="",
    help="With --unsigned: commit of the source code, recorded in the signed artifact.",
)
@click.option(
    "--image",
    default="",
    help="With --unsigned: image in which the build ran. The new signature covers it.",
)
@click.option(
    "--builder",
    default="",
    help="With --unsigned: name of the builder, recorded in the signed artifact. The command "
    "ignores the source, image and builder that the build itself recorded.",
)
@click.option(
    "--publish", "target", help="With --unsigned: the store to publish to; default: STORE."
)
@click.option(
    "--if-published",
    "on_taken",
    type=click.Choice(["refuse", "keep", "supersede"]),
    help="With --unsigned: what to do if an artifact's variant is already published; default: "
    "refuse.",
)
@screen.json_option
def sign(
    *,
    store: str,
    key_files: tuple[Path, ...],
    application: str | None,
    deployments: tuple[str, ...],
    unsigned: bool,
    source_commit: str,
    image: str,
    builder: str,
    target: str | None,
    on_taken: OfPublished | None,
    json_file: Path | None,
) -> None:
    """Sign the artifacts in STORE again, without uploading their parts.

    Use this command to rotate keys: each artifact gets a new statement with its old and new
    signatures. If the command skips an artifact, because this machine does not trust it, the exit
    code is 3.

    With --unsigned, the command adds the first signature, after it has checked the parts. It loads
    nothing, so the model's code never runs in a process that has the key. An unsigned artifact can
    contain false claims, so pass the application, the deployment and the origin as options.
    """
    if not unsigned and (target or on_taken or source_commit or image or builder):
        raise click.UsageError(
            "--publish, --if-published, --source-commit, --image and --builder work only with "
            "--unsigned"
        )
    if unsigned and not (application and deployments):
        raise click.UsageError(
            "--unsigned needs --application NAME and --deployment NAME, because an untrusted build "
            "could name any application and deployment"
        )
    if not unsigned and len(deployments) > 1:
        raise click.UsageError("--deployment can be repeated only with --unsigned")
    keys = [load_signing_key(file) for file in key_files]
    opened = open_existing_store(store)
    if unsigned:
        origin = {"source": source_commit, "image": image, "builder": builder}
        each = _sign_first(
            opened,
            open_store(target or store),
            keys,
            places=[Place(application=application or "", deployment=name) for name in deployments],
            origin=origin,
            on_taken=on_taken,
        )
    else:
        one = "".join(deployments) or None
        each = [
            push.sign(opened, keys, trust=load_trust(), application=application, deployment=one)
        ]
    _show_signed(opened, each, unsigned=unsigned, json_file=json_file)


def _show_signed(
    store: Store, each: Sequence[push.SigningResult], *, unsigned: bool, json_file: Path | None
) -> None:
    """Print the signed artifacts, and end with exit code 3 if any artifact was skipped."""
    signed = [key for done in each for key in done.statements]
    refused = [refusal for done in each for refusal in done.refused]
    already = sum(done.unchanged for done in each)
    if json_file is not None:
        screen.data(
            {
                "store": store.uri,
                "signed": signed,
                "already": already,
                "refused": screen.refusals(refused),
            },
            json_file,
        )
    else:
        for key in signed:
            click.echo(screen.show_line(key))
        unchanged = "kept as published" if unsigned else "already signed"
        click.echo(f"{len(signed)} signed, {already} {unchanged}", err=True)
    screen.end_with_refusals(refused)


def _sign_first(
    source: Store,
    target: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    places: Sequence[Place],
    origin: Mapping[str, str],
    on_taken: OfPublished | None,
) -> list[push.SigningResult]:
    """Sign the unsigned artifacts of some deployments; return the result for each deployment."""
    from serve_warm.builder.provenance import read_provenance

    provenance, trust = read_provenance(environment(), **origin), load_trust()
    return [
        sign_unsigned(
            source,
            target,
            keys,
            trust=trust,
            place=place,
            provenance=provenance,
            on_taken=on_taken or "refuse",
        )
        for place in places
    ]
