"""Checks that the names and texts of a model are UTF-8: protobuf returns others as bytes."""

from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_SMALL = 4096
"""Bytes of a message that is looked at as a whole."""


class UnreadableTextError(ValueError):
    """A name or text of a model is not UTF-8."""


def check_text(model: onnx.ModelProto) -> None:
    """Raise UnreadableTextError if any text of the model is not UTF-8."""
    _check(model)


def _check(message: Any) -> None:
    """Check the texts of a message and of those inside it; models have tens of thousands of them."""
    if message.ByteSize() <= _SMALL and message.SerializeToString().isascii():
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
                _check(one)
        elif message.HasField(name):
            _check(value)


@cache
def _fields(kind: Descriptor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a message's fields that hold text, and of those that hold messages."""
    texts = tuple(field.name for field in kind.fields if field.type == FieldDescriptor.TYPE_STRING)
    messages = tuple(field.name for field in kind.fields if field.type == FieldDescriptor.TYPE_MESSAGE)
    return texts, messages
