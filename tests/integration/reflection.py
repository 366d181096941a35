"""A gRPC client that knows nothing but the daemon's address.

Services and messages are learned by server reflection, as grpcurl does it, so that what an
operator's tools see is what is tested. Debian has no Python module for the reflection
protocol: its few messages are declared here.

    client = Client("unix:/run/kvtierd/kvtierd.sock")
    stats = client.call("kvtier.v1.KvTierAdmin/GetStats", {"cache": "main"})

Requests are given as JSON objects (dicts with snake_case names). Failed calls raise CallError.
"""
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

SECONDS = 30  # of a call, unless it says otherwise; only a failure takes so long
MESSAGE_BYTES_MAX = 64 << 20  # more than the daemon sends or takes

_REFLECTION = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_DETAILS_KEY = "grpc-status-details-bin"
_REQUEST_ID_KEY = "x-request-id"

_FIELD = descriptor_pb2.FieldDescriptorProto
_STRING, _BYTES, _INT32, _MESSAGE = (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES, _FIELD.TYPE_INT32,
                                     _FIELD.TYPE_MESSAGE)


def _declare(file, message, *fields):
    """Adds a message; a field is (number, name, type, repeated, type name)."""
    added = file.message_type.add(name=message)
    for number, name, kind, repeated, type_name in fields:
        field = added.field.add(name=name, number=number, type=kind)
        field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
        if type_name:
            field.type_name = ".grpc.reflection.v1alpha." + type_name


