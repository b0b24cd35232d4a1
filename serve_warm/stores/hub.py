# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A model repository of the Hugging Face Hub as a store, read at one commit.

A branch moves while it is read, so its revision is resolved by each `list`, or at first use, and
what is asked for afterwards is read at that commit. Otherwise only our own writes move it on. So
whoever lists again, to see what others have done meanwhile, does see it. Writing an object is a
commit that names the commit it was decided on as its parent: the Hub takes one of several such
commits, and the others look again.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import itertools
import logging
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from serve_warm._daemon_threads import begin
from serve_warm._private_folders import temporary_folder
from serve_warm._redaction import tainted
from serve_warm.errors import (
    ConfigError,
    ObjectExists,
    ObjectNotFound,
    ObjectTooLarge,
    StoreDenied,
    StoreError,
)
from serve_warm.stores import (
    Listed,
    Object,
    Sink,
    check_key,
    check_prefix,
    is_key,
    pieces_of,
    sort_keys,
)
from serve_warm.stores.hub_client import (
    LOG_IN,
    OutrunError,
    Pulse,
    T,
    explain_failure,
    import_client,
    listener,
    no_progress_bars,
    open_api,
)

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, RepoFile
    from huggingface_hub.errors import HfHubHTTPError

logger = logging.getLogger(__name__)


_REPOSITORY = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(?<![.-])", re.ASCII)


_REVISION = re.compile(r"(?!.*\.\.)\w[\w./-]{0,250}", re.ASCII)


_COMMIT = re.compile(r"[0-9a-f]{40}")


PAGE_FILES = 1_000
"""Entries of the tree that the Hub gives at once."""


_COMMIT_TRIES = 20
"""Each time that somebody else's commit came first, all looks again and decides again."""


_SLOWEST_UPLOAD = 256 * 1024
"""Bytes a second: an upload that would take longer than at this speed is given up."""


@dataclass(kw_only=True)
class _Pin:
    """The commit that is read; the locks keep it from going back."""

    commit: str | None = None
    writes: int = 0
    moving: threading.Lock = field(default_factory=threading.Lock)
    """Held while the two fields above change."""
    resolving: threading.Lock = field(default_factory=threading.Lock)
    writing: threading.Lock = field(default_factory=threading.Lock)

    def wrote(self, commit: str) -> None:
        """Move on to a commit that has what was just written."""
        with self.moving:
            self.commit, self.writes = commit, self.writes + 1

    def found(self, commit: str, *, writes: int) -> str:
        """Move on to a commit, unless there were more writes since; returns the one to read."""
        with self.moving:
            if self.commit is None or self.writes == writes:
                self.commit = commit
            return self.commit


