# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of a request's values, made before its handler can change them.

Describing happens in the request, so it stops as soon as the request is too large to record. The
copies do not leave the process before `finish` has hidden their secrets.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch

from serve_warm.inputs import HTTP_TARGET
from serve_warm.learn.hidden_values import Hider, is_secret
from serve_warm.learn.recorded import class_name
from serve_warm.learn.recorded_requests import (
    MOST_BYTES,
    Budget,
    NotRecordable,
    RecordedRequest,
    plain,
    size_of,
    with_values,
)

Scrub = Callable[[str, dict[str, Any]], "dict[str, Any] | None"]
"""Returns what to keep of a target's arguments, or None to keep nothing."""

NEEDS_SCRUB = "it has bytes, or a body that is not JSON, which are recorded only with `scrub`"
HAS_CREDENTIALS = (
    "it has credentials in its headers (Authorization, Cookie), without which a replay is refused"
)
NO_ARGUMENTS = "`scrub` returned something that is no arguments of a request"
DROPPED = "`scrub` returned None"

_BODILESS = ("GET", "HEAD", "DELETE", "OPTIONS")


@dataclass(frozen=True, kw_only=True)
class Description:
    """The values of one request, as they came."""

    target: str
    arguments: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The tensors and arrays that the arguments refer to."""
    model_id: str = ""
    names: Sequence[str] = ()
    """The parameters that the positional arguments are for."""

    def size(self) -> int:
        """Return the number of bytes of the request, as JSON with its tensors in base64."""
        bare = RecordedRequest(target=self.target, arguments=self.arguments, model_id=self.model_id)
        return size_of(bare) + sum(map(_size_of_tensor, self.tensors.values()))


def describe_call(
    method: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    names: Sequence[str],
    model_id: str,
    keeps_bytes: bool,
) -> Description:
    """Return the values of a call of a method.

    Raises:
        NotRecordable: a value cannot be recorded.
    """
    tensors, budget = _Tensors(), Budget()
    other = functools.partial(_other, tensors, budget, keeps_bytes=keeps_bytes)
    arguments = {
        "args": [plain(each, other, budget=budget) for each in args],
        "kwargs": plain(dict(kwargs), other, budget=budget),
    }
    return Description(
        target=method, arguments=arguments, tensors=tensors, model_id=model_id, names=names
    )


def describe_http(
    scope: Mapping[str, Any], body: Body, *, model_id: str, keeps_bytes: bool
) -> Description:
    """Return the values of an HTTP request.

    Raises:
        NotRecordable: a value cannot be recorded.
    """
    target = target_of(scope, hides_parameters=True)
    headers = {name.lower(): value for name, value in scope["headers"]}
    if HTTP_TARGET.fullmatch(target) is None:
        raise NotRecordable("the method or the path of a request cannot be replayed")
    if any(map(_is_credential, headers)):
        raise NotRecordable(HAS_CREDENTIALS)
    data = body.read(has_body=_has_body(scope["method"], headers))
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    arguments: dict[str, Any] = {}
    if content_type.partition(";")[0].strip() == "application/json" and data:
        arguments["json"] = plain(json.loads(data), _refuse)
        if arguments["json"] is None:
            raise NotRecordable("the body of a request is null")
    elif data:
        if not keeps_bytes:
            raise NotRecordable(NEEDS_SCRUB)
        arguments = {"body": base64.b64encode(data).decode(), "content_type": content_type}
    return Description(target=target, arguments=arguments, model_id=model_id)


def finish(description: Description, scrub: Scrub | None) -> RecordedRequest:
    """Return the request to keep: without secrets, and with what `scrub` leaves of it.

    Raises:
        NotRecordable: nothing of it is to be kept.
        ConfigError: `scrub` returned something that is no request. `scrub` itself may raise any
            error.
    """
    hider = Hider()
    content_type = description.arguments.get("content_type", "")
    for what, text in (("the id of a model", description.model_id), ("a type", content_type)):
        if hider.is_hidden(text):
            raise NotRecordable(f"{what} looks like a secret")
    target = hider.hide_target(description.target)
    arguments = hider.hide_arguments(description.arguments, description.names)
    tensors = {
        name: torch.zeros_like(each) if name in hider.tensors else each
        for name, each in description.tensors.items()
    }
    if scrub is not None:
        kept = scrub(target, with_values(arguments, tensors))
        if kept is None:
            raise NotRecordable(DROPPED)
        arguments, tensors = _kept_arguments(kept, is_http=" " in target)
    made = RecordedRequest(
        target=target,
        arguments=arguments,
        tensors=_pack(tensors),
        model_id=description.model_id,
    )
    return RecordedRequest.from_json(made.to_json())


def _kept_arguments(kept: Any, *, is_http: bool) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return what `scrub` returned, as plain data, and the tensors in it.

    Raises:
        NotRecordable: these are no arguments of a request.
    """
    tensors, budget = _Tensors(), Budget()
    other = _refuse if is_http else functools.partial(_other, tensors, budget, keeps_bytes=True)
    try:
        if is_http:
            if not kept.keys() <= {"json", "body", "content_type"}:
                raise NotRecordable(NO_ARGUMENTS)
            base64.b64decode(kept.get("body", ""), validate=True)
            return plain(kept, other, budget=budget), tensors
        if kept.keys() != {"args", "kwargs"} or type(kept["kwargs"]) is not dict:
            raise NotRecordable(NO_ARGUMENTS)
        arguments = {
            "args": [plain(each, other, budget=budget) for each in kept["args"]],
            "kwargs": plain(kept["kwargs"], other, budget=budget),
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise NotRecordable(NO_ARGUMENTS) from error
    return arguments, tensors


def target_of(scope: Mapping[str, Any], *, hides_parameters: bool = False) -> str:
    """Return an HTTP request's target, such as `POST /embed?lang=de`.

    If `hides_parameters`, parameters in the path that name a secret keep only their length.

    Raises:
        NotRecordable: such a parameter cannot be found in the path.
    """
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) or "/"
    if hides_parameters:
        path = _without_secrets(path, scope)
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{scope['method']} {urllib.parse.quote(path)}{'?' if query else ''}{query}"


