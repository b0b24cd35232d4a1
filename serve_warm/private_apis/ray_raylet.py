# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""This node's raylet, seen in Ray 2.53 to 2.60: where it listens, and how it starts workers.

The request is `NodeManagerService/PrestartWorkers` in ray/core/generated/node_manager_pb2.py. The
channel must use the cluster's token and TLS. Otherwise the raylet refuses the connection.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ray


class Address(NamedTuple):
    """Where the raylet of this worker listens, and the worker's own runtime_env."""

    host: str
    port: int
    runtime_env: str


def address_of_raylet() -> Address:
    """Return the address. Call this on a thread on which Ray calls user code.

    Raises:
        AttributeError, ImportError, RuntimeError: this version of Ray does not expose it.
    """
    context: Any = ray.get_runtime_context()
    # ray/_private/worker.py and ray/_private/node.py.
    worker: Any = importlib.import_module("ray._private.worker")
    node = worker.global_worker.node
    return Address(node.node_ip_address, node.node_manager_port, context.get_runtime_env_string())


def prestart_workers(
    address: str, runtime_env: str, many: int, *, keep_alive_s: float, limit_s: float
) -> Callable[[], None]:
    """Return a function that asks the raylet for workers that belong to no job.

    The function raises `grpc.RpcError` if the raylet refuses, and `OSError` or `ValueError` for
    files of TLS or of the token.

    Raises:
        AttributeError, ImportError, ValueError: this version of Ray has no such request.
    """
    utils: Any = importlib.import_module("ray._private.grpc_utils")
    messages: Any = importlib.import_module("ray.core.generated.node_manager_pb2")
    services: Any = importlib.import_module("ray.core.generated.node_manager_pb2_grpc")
    common: Any = importlib.import_module("ray.core.generated.common_pb2")
    request = messages.PrestartWorkersRequest(
        language=common.Language.Value("PYTHON"),
        keep_alive_duration_secs=int(keep_alive_s),
        num_workers=many,
    )
    request.runtime_env_info.serialized_runtime_env = runtime_env
    service, new_channel = services.NodeManagerServiceStub, utils.init_grpc_channel

    def ask() -> None:
        with new_channel(address) as channel:
            service(channel).PrestartWorkers(request, timeout=limit_s)

    return ask
