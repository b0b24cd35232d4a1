# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A plan: the kinds of calls to replay, learned from traffic, as YAML that a person reviews."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from serve_warm._records import record
from serve_warm._redaction import first_line
from serve_warm._regular_files import explain_pipe, read_regular
from serve_warm.errors import ConfigError
from serve_warm.learn import recorded_requests
from serve_warm.learn.recorded import MOST_CALLS, RecordedCall
from serve_warm.learn.recorded_requests import OF_REQUESTS, RecordedRequest

FORMAT = 1
MOST_BYTES = 4 << 20
"""Maximum size of a plan."""

HEADER = """\
# Kinds of calls that traffic made, for `serve-warm build --plan`. Remove what should not be warm.
"""


@record(frozen=True, kw_only=True)
class InputPlan:
    """The kinds of calls of one deployment to replay, largest first."""

    calls: tuple[RecordedCall, ...]
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The number of calls that cannot be replayed, by reason. Reasons that begin with `OF_REQUESTS`
    count requests."""
    models: tuple[str, ...] = ()
    """Ids of the models of Serve's multiplexing to load first: those that a replica had loaded."""
    requests: tuple[RecordedRequest, ...] = ()
    """Requests with their values, if a person wants them in the plan."""
    within_s: float | None = None
    """Seconds that one replay of all calls may take. A build leaves out the calls beyond them."""
    deployment: str = ""
    """Name of the deployment whose calls these are; empty in a plan of an earlier release."""
    covered: int = 0
    """Number of calls of kinds that are not in the plan, because the code of others answers them.
    A build finds them."""

    @property
    def recorded(self) -> int:
        """Number of calls of traffic that were recorded."""
        calls = [count for why, count in self.left_out.items() if not why.startswith(OF_REQUESTS)]
        return self._planned + sum(calls)

    @property
    def share(self) -> float:
        """The share of the recorded calls that the code of this plan answers, from 0 to 1."""
        recorded = self.recorded
        return self._planned / recorded if recorded else 1.0

    @property
    def _planned(self) -> int:
        return sum(each.calls for each in self.calls) + self.covered

    def open_axes(self) -> list[str]:
        """Return the axes for which there is code for any size, as text."""
        axes = {
            (each.callable, each.number, each.structure, tensor, axis)
            for each in self.calls
            for tensor, axis in each.any_size
        }
        return [
            f"axis {axis} of tensor {tensor} of {name}{f' #{number + 1}' if number else ''}({said})"
            for name, number, said, tensor, axis in sorted(axes)
        ]

    def most_frequent(self, most: int) -> InputPlan:
        """Return the plan of this many kinds of calls. It says how many calls it leaves out."""
        places = sorted(range(len(self.calls)), key=lambda place: -self.calls[place].calls)
        kept = sorted(places[:most])
        rare = sum(each.calls for each in self.calls) - sum(self.calls[each].calls for each in kept)
        left_out = dict(self.left_out)
        if rare:
            left_out[RARE] = left_out.get(RARE, 0) + rare
        calls = tuple(self.calls[each] for each in kept)
        return dataclasses.replace(self, calls=calls, left_out=left_out)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        left_out = {"left_out": dict(self.left_out)} if self.left_out else {}
        models = {"models": list(self.models)} if self.models else {}
        within_s = {} if self.within_s is None else {"within_s": self.within_s}
        covered = {"covered": self.covered} if self.covered else {}
        calls = [each.to_json() for each in self.calls]
        requests = [each.to_json() for each in self.requests]
        return {
            "format": FORMAT,
            **({"deployment": self.deployment} if self.deployment else {}),
            **within_s,
            **models,
            **({"requests": requests} if requests else {}),
            "calls": calls,
            **covered,
            **left_out,
        }

    def to_yaml(self) -> str:
        """Return the text of a plan file."""
        return HEADER + yaml.safe_dump(self.to_json(), sort_keys=False, width=100)

    @classmethod
    def from_json(cls, data: object, *, source: str) -> InputPlan:
        """Return the plan that `to_json` wrote. `source` names it in errors.

        Raises:
            ConfigError: it is malformed, or made by a newer serve_warm.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("calls"), list):
            raise ConfigError(
                f"{source} is not a plan: it has no list `calls`",
                hint="make one with serve-warm plan",
            )
        if type(data.get("format")) is not int or data["format"] != FORMAT:
            raise ConfigError(
                f"{source} has format {data.get('format')!r}, but this serve_warm reads format "
                f"{FORMAT}",
                hint="make the plan with the serve_warm that builds and serves",
            )
        left_out = data.get("left_out", {})
        if not isinstance(left_out, Mapping):
            raise ConfigError(f"{source}: `left_out` must be a mapping of reasons and numbers")
        models = data.get("models", [])
        if not isinstance(models, list) or not all(each and type(each) is str for each in models):
            raise ConfigError(f"{source}: `models` must be a list of ids of multiplexed models")
        deployment = data.get("deployment", "")
        if type(deployment) is not str:
            raise ConfigError(f"{source}: `deployment` must be the name of a deployment")
        within_s, covered = data.get("within_s"), data.get("covered", 0)
        if within_s is not None and not (
            type(within_s) in (int, float) and 0 < within_s < math.inf
        ):
            raise ConfigError(f"{source}: `within_s` must be a positive number of seconds")
        if type(covered) is not int or not 0 <= covered < MOST_CALLS:
            raise ConfigError(f"{source}: `covered` must be a number of calls")
        return cls(
            calls=_calls_of(data, source),
            left_out={
                str(k): v for k, v in left_out.items() if type(v) is int and 0 < v < MOST_CALLS
            },
            models=tuple(models),
            deployment=deployment,
            requests=_requests_of(data, source),
            within_s=within_s,
            covered=covered,
        )


def _calls_of(data: Mapping[str, Any], source: str) -> tuple[RecordedCall, ...]:
    calls = []
    for number, each in enumerate(data["calls"]):
        try:
            call = RecordedCall.from_json(each)
        except ConfigError as error:
            raise ConfigError(
                f"{source}: call {number + 1}: {error.message}", hint=error.hint
            ) from error
        if why := call.why_not():
            raise ConfigError(
                f"{source}: call {number + 1} ({call.callable}) cannot be replayed: {why}",
                hint="remove it from the plan",
            )
        calls.append(call)
    return tuple(calls)


REQUEST_BYTES = 256 << 10
"""Maximum size of the requests of a plan, as JSON. An artifact's statement contains them."""


