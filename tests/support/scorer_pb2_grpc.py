# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The service of scorer.proto: a client, and the function that adds it to a gRPC server."""

from __future__ import annotations

from typing import Any

import grpc

import scorer_pb2

[SERVICE] = scorer_pb2.DESCRIPTOR.services_by_name.values()


class ScorerStub:
    """A client with one callable for each method of the service."""

    def __init__(self, channel: grpc.Channel) -> None:
        for method in SERVICE.methods:
            kinds = _kinds(method)
            call = channel.unary_unary(
                f"/{SERVICE.full_name}/{method.name}",
                request_serializer=kinds[0].SerializeToString,
                response_deserializer=kinds[1].FromString,
            )
            setattr(self, method.name, call)


def add_ScorerServicer_to_server(servicer: Any, server: grpc.Server) -> None:  # noqa: N802 - protoc's
    """Register the methods of `servicer` under the names of the service."""
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=_kinds(method)[0].FromString,
            response_serializer=_kinds(method)[1].SerializeToString,
        )
        for method in SERVICE.methods
    }
    generic = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)
    server.add_generic_rpc_handlers((generic,))


def _kinds(method: Any) -> tuple[Any, Any]:
    """Return the classes of the request and the reply of a method."""
    kinds = method.input_type, method.output_type
    return getattr(scorer_pb2, kinds[0].name), getattr(scorer_pb2, kinds[1].name)
