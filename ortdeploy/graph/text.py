"""Checks that the names and texts of a model are UTF-8: protobuf returns others as bytes."""

from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_OF_WEIGHTS = frozenset({"ModelProto", "GraphProto", "AttributeProto", "TensorProto", "SparseTensorProto"})
"""Messages that may hold weights: protobuf copies a message as a whole, even to say how many bytes it has."""
_WITHOUT_WEIGHTS = frozenset(
    map(onnx.AttributeProto.AttributeType.Value, ("FLOAT", "INT", "STRING", "FLOATS", "INTS", "STRINGS"))
)
"""Types of attributes that hold none; an attribute of an old model has no type."""


class UnreadableTextError(ValueError):
    """A name or text of a model is not UTF-8."""


def check_text(message: Any) -> None:
    """Raise UnreadableTextError if a text of a model, or of one of its tens of thousands of messages, is not UTF-8."""
    if not _may_hold_weights(message) and message.SerializeToString().isascii():
        return  # as most nodes are; looking at their fields one by one takes twenty times as long
    texts, messages = _fields(message.DESCRIPTOR)
    for name in texts:
        value = getattr(message, name)
        if value.__class__ is str:
            continue
        for one in [value] if isinstance(value, bytes) else value:
            if one.__class__ is bytes:
                shown = one.decode("utf-8", errors="replace")
                raise UnreadableTextError(f'its {name} "{shown}" is not UTF-8 text')
    for name in messages:
        value = getattr(message, name)
        if not isinstance(value, Message):
            for one in value:
                check_text(one)
        elif message.HasField(name):
            check_text(value)


def _may_hold_weights(message: Any) -> bool:
    kind = message.DESCRIPTOR.name
    if kind == "NodeProto":
        return any(one.type not in _WITHOUT_WEIGHTS for one in message.attribute)
    return kind in _OF_WEIGHTS


@cache
def _fields(kind: Descriptor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a message's fields that hold text, and of those that hold messages."""
    texts = tuple(field.name for field in kind.fields if field.type == FieldDescriptor.TYPE_STRING)
    messages = tuple(field.name for field in kind.fields if field.type == FieldDescriptor.TYPE_MESSAGE)
    return texts, messages