def _requests_of(data: Mapping[str, Any], source: str) -> tuple[RecordedRequest, ...]:
    given = data.get("requests", [])
    if not isinstance(given, list):
        raise ConfigError(f"{source}: `requests` must be a list")
    requests = []
    for number, each in enumerate(given):
        try:
            requests.append(RecordedRequest.from_json(each))
        except ConfigError as error:
            raise ConfigError(
                f"{source}: request {number + 1}: {error.message}", hint=error.hint
            ) from error
    if sum(map(recorded_requests.size_of, requests)) > REQUEST_BYTES:
        raise ConfigError(
            f"{source}: its requests are larger than {REQUEST_BYTES >> 10} KiB",
            hint="remove some of them",
        )
    return tuple(requests)


RARE = "its kind is rarer than those in the plan"


def make_plan(
    recorded: Iterable[RecordedCall],
    not_recorded: Mapping[str, int],
    models: Sequence[str] = (),
    requests: Iterable[RecordedRequest] = (),
) -> InputPlan:
    """Return the plan of the kinds of calls that can be replayed, largest first.

    Kinds of several replicas are merged, and requests that reached the same code.
    """
    merged: dict[tuple[object, ...], RecordedCall] = {}
    left_out = dict(not_recorded)
    for each in recorded:
        if why := each.why_not():
            left_out[why] = left_out.get(why, 0) + each.calls
            continue
        known = merged.get(each.key)
        total = each.calls + (known.calls if known is not None else 0)
        merged[each.key] = dataclasses.replace(each, calls=total)
    calls = sorted(merged.values(), key=lambda each: (-size_of(each), -each.calls))
    kept, beyond = _merge_requests(requests)
    if beyond:
        left_out[TOO_MANY_REQUESTS] = left_out.get(TOO_MANY_REQUESTS, 0) + beyond
    return InputPlan(
        calls=tuple(calls), left_out=left_out, models=tuple(models), requests=tuple(kept)
    )


