# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings: raw samples that arrive in pieces, checked and cut into chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import torch

RATE = 16_000
"""Samples per second. A recording has one channel."""
SampleFormat = Literal["int16", "float32"]
SAMPLE_BYTES: dict[SampleFormat, int] = {"int16": 2, "float32": 4}
FILES = {b"RIFF": "a WAV file", b"OggS": "an Ogg file", b"fLaC": "a FLAC file", b"ID3": "an MP3"}
"""First bytes of the file formats that have a header. Such files are refused."""


class BadRecordingError(ValueError):
    """Raised for a bad recording. Contains one sentence and the HTTP status of the answer."""

    def __init__(self, sentence: str, *, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The format of a recording, and how the recording is cut into chunks."""

    format: SampleFormat
    chunk_s: float
    """Length of a chunk in seconds. The last chunk may be shorter."""
    max_s: float
    """Longest recording, in seconds."""

    async def chunks(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[torch.Tensor]:
        """Yield the samples of each chunk, as numbers from -1 to 1, once the chunk is complete.

        Raises:
            BadRecordingError: the recording is empty, too long, not raw samples, or ends inside a
            sample.
        """
        chunk_bytes = max(1, round(self.chunk_s * RATE)) * SAMPLE_BYTES[self.format]
        rest, total = bytearray(), 0
        async for piece in pieces:
            rest += piece
            total += len(piece)
            self.check_length(total)
            if total == len(rest):  # still the beginning
                check_beginning(rest)
            while len(rest) >= chunk_bytes:
                yield self.samples(rest[:chunk_bytes])
                del rest[:chunk_bytes]
        self.check_size(total)
        if rest:
            yield self.samples(rest)

    def check_length(self, size: int) -> None:
        """Raise `BadRecordingError` if this number of bytes exceeds the longest recording."""
        if size > self.max_s * RATE * SAMPLE_BYTES[self.format]:
            raise BadRecordingError(
                f"A recording has at most {self.max_s:g} s, but this one is longer: cut it.",
                status=413,
            )

    def check_size(self, size: int) -> None:
        """Raise `BadRecordingError` if a whole recording cannot have this number of bytes."""
        self.check_length(size)
        if not size:
            raise BadRecordingError("A recording needs at least one sample, but this one is empty.")
        width = SAMPLE_BYTES[self.format]
        if size % width:
            raise BadRecordingError(
                f"A sample of {self.format} has {width} bytes, but this recording of {size} bytes "
                "ends inside a sample."
            )

    def samples(self, data: bytearray) -> torch.Tensor:
        """Return the samples as float32.

        Raises:
            BadRecordingError: a sample is outside -1 to 1, so the samples are not float32.
        """
        # A copy, because torch keeps the memory that it is given.
        raw = torch.frombuffer(bytearray(data), dtype=getattr(torch, self.format))
        if self.format == "int16":
            return raw / 32_768
        if not bool((raw.abs() <= 1).all()):
            raise BadRecordingError(
                "A float32 sample is a number from -1 to 1, but some samples of this recording are "
                "not: if the samples are int16, send format=int16."
            )
        return raw


def check_beginning(data: bytearray) -> None:
    """Raise `BadRecordingError` if this is the beginning of a file with a header."""
    for beginning, what in FILES.items():
        if data.startswith(beginning):
            raise BadRecordingError(
                f"A recording is raw samples of {RATE} Hz and one channel, but this is {what}."
            )
