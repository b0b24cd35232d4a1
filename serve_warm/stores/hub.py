# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face Hub model repository as a store, read at one commit.

A branch can move between reads. So the first read and each listing resolve the revision to a
commit, which all later reads use. After a write through this store, later reads use the new commit.
List again to see changes by other writers. Before each write, the store checks the newest commit,
and uses this commit as the parent of the new commit. If several writers commit at once, the Hub
accepts one commit. The other writers check again and retry.
"""

from __future__ import annotations

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
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from serve_warm._daemon_threads import begin
from serve_warm._private_folders import temporary_folder
from serve_warm._records import record
from serve_warm._redaction import excerpt, tainted
from serve_warm.errors import (
    ConfigError,
    ObjectExists,
    ObjectNotFound,
    ObjectTooLarge,
    StoreError,
)
from serve_warm.stores import (
    Listed,
    Object,
    Sink,
    check_key,
    check_prefix,
    explain_change,
    is_key,
    pieces_of,
)
from serve_warm.stores.hub_client import (
    OTHER_SERVER,
    OutrunError,
    Pulse,
    T,
    ask_json,
    check_token_file,
    explain_answer,
    explain_failure,
    hide_progress_bars,
    import_client,
    listener,
    open_api,
    read_retry_after,
)

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, RepoFile, RepoFolder

logger = logging.getLogger(__name__)


_REPOSITORY = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(?<![.-])", re.ASCII)


_REVISION = re.compile(r"(?!.*\.\.)\w[\w./-]{0,250}", re.ASCII)


_COMMIT = re.compile(r"[0-9a-f]{40}")


_COMMIT_TRIES = 20
"""Maximum number of attempts to make a commit. After each conflict, the store checks the newest
commit again."""


_REPEATS = 5
"""Maximum number of times to repeat one request."""


_SLOWEST_UPLOAD = 256 * 1024
"""Speed in bytes per second. A slower upload times out."""


@record(kw_only=True)
class _Pin:
    """The commit to read from. The locks keep the pin from moving back to an older commit."""

    commit: str | None = None
    writes: int = 0
    moving: threading.Lock = field(default_factory=threading.Lock)
    """Lock that is held while the two fields above change."""
    resolving: threading.Lock = field(default_factory=threading.Lock)
    writing: threading.Lock = field(default_factory=threading.Lock)

    def wrote(self, commit: str) -> None:
        """From now on, read from `commit`, which this store has just written."""
        with self.moving:
            self.commit, self.writes = commit, self.writes + 1

    def found(self, commit: str, *, writes: int) -> str:
        """From now on, read from a resolved commit, unless this store has written in the meantime.

        `writes` is the number of writes before the revision was resolved. Return the commit to read
        from.
        """
        with self.moving:
            if self.commit is None or self.writes == writes:
                self.commit = commit
            return self.commit


@record(frozen=True, kw_only=True)
class HubStore:
    """The files of a model repository, or of one folder in it.

    A call times out if the Hub sends nothing for `silence_s`. The client's own retries (six in half
    a minute) happen within this time. A download can take any time as long as data arrives. An
    upload times out if it is slower than 256 KiB/s.
    """

    repository: str
    """The repository, as `owner/name`."""
    revision: str = "main"
    """The branch, tag or commit (40 hex digits) to use. Tags and commits are read-only."""
    prefix: str = ""
    """The folder of the repository that contains the store; empty if the store is the whole
    repository."""
    silence_s: float = 60.0
    _pin: _Pin = field(default_factory=_Pin, repr=False, compare=False)

    @classmethod
    def open(cls, rest: str) -> HubStore:
        """Return the store at `owner/repo[@revision][/prefix]`, without contacting the Hub.

        Write a slash in a revision as `%2F`, as in `refs%2Fpr%2F1`.

        Raises:
            ConfigError: not a valid address, or huggingface_hub is not installed.
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
                "an hf:// address must be hf://owner/repo[@revision][/prefix]",
                hint="for example hf://acme/warm-artifacts@main; write a slash in a revision as "
                "%2F",
            )
        if prefix:
            try:
                check_key(prefix)
            except StoreError as error:
                raise ConfigError(f"the folder in an hf:// address is invalid: {error}") from None
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

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield the keys in the branch's current state, one page for each answer of the Hub.

        Files whose names are not valid keys are skipped. The listed objects have no times, because
        the Hub would need another request for every few files.
        """
        check_prefix(prefix)
        folder, commit = self._path(prefix).rpartition("/")[0], self._commit(anew=True)
        url = self._api("tree", commit) + (f"/{urllib.parse.quote(folder)}" if folder else "")
        sent: dict[str, Any] = {"params": {"recursive": True, "expand": False}}
        while url:
            ask = functools.partial(self._page, url=url, prefix=prefix, sent=sent)
            try:
                page, url = self._call("list", prefix, ask)
            except ObjectNotFound:
                return  # the folder does not exist
            sent = {}  # the URL of the next page includes the parameters
            yield page

    def _page(
        self, pulse: Pulse, *, url: str, prefix: str, sent: dict[str, Any]
    ) -> tuple[Sequence[Listed], str]:
        """Return the objects listed in one answer of the Hub, and the URL of the next page."""
        entries, following = ask_json(pulse, "GET", url, **sent)
        root = self._path("")
        paths = [entry["path"] for entry in entries if entry["type"] == "file"]
        keys = [path.removeprefix(root) for path in paths if path.startswith(root)]
        listed = [Listed(key=key) for key in keys if key.startswith(prefix) and is_key(key)]
        return listed, following

    def _api(self, what: str, revision: str) -> str:
        quoted = urllib.parse.quote(revision, safe="")
        return f"{open_api().endpoint}/api/models/{self.repository}/{what}/{quoted}"

    def head(self, key: str) -> Object:
        """Return the metadata of an object, with the commit that was read as the version."""
        check_key(key)
        commit = self._commit()
        file = self._look(key, commit)
        if file is None:
            raise ObjectNotFound(key, store=self.uri)
        date = file.last_commit.date if file.last_commit else None
        return Object(
            key=key,
            size_bytes=file.size,
            # If the time is unknown, treat the object as new: a prune would remove an old object.
            modified_unix=_seconds(date) if date else time.time(),
            version=commit,
        )

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`, after checking its size."""
        check_key(key)
        commit = self._commit()
        size_bytes = self._size(key, commit)
        if size_bytes > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        with self._fetch(key, commit, size_bytes) as file:
            return file.read()

    def download(self, found: Object, sink: Sink) -> None:
        """Pass an object to `sink`, read from the commit in which `head` found the object.

        The object is first downloaded to a private temporary folder, which needs disk space for the
        whole object. The Hub keeps the history, so an object that was deleted after `head` can
        still be read.
        """
        check_key(found.key)
        if not _COMMIT.fullmatch(found.version):
            raise StoreError(
                f"{self.uri}: the version is not a commit: {excerpt(found.version, 80)!r}"
            )
        if self._size(found.key, found.version) != found.size_bytes:
            raise explain_change(self.uri, found.key)
        with self._fetch(found.key, found.version, found.size_bytes) as file:
            offset = 0
            for piece in pieces_of(file):
                sink(offset, piece)
                offset += len(piece)

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object with one commit, whose parent commit does not contain the key."""
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
                # Keep the operation between attempts, so that data is not uploaded twice.
                operation = operation or self._upload(key, source, folder)
                if (made := self._try_commit("write", key, operation, head, tries)) is not None:
                    self._check_there(key, made, operation.upload_info.size)
                    self._pin.wrote(made)
                    return

    def delete(self, key: str) -> None:
        """Remove an object from the branch. Earlier commits still contain it."""
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

    def _commit(self, *, anew: bool = False) -> str:
        """Return the commit to read. On first use, the revision is resolved to this commit.

        With `anew`, the revision is resolved again.
        """
        with self._pin.resolving:
            before, writes = self._pin.commit, self._pin.writes
            if before is not None and not anew:
                return before
            commit = self._pin.found(self._resolve(), writes=writes)
        if commit != before:
            logger.info(
                "reading hf repo=%s revision=%s commit=%s", self.repository, self.revision, commit
            )
        return commit

    def _resolve(self) -> str:
        if _COMMIT.fullmatch(self.revision):
            return self.revision

        def ask(pulse: Pulse) -> Any:
            url = self._api("revision", self.revision)
            return ask_json(pulse, "GET", url, params={"expand": ["sha"]})[0].get("sha")

        commit = self._call("resolve", self.revision, ask)
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise StoreError(
                f"{self.uri}: the Hub returned no commit for {self.revision!r}", hint=OTHER_SERVER
            )
        return commit

    def _check_branch(self, verb: str, key: str) -> None:
        if _COMMIT.fullmatch(self.revision):
            raise StoreError(
                f"{self.uri}: cannot {verb} {key!r}: the address names a commit, "
                "and a commit never changes",
                hint="use a branch instead, as in hf://owner/repo@main",
            )

    def _try_commit(
        self,
        verb: str,
        key: str,
        operation: CommitOperationAdd | CommitOperationDelete,
        parent: str,
        tries: int,
    ) -> str | None:
        """Return the new commit, or None if another commit came first and the caller must retry."""

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
            # Random delay, so that competing writers do not collide again.
            time.sleep(random.SystemRandom().uniform(0, min(2.0, 0.05 * 2**tries)))
            return None
        if not _COMMIT.fullmatch(made):
            raise StoreError(f"{self.uri}: the Hub returned no commit after writing {key!r}")
        return made

    def _upload(self, key: str, source: bytes | BinaryIO, folder: Path) -> CommitOperationAdd:
        """Upload large content now. Small content is sent later, with the commit."""
        from huggingface_hub import CommitOperationAdd

        content: bytes | Path
        if isinstance(source, bytes):
            content, size_bytes = source, len(source)
        else:
            # Copy the data to a named file, because the client cannot upload open files with Xet.
            content = folder / "object"
            with self._disk(key), open(content, "wb") as file:
                file.writelines(pieces_of(source))
            size_bytes = content.stat().st_size

        def ask(_: Pulse) -> CommitOperationAdd:
            operation = CommitOperationAdd(self._path(key), content)
            hide_progress_bars()
            open_api().preupload_lfs_files(
                self.repository, [operation], revision=self.revision, free_memory=False
            )
            return operation

        # The client reports no activity during an upload.
        silence_s = self.silence_s + size_bytes / _SLOWEST_UPLOAD
        return self._call("write", key, ask, silence_s=silence_s)

    def _check_there(self, key: str, commit: str, size_bytes: int) -> None:
        # The Hub skips files that match the repository's .gitignore, but reports success.
        file = self._look(key, commit)
        if file is None or file.size != size_bytes:
            raise StoreError(
                f"{self.uri}: the Hub accepted a commit with {key!r}, but the commit does not "
                "contain the object",
                hint="check whether the .gitignore of the repository excludes the object",
            )

    def _holds(self, found: RepoFile, key: str, commit: str, source: bytes | BinaryIO) -> bool:
        if found.lfs is not None:
            # This is a large file, whose digest the Hub knows.
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
        """Return the file under a key, or None.

        With `parents="refuse"`, raise ObjectExists if the key is a folder, or if a parent folder of
        the key is a file. A commit would replace this folder or file.
        """
        from huggingface_hub import RepoFile, RepoFolder

        path = self._path(key)
        names = path.split("/") if parents == "refuse" else []
        above = ["/".join(names[:count]) for count in range(1, len(names))]

        def ask(pulse: Pulse) -> list[RepoFile | RepoFolder]:
            url = self._api("paths-info", commit)
            found, _ = ask_json(pulse, "POST", url, data={"paths": [*above, path], "expand": True})
            return [(RepoFile if one["type"] == "file" else RepoFolder)(**one) for one in found]

        entries = self._call("look up", key, ask)
        for entry in entries:
            if parents == "refuse" and isinstance(entry, RepoFile) == (entry.path in above):
                raise ObjectExists(entry.path, store=f"hf://{self.repository}")
        files = [entry for entry in entries if isinstance(entry, RepoFile) and entry.path == path]
        if any(not isinstance(file.size, int) or file.size < 0 for file in files):
            raise StoreError(f"{self.uri}: the Hub reports no size for {key!r}")
        return files[0] if files else None

    def _size(self, key: str, commit: str) -> int:
        def ask(_: Pulse) -> tuple[str | None, int | None]:
            from huggingface_hub import get_hf_file_metadata, hf_hub_url

            url = hf_hub_url(self.repository, self._path(key), revision=commit)
            metadata = get_hf_file_metadata(url, retry_on_errors=False)
            return metadata.commit_hash, metadata.size

        answered, size_bytes = self._call("read", key, ask, repeats=True)
        if answered != commit:
            raise StoreError(
                f"{self.uri}: requested {key!r} at commit {commit}, but the answer is for "
                f"{excerpt(str(answered), 40)!r}",
                hint="" if answered else OTHER_SERVER,
            )
        if size_bytes is None:
            raise StoreError(f"{self.uri}: the Hub reports no size for {key!r}")
        return size_bytes

    @contextmanager
    def _fetch(self, key: str, commit: str, size_bytes: int) -> Iterator[BinaryIO]:
        with self._temporary_folder(key) as folder:

            def ask(pulse: Pulse) -> str:
                from huggingface_hub import hf_hub_download

                # Use private folders: the client uses files in its shared cache without checking
                # them, and other users may have put them there.
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
                raise explain_change(self.uri, key)
            with open(path, "rb") as file:
                yield file

    @contextmanager
    def _temporary_folder(self, key: str) -> Iterator[Path]:
        with ExitStack() as opened:
            with self._disk(key):
                # A call that timed out may still write to the folder while it is removed.
                folder = opened.enter_context(temporary_folder())
            yield folder

    @contextmanager
    def _disk(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self.uri}: cannot write a temporary copy of {key!r}: {error.strerror}",
                hint="set TMPDIR to a folder with enough space",
            ) from error

    # --- calls of huggingface_hub -------------------------------------------------------

    def _call(
        self,
        verb: str,
        key: str,
        ask: Callable[[Pulse], T],
        *,
        silence_s: float | None = None,
        repeats: bool = False,
    ) -> T:
        """Return the client's answer. The client's exceptions become StoreErrors.

        If the Hub is busy and says when to come back, the call waits and repeats the request, but
        waits no longer than `silence_s` in total. With `repeats`, it repeats the request after
        other failures too, because the client does not.

        Most of the client's requests have no timeout, and no timeout can be set for a single call.
        So each call runs in its own thread. If the call times out, the thread is abandoned.
        """
        check_token_file(self.uri)
        silence_s = self.silence_s if silence_s is None else silence_s
        until = time.monotonic() + silence_s
        tries = 0
        while True:
            tries += 1
            future = self._run(verb, key, ask, silence_s)
            # Raise outside of any `except` block, so that the client's exception does not become
            # the context of the new one.
            error = future.exception()
            if error is None:
                return future.result()
            failure = self._translate(error, verb, key)
            pause_s = failure.retry_after_s
            if repeats and not pause_s and type(failure) is StoreError:
                pause_s = min(8.0, 2.0 ** (tries - 1))
            if not pause_s or tries > _REPEATS or time.monotonic() + pause_s > until:
                raise failure from tainted(error)
            time.sleep(pause_s)

    def _run(self, verb: str, key: str, ask: Callable[[Pulse], T], silence_s: float) -> Future[T]:
        """Return the ended call; raise if the Hub is silent for too long."""
        pulse = Pulse()
        future = begin(functools.partial(ask, pulse), name="serve_warm-hub")
        try:
            while not future.done():
                left_s = pulse.at + silence_s - time.monotonic()
                if left_s <= 0:
                    raise StoreError(
                        f"{self.uri}: cannot {verb} {key!r}: no answer from the Hub for "
                        f"{silence_s:.0f} s"
                    )
                wait([future], timeout=left_s)
        finally:
            pulse.given_up = True
        return future

    def _translate(self, error: BaseException, verb: str, key: str) -> StoreError:
        from huggingface_hub import errors

        # The client may wrap an HTTP error in an error about its cache or an upload.
        causes = [error]
        while (cause := causes[-1].__cause__) is not None and cause not in causes:
            causes.append(cause)
        answers = [one for one in causes if isinstance(one, errors.HfHubHTTPError)]
        if answers and isinstance(answers[0], errors.RemoteEntryNotFoundError):
            return ObjectNotFound(key, store=self.uri)
        kind, what, hint = (
            explain_answer(answers[0], repository=self.repository, revision=self.revision)
            if answers
            else explain_failure(causes[-1])
        )
        pause_s = read_retry_after(answers[0]) if answers else 0.0
        text = f"{self.uri}: cannot {verb} {key!r}: {what}"
        return kind(text, hint=hint, retry_after_s=pause_s)


def _seconds(date: datetime) -> float:
    # `timestamp` raises OverflowError and ValueError for some dates without a time zone.
    known = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
    return known.timestamp()