@dataclass(frozen=True, kw_only=True)
class HubStore:
    """The files of a model repository, or those under one folder of it.

    A call that hears nothing from the Hub is given up after `silence_s`. The time includes the
    client's own retries, which are six in half a minute. A download may take as long as it goes
    on, an upload as long as at 256 KiB/s.
    """

    repository: str
    """`owner/name`."""
    revision: str = "main"
    """A branch; a tag or a commit of 40 hex digits, which can only be read."""
    prefix: str = ""
    """The folder of the repository that is the store; empty for all of it."""
    silence_s: float = 60.0
    _pin: _Pin = field(default_factory=_Pin, repr=False, compare=False)

    @classmethod
    def open(cls, rest: str) -> HubStore:
        """Return the store at `owner/repo[@revision][/prefix]`; nothing is asked of the Hub.

        A slash in a revision is written `%2F`, as in `refs%2Fpr%2F1`.

        Raises:
            ConfigError: not such an address, or huggingface_hub is not installed.
        """
        owner, _, after = rest.partition("/")
        named, _, prefix = after.partition("/")
        name, at, quoted = named.partition("@")
        revision = urllib.parse.unquote(quoted) if at else "main"
        prefix = prefix.removesuffix("/")
        if not (
            _REPOSITORY.fullmatch(owner)
            and _REPOSITORY.fullmatch(name)
            and _REVISION.fullmatch(revision)
        ):
            raise ConfigError(
                "the address of a hf: store is not owner/repo[@revision][/prefix]",
                hint="for example hf://acme/warm-artifacts@main; a slash in a revision is %2F",
            )
        if prefix:
            try:
                check_key(prefix)
            except StoreError as error:
                raise ConfigError(f"the folder in the address of a hf: store is {error}") from None
        import_client()
        return cls(repository=f"{owner}/{name}", revision=revision, prefix=prefix)

    @property
    def uri(self) -> str:
        """The address as `hf://owner/repo[@revision][/prefix]`, without `@main`."""
        revision = urllib.parse.quote(self.revision, safe="")
        return (
            f"hf://{self.repository}"
            + ("" if revision == "main" else f"@{revision}")
            + (f"/{self.prefix}" if self.prefix else "")
        )

    def list(self, prefix: str) -> builtins.list[str]:
        """Return the files that begin with `prefix`, of what the branch is now.

        Those whose names are no keys are left out.
        """
        return sort_keys(self.pages(prefix))

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield what `list` returns, of `PAGE_FILES` files at a time.

        Without times: the Hub has them for one more request a few files.
        """
        from huggingface_hub import RepoFile

        check_prefix(prefix)
        folder, commit = self._path(prefix).rpartition("/")[0], self._move_on()
        entries = open_api().list_repo_tree(
            self.repository, folder or None, recursive=True, revision=commit
        )
        stream, root = iter(entries), self._path("")
        while True:
            try:
                some = self._call(
                    "list", prefix, lambda _: list(itertools.islice(stream, PAGE_FILES))
                )
            except ObjectNotFound:
                return  # there is no such folder
            if not some:
                return
            paths = [entry.path for entry in some if isinstance(entry, RepoFile)]
            keys = [path.removeprefix(root) for path in paths if path.startswith(root)]
            yield [Listed(key=key) for key in keys if key.startswith(prefix) and is_key(key)]

    def head(self, key: str) -> Object:
        """Return size and time of an object; the version is the commit it is read at."""
        check_key(key)
        commit = self._commit()
        file = self._look(key, commit)
        if file is None:
            raise ObjectNotFound(key, store=self.uri)
        date = file.last_commit.date if file.last_commit else None
        return Object(
            key=key,
            size_bytes=file.size,
            # What may be new must not be taken for old: a prune would remove it.
            modified_unix=date.timestamp() if date else time.time(),
            version=commit,
        )

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`, whose size is asked for first."""
        check_key(key)
        commit = self._commit()
        size_bytes = self._size(key, commit)
        if size_bytes > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        with self._fetch(key, commit, size_bytes) as file:
            return file.read()

    def download(self, found: Object, sink: Sink) -> None:
        """Give an object to `sink` as it is at the commit that `head` found it at.

        It is fetched into a private temporary folder first, which takes its size on disk. The
        Hub keeps the past: what has been deleted since can still be read.
        """
        check_key(found.key)
        if not _COMMIT.fullmatch(found.version):
            raise StoreError(f"{self.uri}: no commit: {found.version[:80]!r}", key=found.key)
        if self._size(found.key, found.version) != found.size_bytes:
            raise self._explain_change(found.key)
        with self._fetch(found.key, found.version, found.size_bytes) as file:
            offset = 0
            for piece in pieces_of(file):
                sink(offset, piece)
                offset += len(piece)

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object by one commit, made on the commit that had nothing under the key."""
        check_key(key)
        self._check_branch("write", key)
        with self._temporary_folder(key) as folder, self._pin.writing:
            operation: CommitOperationAdd | None = None
            for tries in itertools.count(1):
                head = self._resolve()
                if (found := self._look(key, head, parents="refuse")) is not None:
                    if not self._holds(found, key, head, source):
                        raise ObjectExists(key, store=self.uri)
                    self._pin.wrote(head)
                    return
                # Kept over the tries: what it has uploaded need not be uploaded again.
                operation = operation or self._upload(key, source, folder)
                if (made := self._try_commit("write", key, operation, head, tries)) is not None:
                    self._check_there(key, made, operation.upload_info.size)
                    self._pin.wrote(made)
                    return

    def delete(self, key: str) -> None:
        """Remove an object from the branch; the commits before keep it."""
        check_key(key)
        self._check_branch("delete", key)
        from huggingface_hub import CommitOperationDelete

        with self._pin.writing:
            for tries in itertools.count(1):
                head = self._resolve()
                if self._look(key, head) is None:
                    self._pin.wrote(head)
                    return
                operation = CommitOperationDelete(self._path(key), is_folder=False)
                if (made := self._try_commit("delete", key, operation, head, tries)) is not None:
                    self._pin.wrote(made)
                    return

    # --- commits ---------------------------------------------------------------------------

    def _commit(self) -> str:
        """Return the commit that is read."""
        with self._pin.resolving:
            return self._pin.commit or self._resolve_and_pin()

    def _move_on(self) -> str:
        """Return the commit that is read from here on: the one where the branch is now."""
        with self._pin.resolving:
            return self._resolve_and_pin()

    def _resolve_and_pin(self) -> str:
        before, writes = self._pin.commit, self._pin.writes
        commit = self._pin.found(self._resolve(), writes=writes)
        if commit != before:
            logger.info(
                "reading hf repo=%s revision=%s commit=%s", self.repository, self.revision, commit
            )
        return commit

    def _resolve(self) -> str:
        if _COMMIT.fullmatch(self.revision):
            return self.revision

        def ask(_: Pulse) -> str | None:
            info = open_api().model_info(self.repository, revision=self.revision, expand=["sha"])
            return info.sha

        commit = self._call("resolve", self.revision, ask)
        if commit is None or not _COMMIT.fullmatch(commit):
            raise StoreError(f"{self.uri}: the Hub names no commit for {self.revision!r}")
        return commit

    def _check_branch(self, verb: str, key: str) -> None:
        if _COMMIT.fullmatch(self.revision):
            raise StoreError(
                f"{self.uri}: cannot {verb} {key!r}: the address names a commit, "
                "and a commit never changes",
                hint="name a branch instead, as in hf://owner/repo@main",
                key=key,
            )

    def _try_commit(
        self,
        verb: str,
        key: str,
        operation: CommitOperationAdd | CommitOperationDelete,
        parent: str,
        tries: int,
    ) -> str | None:
        """Return the new commit; None when somebody else's came first and all is open again."""

        def ask(_: Pulse) -> str:
            made = open_api().create_commit(
                self.repository,
                [operation],
                commit_message=f"{verb.capitalize()} {key}",
                revision=self.revision,
                parent_commit=parent,
            )
            return made.oid

        try:
            made = self._call(verb, key, ask)
        except OutrunError:
            if tries == _COMMIT_TRIES:
                raise
            # Apart from one another, or the same ones would meet again.
            time.sleep(random.SystemRandom().uniform(0, min(2.0, 0.05 * 2**tries)))
            return None
        if not _COMMIT.fullmatch(made):
            raise StoreError(f"{self.uri}: the Hub names no commit after writing {key!r}", key=key)
        return made

    def _upload(self, key: str, source: bytes | BinaryIO, folder: Path) -> CommitOperationAdd:
        """Send the bytes if they are many; a few are sent with the commit."""
        from huggingface_hub import CommitOperationAdd

        content: bytes | Path
        if isinstance(source, bytes):
            content, size_bytes = source, len(source)
        else:
            # A file of our own, by name: the client sends an open file only without Xet.
            content = folder / "object"
            with self._disk(key), open(content, "wb") as file:
                file.writelines(pieces_of(source))
            size_bytes = content.stat().st_size

        def ask(_: Pulse) -> CommitOperationAdd:
            operation = CommitOperationAdd(self._path(key), content)
            with no_progress_bars():
                open_api().preupload_lfs_files(
                    self.repository, [operation], revision=self.revision, free_memory=False
                )
            return operation

        # Nothing is heard while it goes on.
        silence_s = self.silence_s + size_bytes / _SLOWEST_UPLOAD
        return self._call("write", key, ask, silence_s=silence_s)

    def _check_there(self, key: str, commit: str, size_bytes: int) -> None:
        # The Hub leaves out what a .gitignore of the repository names, and reports success.
        file = self._look(key, commit)
        if file is None or file.size != size_bytes:
            raise StoreError(
                f"{self.uri}: the Hub took the commit of {key!r} without the object",
                hint="does the repository have a .gitignore that names it?",
                key=key,
            )

    def _holds(self, found: RepoFile, key: str, commit: str, source: bytes | BinaryIO) -> bool:
        if found.lfs is not None:
            # Large, and the Hub knows its digest.
            digest = hashlib.sha256()
            for piece in pieces_of(source):
                digest.update(piece)
            return digest.hexdigest() == found.lfs.sha256
        with self._fetch(key, commit, found.size) as file:
            pairs = itertools.zip_longest(pieces_of(source), pieces_of(file))
            return all(ours == theirs for ours, theirs in pairs)

    # --- files -----------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _look(self, key: str, commit: str, *, parents: str = "ignore") -> RepoFile | None:
        """Return what stands under a key.

        With `parents="refuse"` it is an error that the key is a folder or goes through a file: a
        commit there would replace what it goes through.
        """
        from huggingface_hub import RepoFile

        path = self._path(key)
        names = path.split("/") if parents == "refuse" else []
        above = ["/".join(names[:count]) for count in range(1, len(names))]
        entries = self._call(
            "look up",
            key,
            lambda _: open_api().get_paths_info(
                self.repository, [*above, path], expand=True, revision=commit
            ),
        )
        for entry in entries:
            if parents == "refuse" and isinstance(entry, RepoFile) == (entry.path in above):
                raise ObjectExists(entry.path, store=f"hf://{self.repository}")
        files = [entry for entry in entries if isinstance(entry, RepoFile) and entry.path == path]
        if any(not isinstance(file.size, int) or file.size < 0 for file in files):
            raise StoreError(f"{self.uri}: the Hub gives no size for {key!r}", key=key)
        return files[0] if files else None

    def _size(self, key: str, commit: str) -> int:
        def ask(_: Pulse) -> tuple[str | None, int | None]:
            from huggingface_hub import get_hf_file_metadata, hf_hub_url

            url = hf_hub_url(self.repository, self._path(key), revision=commit)
            metadata = get_hf_file_metadata(url, retry_on_errors=True)
            return metadata.commit_hash, metadata.size

        answered, size_bytes = self._call("read", key, ask)
        if answered != commit:
            raise StoreError(
                f"{self.uri}: asked for {key!r} at commit {commit}, and was answered for "
                f"{str(answered)[:40]!r}",
                hint="" if answered else "is HF_ENDPOINT, or a proxy, that of a Hub?",
                key=key,
            )
        if size_bytes is None:
            raise StoreError(f"{self.uri}: the Hub gives no size for {key!r}", key=key)
        return size_bytes

    @contextmanager
    def _fetch(self, key: str, commit: str, size_bytes: int) -> Iterator[BinaryIO]:
        with self._temporary_folder(key) as folder:

            def ask(pulse: Pulse) -> str:
                from huggingface_hub import hf_hub_download

                # Both folders are ours: the client takes what the shared cache has under this
                # name without reading it again, whoever put it there.
                return hf_hub_download(
                    self.repository,
                    self._path(key),
                    revision=commit,
                    local_dir=folder / "files",
                    cache_dir=folder / "cache",
                    tqdm_class=listener(pulse, max_bytes=size_bytes),
                )

            path = Path(self._call("read", key, ask))
            if path.stat().st_size != size_bytes:
                raise self._explain_change(key)
            with open(path, "rb") as file:
                yield file

    @contextmanager
    def _temporary_folder(self, key: str) -> Iterator[Path]:
        with ExitStack() as opened:
            with self._disk(key):
                # A call that was given up may still be writing into it at the end.
                folder = opened.enter_context(temporary_folder())
            yield folder

    @contextmanager
    def _disk(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self.uri}: no temporary copy of {key!r}: {error.strerror}",
                hint="set TMPDIR to a folder with room for it",
                key=key,
            ) from error

    def _explain_change(self, key: str) -> StoreError:
        return StoreError(f"{self.uri}: {key!r} was changed while it was read", key=key)

    # --- the border to huggingface_hub -------------------------------------------------------

    def _call(
        self, verb: str, key: str, ask: Callable[[Pulse], T], *, silence_s: float | None = None
    ) -> T:
        """Return what the client answers; what it raises becomes one of our errors.

        The client sets no time limit for most of its requests and has no way to set one for a
        call. So the call has a thread of its own, which is left behind when it is given up.
        """
        silence_s = self.silence_s if silence_s is None else silence_s
        pulse = Pulse()
        future = begin(functools.partial(ask, pulse), name="serve_warm-hub")
        try:
            while not future.done():
                left_s = pulse.at + silence_s - time.monotonic()
                if left_s <= 0:
                    raise StoreError(
                        f"{self.uri}: cannot {verb} {key!r}: nothing heard from the Hub "
                        f"for {silence_s:.0f} s",
                        key=key,
                    )
                wait([future], timeout=left_s)
        finally:
            pulse.given_up = True
        # Outside of any `except`: the client's exception must not even be the context of ours.
        error = future.exception()
        if error is None:
            return future.result()
        raise self._translate(error, verb, key) from tainted(error)

    def _translate(self, error: BaseException, verb: str, key: str) -> StoreError:
        from huggingface_hub import errors

        # The client wraps an answer of the Hub in errors about its cache, or about an upload.
        causes = [error]
        while (cause := causes[-1].__cause__) is not None and cause not in causes:
            causes.append(cause)
        answers = [one for one in causes if isinstance(one, errors.HfHubHTTPError)]
        if answers and isinstance(answers[0], errors.RemoteEntryNotFoundError):
            return ObjectNotFound(key, store=self.uri)
        kind, what, hint = self._answer(answers[0]) if answers else explain_failure(causes[-1])
        return kind(f"{self.uri}: cannot {verb} {key!r}: {what}", hint=hint, key=key)

    def _answer(self, error: HfHubHTTPError) -> tuple[type[StoreError], str, str]:
        from huggingface_hub import errors

        status = error.response.status_code
        if isinstance(error, errors.GatedRepoError):
            what = "the repository is gated, and this account has not been let in"
            return StoreDenied, what, f"ask for access on the page of the repository; {LOG_IN}"
        if isinstance(error, errors.RepositoryNotFoundError):
            what = "there is no such repository, or this account may not see it"
            hint = f"create it with `hf repos create {self.repository}`, or log in: {LOG_IN}"
            return StoreDenied, what, hint
        if isinstance(error, errors.RevisionNotFoundError):
            what = f"the repository has no revision {self.revision!r}"
            return StoreDenied, what, "create the branch, or correct the address"
        if status in (401, 403):
            return StoreDenied, f"the Hub refuses (HTTP {status})", LOG_IN
        if status in (409, 412):
            what = f"other commits to the branch came first (HTTP {status})"
            return OutrunError, what, "try again, or publish to another branch"
        return StoreError, f"the Hub answers HTTP {status}", ""
