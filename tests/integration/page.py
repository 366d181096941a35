"""The commands of docs/OPERATIONS.md, and how they are run against a daemon of the test's own."""
import json
import os
import re
import shlex
import subprocess

import reflection

from deploy import deploy_tools

SOCKET = "/run/kvtierd/kvtierd.sock"
SECONDS = 30
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(#+) (.*)$", re.MULTILINE)


class Example:
    """A command, and what the page shows of its answer: (kind, text) or None."""

    def __init__(self, command, answer=None):
        self.command = command
        self.answer = answer


def sections(path="docs/OPERATIONS.md"):
    """{heading: [Example]} of the page."""
    with open(path) as file:
        text = file.read()
    # A comment in a block is no heading.
    plain = _BLOCK.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    starts = [(m.start(), m.group(2)) for m in _SECTION.finditer(plain)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return {heading: _examples(text[start:end]) for (start, heading), end in zip(starts, ends)}


def _examples(text):
    examples = []
    for kind, body in _BLOCK.findall(text):
        if kind == "sh":
            examples += [Example(line) for line in body.splitlines() if line]
        elif kind in ("json", "text") and examples:
            examples[-1].answer = (kind, body)
    return examples


class Answer:
    """What a command printed, and its status. `json`: the first object, or None."""

    def __init__(self, text, status):
        self.text = text
        self.status = status
        self.json = None
        if text.lstrip().startswith("{"):
            self.json = json.JSONDecoder().raw_decode(text.lstrip())[0]


class Shell:
    """Runs commands as an operator would who typed them, with other addresses.

    `address`: (flag, address) that takes the place of the socket's: ("-unix", path), or
    ("", "127.0.0.1:7400").
    """

    def __init__(self, address):
        self._flag, self._address = address

    def command_of(self, example, **words):
        """The command with `words` ("SESSION", "PID") filled in."""
        command = example.command.replace(SOCKET, self._address)
        command = command.replace(" -unix ", " %s " % self._flag if self._flag else " ")
        for word, value in words.items():
            command = re.sub(r"\b%s\b" % word, value, command)
        return command

    def run(self, example, **words):
        tools = [os.path.dirname(deploy_tools.path_of("grpcurl")), os.path.abspath("client/cli")]
        done = subprocess.run(
            ["/bin/bash", "-c", self.command_of(example, **words)], capture_output=True, text=True,
            check=False, timeout=SECONDS, stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": ":".join([*tools, "/usr/bin", "/bin"]),
                 "KVTIERD_SOCKET": self._address})
        return Answer(done.stdout + done.stderr, done.returncode)


class ReflectingShell(Shell):
    """The same without grpcurl: by a client that knows server reflection alone. Calls only."""

    def run(self, example, **words):
        given = shlex.split(self.command_of(example, **words))
        assert given[0] == "grpcurl", given
        data = given[given.index("-d") + 1] if "-d" in given else "{}"
        prefix = "unix:" if self._flag else ""
        client = reflection.Client(prefix + self._address)
        try:
            return self._call(client, given[-1], json.loads(data), "-max-time" in given)
        except reflection.CallError as error:
            return Answer("Code: %s\n\"reason\":\"%s\"" % (
                error.code.title().replace("_", ""), error.reason), 64)
        finally:
            client.close()

    @staticmethod
    def _call(client, method, fields, streams):
        if method == "list":
            return Answer("\n".join(client.services()) + "\n", 0)
        if "/" not in method:
            descriptor = client.message_class(method).DESCRIPTOR
            return Answer("%s is a message:\n" % descriptor.full_name, 0)
        answer = next(client.stream(method, fields)) if streams else client.call(method, fields)
        return Answer(json.dumps(reflection.to_json(answer)), 0)


def missing(shown, real, where=""):
    """What of the object that the page shows is not in the real one, or is of another kind."""
    if isinstance(shown, dict) and isinstance(real, dict):
        for key, value in shown.items():
            if key not in real:
                yield "%s.%s" % (where, key)
            else:
                yield from missing(value, real[key], "%s.%s" % (where, key))
    elif isinstance(shown, list) and isinstance(real, list):
        if shown and not real:
            yield where + "[]"
        for value, other in zip(shown, real):
            yield from missing(value, other, where + "[]")
    elif isinstance(shown, bool) != isinstance(real, bool) or type(shown) is not type(real):
        yield "%s: %r, not like %r" % (where, real, shown)
    elif isinstance(shown, str) and shown.isdigit() != real.isdigit():
        yield "%s: %r, not like %r" % (where, real, shown)
