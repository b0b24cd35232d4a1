# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The `serve-warm` command: data goes to stdout, everything else to stderr.

Exit codes, the same for every command:

    0    Success, or the answer is yes.
    1    Failure: stderr says what to do. `probe`: the node is not ready, and stdout says why.
         `status`: a replica is not ready, no replica exists, or its files cannot be read.
         `check`: the application has problems.
    2    Wrong usage: an argument is invalid, or the file that it names cannot be used. `check`: the
         application cannot be read or imported, so nothing was checked.
    3    The answer is no. `verify`: an artifact was refused, or no artifact exists. `diff`: no
         artifact fits.
    130  Interrupted.
    143  Terminated. `build` and `bench` stop their replicas first.

The module of a command is imported only when the command runs. `serve-warm --help` and the commands
that only read, copy, sign or prune artifacts do not import torch. `diff` works without torch.
"""

from __future__ import annotations

import errno
import logging
import sys
import tempfile

import click

from serve_warm._package import __version__
from serve_warm._redaction import redact
from serve_warm.errors import ServeWarmError, did_you_mean

FAILED = 1
CANNOT_TELL = 2
NO = 3
INTERRUPTED = 130
TERMINATED = 143

COMMANDS = {
    "init": "serve_warm.cli.proposing",
    "check": "serve_warm.cli.checking",
    "run": "serve_warm.cli.running",
    "plan": "serve_warm.cli.planning",
    "build": "serve_warm.cli.starts",
    "bench": "serve_warm.cli.starts",
    "inspect": "serve_warm.cli.artifacts",
    "verify": "serve_warm.cli.artifacts",
    "diff": "serve_warm.cli.fit",
    "push": "serve_warm.cli.artifacts",
    "pull": "serve_warm.cli.artifacts",
    "keygen": "serve_warm.cli.keys",
    "sign": "serve_warm.cli.keys",
    "prune": "serve_warm.cli.pruning",
    "probe": "serve_warm.cli.probing",
    "status": "serve_warm.cli.watching",
    "report": "serve_warm.cli.reporting",
    "metrics": "serve_warm.cli.measuring",
    "why": "serve_warm.cli.explaining",
}
"""Modules by command."""

ON_MACOS = frozenset(
    ["check", "diff", "inspect", "keygen", "prune", "pull", "push", "sign", "verify"]
)
"""Commands that also work on macOS. All other commands start replicas, or read state files of
replicas, and need Linux."""

EXIT_CODES = """\b
Exit codes:
  0    success, or the answer is yes
  1    failure (stderr says what to do), not ready (probe and status),
       or problems found (check)
  2    wrong usage, or the application cannot be imported (check)
  3    the answer is no: an artifact is refused (verify), or none fits (diff)
  130  interrupted
  143  terminated
"""


class _Lazy(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        import importlib

        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name]), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, or suggest other commands."""
        if args[0] not in COMMANDS and args[0][:1].isalnum():
            known = f"the commands are {', '.join(COMMANDS)}"
            ctx.fail(f"No such command {args[0]!r}: {did_you_mean(args[0], COMMANDS) or known}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and not {*ctx.help_option_names} & {*rest}:
            check_system(name)
        return name, command, rest


def check_system(name: str) -> None:
    """Raise if a command cannot work on this system.

    Raises:
        ServeWarmError: the command does not work here. The hint says where the command works.
    """
    platform: str = sys.platform
    if platform == "linux" or (platform == "darwin" and name in ON_MACOS):
        return
    where = "Linux and macOS" if name in ON_MACOS else "Linux"
    raise ServeWarmError(
        f"serve-warm {name} works only on {where}, but this is {platform}",
        hint=f"run the command on {where.replace('and', 'or')}, or in a container",
    )


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="serve-warm")
@click.option("-v", "--verbose", is_flag=True, help="Show log lines on stderr.")
def serve_warm(*, verbose: bool) -> None:
    """Compile-cache artifacts for PyTorch models on Ray Serve: build, publish, verify, measure."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


class _Harmless(logging.Formatter):
    """Redacts credentials and escapes control characters in log lines and tracebacks.

    Log lines from other packages can contain credentials and control characters.
    """

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def harmless(text: str) -> str:
    r"""Return untrusted lines in a form that a terminal can show safely.

    Credentials are redacted. A line with unprintable characters becomes a Python string literal.

    >>> print(harmless("all good\n\x1b[2Ktrusted"))
    all good
    '\x1b[2Ktrusted'
    """
    # Split only at line feeds. splitlines() would also split at control characters, and so hide
    # them from the check below.
    lines = redact(text).expandtabs(4).split("\n")
    return "\n".join(line if line.isprintable() else repr(line) for line in lines)


def main() -> None:
    """Run the command line. Print an error as one message, and exit with one of the codes above."""
    try:
        code = serve_warm(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except SystemExit as end:
        if end.code == TERMINATED:
            click.echo("terminated", err=True)
        raise
    except (ServeWarmError, OSError) as error:
        text = _about(error) if isinstance(error, OSError) else str(error)
        click.echo("error: " + harmless(text), err=True)
        code = FAILED
    sys.exit(code or 0)


def _about(error: OSError) -> str:
    text = error.strerror or type(error).__name__
    text += f": {error.filename}" if error.filename else ""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return text
    return (
        f"{text}\nhint: free some disk space in {tempfile.gettempdir()}, where artifacts are "
        "unpacked, or point TMPDIR at another folder"
    )