def _reflection_messages():
    """(request, response) of the reflection protocol."""
    file = descriptor_pb2.FileDescriptorProto(
        name="reflection.proto", package="grpc.reflection.v1alpha", syntax="proto3")
    _declare(file, "ServerReflectionRequest",
             (1, "host", _STRING, False, None),
             (3, "file_by_filename", _STRING, False, None),
             (4, "file_containing_symbol", _STRING, False, None),
             (7, "list_services", _STRING, False, None))
    _declare(file, "FileDescriptorResponse", (1, "file_descriptor_proto", _BYTES, True, None))
    _declare(file, "ServiceResponse", (1, "name", _STRING, False, None))
    _declare(file, "ListServiceResponse", (1, "service", _MESSAGE, True, "ServiceResponse"))
    _declare(file, "ErrorResponse",
             (1, "error_code", _INT32, False, None),
             (2, "error_message", _STRING, False, None))
    _declare(file, "ServerReflectionResponse",
             (4, "file_descriptor_response", _MESSAGE, False, "FileDescriptorResponse"),
             (6, "list_services_response", _MESSAGE, False, "ListServiceResponse"),
             (7, "error_response", _MESSAGE, False, "ErrorResponse"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return [factory.GetPrototype(pool.FindMessageTypeByName("grpc.reflection.v1alpha." + name))
            for name in ("ServerReflectionRequest", "ServerReflectionResponse")]


_REQUEST, _RESPONSE = _reflection_messages()


class CallError(Exception):
    """A call that failed: gRPC code by name, and what google.rpc.ErrorInfo says."""

    def __init__(self, code, message, reason="", domain="", metadata=None, retry_seconds=None):
        super().__init__("%s %s: %s %s" % (code, reason, message, metadata))
        self.code = code
        self.message = message
        self.reason = reason
        self.domain = domain
        self.metadata = metadata or {}
        self.retry_seconds = retry_seconds
        self.request_id = ""  # what the daemon calls it in its log


class Client:
    """Calls any method of the server at `target`. Thread-safe once a method is known."""

    def __init__(self, target, credentials=None):
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.max_reconnect_backoff_ms", 100),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", 4 * MESSAGE_BYTES_MAX),
        ]
        self.channel = (grpc.insecure_channel(target, options) if credentials is None
                        else grpc.secure_channel(target, credentials, options))
        self._reflect = self.channel.stream_stream(
            "/" + _REFLECTION, request_serializer=_REQUEST.SerializeToString,
            response_deserializer=_RESPONSE.FromString)
        self._pool = descriptor_pool.DescriptorPool()
        self._factory = message_factory.MessageFactory(self._pool)
        self._files = set()
        self._methods = {}

    def close(self):
        self.channel.close()

    # ---- What the server tells about itself.

    def services(self):
        answer = self._ask(list_services="*")
        return sorted(s.name for s in answer.list_services_response.service)

    def message_class(self, name):
        """The class of a message, by its full name."""
        return self._factory.GetPrototype(self._find("FindMessageTypeByName", name))

    def service(self, name):
        """The descriptor of a service, by its full name."""
        return self._find("FindServiceByName", name)

    def enum(self, name):
        """The descriptor of an enum, by its full name."""
        return self._find("FindEnumTypeByName", name)

    def _find(self, finder, name):
        try:
            return getattr(self._pool, finder)(name)
        except KeyError:
            self._load(self._ask(file_containing_symbol=name))
            return getattr(self._pool, finder)(name)

    def _ask(self, **request):
        try:
            answers = list(self._reflect(iter([_REQUEST(**request)]), timeout=SECONDS,
                                         wait_for_ready=True))
        except grpc.RpcError as error:
            # Without its details: what they look like would have to be asked for as well.
            raise CallError(error.code().name, error.details()) from None
        if answers[0].HasField("error_response"):
            error = answers[0].error_response
            raise LookupError("%s: %d %s" % (request, error.error_code, error.error_message))
        return answers[0]

    def _load(self, answer):
        """Adds files to the pool, those they import first."""
        files = {}
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
        for file in list(files.values()):
            self._add(file, files)

    def _add(self, file, files):
        if file.name in self._files:
            return
        self._files.add(file.name)
        for name in file.dependency:
            if name not in files and name not in self._files:
                self._load(self._ask(file_by_filename=name))
            elif name in files:
                self._add(files[name], files)
        self._pool.Add(file)

    # ---- Calls.

    def _method(self, path):
        """(callable of the channel, class of the request) of "package.Service/Method"."""
        if path not in self._methods:
            service, _, name = path.partition("/")
            method = self.service(service).FindMethodByName(name)
            self.message_class("google.rpc.Status")  # an error may be a daemon's last word
            request = self.message_class(method.input_type.full_name)
            response = self.message_class(method.output_type.full_name)
            proto = descriptor_pb2.MethodDescriptorProto()
            method.CopyToProto(proto)
            kind = "%s_%s" % ("stream" if proto.client_streaming else "unary",
                              "stream" if proto.server_streaming else "unary")
            self._methods[path] = (
                getattr(self.channel, kind)("/" + path,
                                            request_serializer=request.SerializeToString,
                                            response_deserializer=response.FromString), request)
        return self._methods[path]

    def request(self, path, fields):
        """The request message of a method. A message is taken as it is."""
        return fields if not isinstance(fields, dict) else json_format.ParseDict(
            fields, self._method(path)[1]())

    def call(self, path, fields=None, timeout=SECONDS, metadata=None):
        """The answer of a unary call. Raises CallError."""
        try:
            return self._method(path)[0](self.request(path, fields or {}), timeout=timeout,
                                         metadata=metadata)
        except grpc.RpcError as error:
            raise self.error_of(error) from None

    def start(self, path, fields, timeout=SECONDS):
        """A unary call under way: a future of grpc."""
        return self._method(path)[0].future(self.request(path, fields), timeout=timeout)

    def stream(self, path, fields, timeout=None):
        """An open streaming call of grpc. `fields`: one request, or an iterator of messages."""
        return self._method(path)[0](
            self.request(path, fields) if isinstance(fields, dict) else fields, timeout=timeout)

    # ---- Errors.

    def error_of(self, call):
        """What a failed call of grpc says, as a CallError."""
        error = CallError(call.code().name, call.details())
        for key, value in call.trailing_metadata() or ():
            if key == _DETAILS_KEY:
                self._decode(value, error)
            elif key == _REQUEST_ID_KEY:
                error.request_id = value
        return error

    def _decode(self, data, error):
        status = self.message_class("google.rpc.Status").FromString(data)
        for detail in status.details:
            message = self.message_class(detail.type_url.rpartition("/")[2]).FromString(detail.value)
            if message.DESCRIPTOR.name == "ErrorInfo":
                error.reason, error.domain = message.reason, message.domain
                error.metadata = dict(message.metadata)
            elif message.DESCRIPTOR.name == "RetryInfo":
                error.retry_seconds = message.retry_delay.ToTimedelta().total_seconds()
        error.args = ("%s %s: %s %s" % (error.code, error.reason, error.message, error.metadata),)


def to_json(message):
    """As a tool prints it that shows fields at their default."""
    return json_format.MessageToDict(message, including_default_value_fields=True,
                                     preserving_proto_field_name=True)