def _without_secrets(path: str, scope: Mapping[str, Any]) -> str:
    """Return a path without the values of its parameters that name a secret.

    `path_params` has the values after the route has converted them, as to a number.
    """
    given = {str(name): value for name, value in dict(scope.get("path_params") or {}).items()}
    root = scope.get("routed_path", scope.get("root_path", ""))
    routed = str(scope["path"]).removeprefix(str(root))
    pattern = getattr(scope.get("route"), "path_regex", None)
    found = pattern.fullmatch(routed) if isinstance(pattern, re.Pattern) else None
    parts = {} if found is None or not path.endswith(routed) else found.groupdict()
    for name, value in given.items():
        if not is_secret(name):
            continue
        text = re.compile(re.escape(str(value)), re.IGNORECASE)
        if found is not None and name in parts:
            first = len(path) - len(routed)
            start, end = (first + each for each in found.span(name))
            path = path[:start] + _hidden(path[start:end], value) + path[end:]
        elif text.pattern and text.search(path):  # of a mount, or of another router
            path = text.sub(functools.partial(_hide_found, value), path)
        else:
            raise NotRecordable("a parameter in the path that names a secret cannot be hidden")
    return path


def _hide_found(value: Any, found: re.Match[str]) -> str:
    return _hidden(found[0], value)


def _hidden(text: str, value: Any) -> str:
    """Return a text of the same length, which a route converts to a value of the same class."""
    if type(value) is str:
        return "x" * len(text)
    return re.sub(r"[^\W_]", "0", text)


