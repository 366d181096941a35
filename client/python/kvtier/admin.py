"""What operators ask the daemon, as plain dictionaries: kvtier.v1.KvTierAdmin.

    with kvtier.admin.Admin("/run/kvtierd/kvtierd.sock") as admin:
        print(admin.call("GetStats")["caches"])

Fields and errors are those of proto/kvtier/v1/admin.proto. A dictionary has every field: numbers,
strings, lists and dictionaries; None where an optional one is absent; enumerations as their names.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional, Union

import grpc

from kvtier import messages
from kvtier.errors import argument_error
from kvtier.wire import CHANNEL_OPTIONS, check_socket_path, error_of


def to_dict(message: Any) -> Dict[str, Any]:
    """A message with all its fields."""
    result: Dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        # Maps have no order and numbers as keys at most: they are dictionaries already.
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = dict(value)
        elif _is_repeated(field):
            result[field.name] = [_value(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            result[field.name] = None
        else:
            result[field.name] = _value(field, value)
    return result


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # before protobuf 6


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number
        return known[value].name if value in known else value
    return value


@dataclass(frozen=True)
class Tls:
    """Mutual TLS with an address of the daemon. PEM files: the client's certificate and its key, and
    the authorities of the daemon's. `server_name`: what the daemon's certificate is for; None: the
    address's host."""
    certificate: str
    key: str
    ca: str
    server_name: Optional[str] = None


def _channel(target: str, tls: Optional[Tls]) -> Any:
    if tls is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    texts = []
    for name in ("ca", "key", "certificate"):
        try:
            with open(getattr(tls, name), "rb") as file:
                texts.append(file.read())
        except OSError as error:
            raise argument_error("tls." + name, error, "a PEM file") from error
    options = list(CHANNEL_OPTIONS)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(*texts), options=options)


class Admin:
    """A connection for operators; a context manager that closes. `target`: the Unix socket, or with a
    colon the address of the daemon's TCP port ("127.0.0.1:7400"), where that has TLS with `tls`."""

    def __init__(self, target: str, *, call_timeout: float = 5.0,
                 tls: Optional[Tls] = None) -> None:
        is_socket = "/" in target
        if is_socket:
            target = "unix:" + check_socket_path("target", target)
        if is_socket and tls is not None:
            raise argument_error("tls", "given with a Unix socket", "None there")
        if not call_timeout > 0:
            raise argument_error("call_timeout", call_timeout, "> 0")
        self._target = target
        self._timeout = call_timeout
        self._channel = _channel(target, tls)

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def call(self, name: str, **fields: Any) -> Dict[str, Any]:
        """The answer of a unary method: "GetStats", "GetNodeInfo", "ListCaches", "ListSessions",
        "ListRequests", "Drain", "EvictSession"."""
        path, request, response = messages.method("KvTierAdmin", name)
        method = self._channel.unary_unary(path, request_serializer=request.SerializeToString,
                                           response_deserializer=response.FromString)
        try:
            return to_dict(method(request(**fields), timeout=self._timeout))
        except grpc.RpcError as error:
            raise error_of(error, name, self._target, self._timeout) from None

    def watch(self, interval: Optional[Union[int, float]] = None) -> Iterator[Dict[str, Any]]:
        """Statistics every `interval` seconds, until the iterator is closed (WatchStats)."""
        path, request, response = messages.method("KvTierAdmin", "WatchStats")
        fields: Dict[str, Any] = {}
        if interval is not None:
            fields["interval"] = {"seconds": int(interval),
                                  "nanos": int(interval % 1 * 1000000000)}
        call = self._channel.unary_stream(path, request_serializer=request.SerializeToString,
                                          response_deserializer=response.FromString)(
                                              request(**fields))
        try:
            for answer in call:
                yield to_dict(answer)
        except grpc.RpcError as error:
            raise error_of(error, "WatchStats", self._target, None) from None
        finally:
            call.cancel()

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()