TOO_MANY_REQUESTS = f"{OF_REQUESTS}a plan takes at most {REQUEST_BYTES >> 10} KiB of them"


def _merge_requests(requests: Iterable[RecordedRequest]) -> tuple[list[RecordedRequest], int]:
    """Return a request for each set of code, most frequent first, as many as a plan may have.

    Also returns how many requests of traffic were like those that the plan has no room for.
    """
    counts = Counter[str]()
    known: dict[str, RecordedRequest] = {}
    for each in requests:
        same = [each.model_id, each.reached] if each.reached else {**each.to_json(), "calls": 0}
        key = json.dumps(same, sort_keys=True)
        known.setdefault(key, each)
        counts[key] += each.calls
    kept, left, beyond = list[RecordedRequest](), REQUEST_BYTES, 0
    for key, calls in counts.most_common():
        each = dataclasses.replace(known[key], calls=calls)
        size = recorded_requests.size_of(each)
        if size <= left:
            left -= size
            kept.append(each)
        else:
            beyond += max(1, calls)
    return kept, beyond


def merge_plans(plans: Sequence[InputPlan]) -> InputPlan:
    """Return the plan of all calls of these plans. Models and seconds are those of the first.

    It names a deployment only if all of them do: an older plan may be one of another deployment.

    Raises:
        ConfigError: they are plans of several deployments.
    """
    known = {each.deployment for each in plans}
    names = sorted(filter(None, known))
    if len(names) > 1:
        raise ConfigError(
            f"these are plans of several deployments: {', '.join(names)}",
            hint="merge plans of one deployment, and build each deployment with its own plan",
        )
    left_out = Counter[str]()
    for each in plans:
        left_out.update(each.left_out)
    made = make_plan(
        [call for each in plans for call in each.calls],
        left_out,
        plans[0].models,
        [request for each in plans for request in each.requests],
    )
    covered = sum(each.covered for each in plans)
    deployment = names[0] if names and len(known) == 1 else ""
    return dataclasses.replace(
        made,
        within_s=plans[0].within_s,
        covered=covered,
        deployment=deployment,
    )


def size_of(call: RecordedCall) -> int:
    """Return the number of values in the tensors of a call."""
    return sum(map(math.prod, call.sizes))


UNREADABLE = (
    *(yaml.YAMLError, RecursionError, ValueError),
    *(LookupError, AttributeError, TypeError),  # of PyYAML, for a tag such as `!!bool maybe`
)


def read_plan(given: str) -> InputPlan:
    """Return a plan from the path of its file, or from its content.

    Raises:
        ConfigError: it cannot be read, or is no plan.
    """
    source, text = "the plan", given
    if "\n" not in given and not given.lstrip().startswith("{"):
        source = f"plan {given}"
        try:
            text = read_regular(given).decode()
        except (OSError, ValueError) as error:  # ValueError: not UTF-8
            raise ConfigError(
                f"{source} cannot be read: {error}", hint=explain_pipe(error)
            ) from error
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{source} is larger than {MOST_BYTES >> 20} MiB")
    try:
        # YAML reads some numbers and texts of JSON otherwise than JSON does.
        data = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except UNREADABLE as error:
        said = first_line(str(error)) or type(error).__name__
        raise ConfigError(f"{source} is not YAML: {said}") from error
    return InputPlan.from_json(data, source=source)
