# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replays of recorded requests, with the values that they had."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import safetensors
import safetensors.torch

from serve_warm._redaction import describe_error
from serve_warm.compiler.proof import run_eagerly
from serve_warm.errors import ConfigError, ServeWarmError
from serve_warm.inputs import Input
from serve_warm.learn.recorded import NotRepeatable
from serve_warm.learn.recorded_requests import RecordedRequest, with_values


class ReplayedRequest:
    """Makes a recorded request, as an input's target. `call` makes the call of an input."""

    def __init__(self, request: RecordedRequest, call: Callable[[Input], Awaitable[None]]) -> None:
        self._request = request
        self._call = call

    async def replay(self) -> None:
        """Make the request.

        Raises:
            NotRepeatable: the request also fails uncompiled. Then not the artifact is wrong, but
                the plan.
        """
        error = await self._try()
        if error is None:
            return
        with run_eagerly():
            uncompiled = await self._try()
        if uncompiled is None:
            raise error
        text = describe_error(uncompiled)
        raise NotRepeatable(text, hint="remove the request from the plan") from error

    async def _try(self) -> Exception | None:
        try:
            await self._call(as_input(self._request))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return error
        return None


def as_input(request: RecordedRequest) -> Input:
    """Return the input that replays a request.

    Raises:
        ConfigError: its tensors cannot be read.
    """
    try:
        data = base64.b64decode(request.tensors, validate=True)
        tensors = safetensors.torch.load(data) if data else {}
        arguments = with_values(request.arguments, tensors)
        more: dict[str, Any]
        if " " in request.target:
            headers = {"content-type": str(arguments.get("content_type", ""))}
            more = {
                "json": arguments.get("json"),
                "body": base64.b64decode(arguments.get("body", ""), validate=True),
                "headers": headers if headers["content-type"] else {},
            }
        else:
            more = {"args": tuple(arguments["args"]), "kwargs": dict(arguments["kwargs"])}
        # Its values are those of traffic, and a build varies nothing that no person chose.
        return Input(
            target=request.target,
            name=request.name,
            model_id=request.model_id,
            fixed=True,
            **more,
        )
    except (
        ServeWarmError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        safetensors.SafetensorError,
    ) as error:
        raise ConfigError(
            f"the request {request.name} cannot be read: {describe_error(error)}",
            hint="remove it from the plan",
        ) from error
