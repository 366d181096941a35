"""The messages of kvtier.v1, made at run time from the descriptors in the package.

Not protoc's Python code: that runs with no protobuf older than the protoc that made it, and with
none that is two major releases newer. Descriptors are data, which every protobuf reads. They are in
a pool of their own, so that another copy of the same files in the process is no conflict.
"""
from __future__ import annotations

import os
from typing import Any, Dict, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PATH = os.path.join(os.path.dirname(__file__), "_native", "descriptors.bin")


def _load_pool() -> descriptor_pool.DescriptorPool:
    try:
        with open(_PATH, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    except FileNotFoundError:
        raise ImportError("kvtier was not installed: %s is made when the package is built, so "
                          "install it (pip install client/python) instead of importing it from "
                          "the source tree" % _PATH) from None
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:  # what a file imports stands before it
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _load_pool()
_CLASSES: Dict[str, Any] = {}

if hasattr(message_factory, "GetMessageClass"):
    _class_of = message_factory.GetMessageClass
else:  # before protobuf 4.22
    _class_of = getattr(message_factory.MessageFactory(_POOL), "GetPrototype")


def message_class(full_name: str) -> Any:
    """The class of a message, by its full name."""
    if full_name not in _CLASSES:
        _CLASSES[full_name] = _class_of(_POOL.FindMessageTypeByName(full_name))
    return _CLASSES[full_name]


def v1(name: str) -> Any:
    """The class of a message of kvtier.v1."""
    return message_class("kvtier.v1." + name)


def method(service: str, name: str) -> Tuple[str, Any, Any]:
    """(path, request class, response class) of a method of kvtier.v1."""
    found = _POOL.FindServiceByName("kvtier.v1." + service).FindMethodByName(name)
    return ("/kvtier.v1.%s/%s" % (service, name), message_class(found.input_type.full_name),
            message_class(found.output_type.full_name))


def enum_value(enum: str, name: str) -> int:
    """The number of a value of an enumeration of kvtier.v1."""
    return _POOL.FindEnumTypeByName("kvtier.v1." + enum).values_by_name[name].number


def reasons() -> Tuple[str, ...]:
    """All of ErrorReason, without the prefix."""
    enum = _POOL.FindEnumTypeByName("kvtier.v1.ErrorReason")
    return tuple(value.name[len("ERROR_REASON_"):] for value in enum.values)
