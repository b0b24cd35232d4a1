# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The messages of scorer.proto, as protoc would generate them from the docs page.

The protobuf compiler is not needed: this module parses the few kinds of lines in the page, and
protobuf makes the classes from the descriptor.
"""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "recipes.md"
TYPES = {"float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT}
LABELS = {
    "repeated ": descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    "": descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
}


def describe(text: str) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a proto file with services, and messages with scalar fields."""
    [package] = re.findall(r"^package (\w+);", text, re.MULTILINE)
    file = descriptor_pb2.FileDescriptorProto(name="scorer.proto", package=package, syntax="proto3")
    for name, body in re.findall(r"^message (\w+) \{(.*?)\}", text, re.MULTILINE | re.DOTALL):
        message = file.message_type.add(name=name)
        for label, kind, field, number in re.findall(r"(repeated |)(\w+) (\w+) = (\d+);", body):
            message.field.add(name=field, number=int(number), type=TYPES[kind], label=LABELS[label])
    for name, body in re.findall(r"^service (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        service = file.service.add(name=name)
        for method, given, returned in re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", body):
            service.method.add(
                name=method, input_type=f".{package}.{given}", output_type=f".{package}.{returned}"
            )
    return file


[_text] = re.findall(r"```proto\n// scorer.proto\n(.*?)```", PAGE.read_text(), re.DOTALL)
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(describe(_text).SerializeToString())

ScoreRequest = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ScoreRequest"])
ScoreReply = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ScoreReply"])
for _message in (ScoreRequest, ScoreReply):
    _message.__module__ = __name__  # so that pickle finds it here