class Body:
    """The body of an HTTP request, kept while the application reads it."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive
        self._data: bytearray | None = bytearray()
        self._is_whole = False

    async def receive(self) -> Any:
        """Return the next message from the client (ASGI's `receive`)."""
        message = await self._receive()
        if message.get("type") == "http.request" and self._data is not None:
            part = message.get("body") or b""
            self._is_whole = not message.get("more_body")
            if len(self._data) + len(part) > MOST_BYTES:
                self._data = None
            else:
                self._data += part
        return message

    def read(self, *, has_body: bool) -> bytes:
        """Return the body. `has_body` is whether the headers announce one.

        Raises:
            NotRecordable: the application did not read it, or it is too large.
        """
        if self._data is None:
            raise NotRecordable(f"the body of a request is larger than {MOST_BYTES >> 10} KiB")
        if has_body and not self._is_whole:
            raise NotRecordable("the application has not read the body of a request")
        return bytes(self._data)


def _is_credential(header: bytes) -> bool:
    # Serve and other routers use a session's id to choose a replica, and demand none.
    return is_secret(header.decode("latin-1")) and not header.endswith(b"session-id")


def _has_body(method: str, headers: Mapping[bytes, bytes]) -> bool:
    if method in _BODILESS:
        return False
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


# Values that JSON has not -------------------------------------------------------------------------


def _refuse(value: Any) -> Any:
    raise NotRecordable(f"a value is a {class_name(type(value))}")


class _Tensors(dict[str, torch.Tensor]):
    """The tensors of a request, by their names in its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        """The name of each tensor or array, by its id."""


def _other(tensors: _Tensors, budget: Budget, value: Any, *, keeps_bytes: bool) -> dict[str, str]:
    """Return what stands for a value, and add it to `tensors` if it is a tensor or array."""
    kind = type(value)
    if kind is bytes:
        if not keeps_bytes:
            raise NotRecordable(NEEDS_SCRUB)
        budget.take(_in_base64(len(value)))
        return {"$bytes": base64.b64encode(value).decode()}
    name = tensors.names.setdefault(id(value), f"t{len(tensors)}")
    if kind is torch.Tensor:
        if name not in tensors:
            tensors[name] = _copied_tensor(value, budget, keeps_bytes=keeps_bytes)
        return {"$tensor": name}
    if (kind.__module__, kind.__qualname__) == ("numpy", "ndarray"):
        if name not in tensors:
            tensors[name] = _copied_array(value, budget, keeps_bytes=keeps_bytes)
        return {"$array": name}
    raise NotRecordable(f"an argument is a {class_name(kind)}")


def _copied_tensor(value: torch.Tensor, budget: Budget, *, keeps_bytes: bool) -> torch.Tensor:
    if value.requires_grad or value.is_conj() or value.is_neg() or not value.is_contiguous():
        raise NotRecordable("a tensor is not contiguous, or requires grad")
    budget.take(_size_of_tensor(value))  # before it is copied
    if _is_text(value) and not keeps_bytes:
        raise NotRecordable(NEEDS_SCRUB)
    return value.detach().cpu().clone()


def _copied_array(value: Any, budget: Budget, *, keeps_bytes: bool) -> torch.Tensor:
    if not value.flags.c_contiguous:
        raise NotRecordable("an array is not contiguous")
    budget.take(_in_base64(value.nbytes))
    if value.dtype.kind in "iu" and value.dtype.itemsize == 1 and not keeps_bytes:
        raise NotRecordable(NEEDS_SCRUB)
    try:
        # A copy: torch warns of read-only arrays, and those that Ray passes are read-only.
        return torch.from_numpy(value.copy())
    except TypeError as error:
        # The names of its fields may have a request's content.
        kind_of = "structured" if value.dtype.names else f"of the kind {value.dtype.kind}"
        raise NotRecordable(f"the dtype of an array is {kind_of}") from error


def _is_text(value: torch.Tensor) -> bool:
    """Return whether a tensor may be text, as `numpy.frombuffer(text, "uint8")` is."""
    is_float = value.dtype.is_floating_point
    return value.element_size() == 1 and value.dtype is not torch.bool and not is_float


def _size_of_tensor(value: torch.Tensor) -> int:
    return _in_base64(value.numel() * value.element_size())


def _in_base64(count: int) -> int:
    return (count + 2) // 3 * 4


def _pack(tensors: Mapping[str, torch.Tensor]) -> str:
    if not tensors:
        return ""
    return base64.b64encode(safetensors.torch.save(dict(tensors))).decode()
