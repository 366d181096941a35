"""The page of grpcurl commands: each is run, over the Unix socket and over TCP, by grpcurl and by a
client that knows reflection alone, and answers as the page shows."""
import json
import unittest

import page
import scene
from daemon import ADMIN, Daemon, new_folder

SECTION = "Ask it"
TABLES = "Ask it in tables"
# Changes from run to run; everything else that the page shows must come like that.
ANY = {"boot_id", "start_time", "opened_time", "memory_bytes", "pid", "peer_pid", "session_id",
       "session_ids", "listen_addresses", "used_bytes", "host_bytes", "largest_free_bytes"}


def different(shown, real):
    """Values that should have been the same."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            if key not in ANY:
                yield from different(value, real[key])
    elif isinstance(shown, list):
        for value, other in zip(shown, real):
            yield from different(value, other)
    elif shown != real:
        yield "%r instead of %r" % (real, shown)


class AskIt(unittest.TestCase):
    def setUp(self):
        self.socket = new_folder(self) + "/kvtierd.sock"
        self.daemon = Daemon(self, ["--tcp=127.0.0.1:0"], socket=self.socket)
        worker = scene.Worker(self, self.daemon)
        worker.admit()
        scene.decode(worker, steps=20, spread=2)
        self.examples = page.sections()[SECTION]

    def expect(self, shell):
        for example in self.examples:
            with self.subTest(command=shell.command_of(example)):
                answer = shell.run(example)
                kind, shown = example.answer
                if kind == "text":
                    for line in shown.splitlines():
                        self.assertIn(line, answer.text)
                    continue
                self.assertIsNotNone(answer.json, answer.text)
                shown = json.loads(shown)
                self.assertEqual(list(page.missing(shown, answer.json)), [], answer.text)
                self.assertEqual(list(different(shown, answer.json)), [], answer.text)

    def tcp(self):
        addresses = self.daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses
        return "", addresses[1]

    def test_there_are_commands_and_answers(self):
        self.assertGreater(len(self.examples), 10)
        for example in self.examples:
            self.assertTrue(example.command.startswith("grpcurl -plaintext -unix "), example.command)
            self.assertIsNotNone(example.answer, example.command)

    def test_o02_grpcurl_over_the_unix_socket(self):
        self.expect(page.Shell(("-unix", self.socket)))

    def test_o02_grpcurl_over_tcp(self):
        self.expect(page.Shell(self.tcp()))

    def test_reflection_over_the_unix_socket(self):
        self.expect(page.ReflectingShell(("-unix", self.socket)))

    def test_reflection_over_tcp(self):
        self.expect(page.ReflectingShell(self.tcp()))

    def test_the_same_in_tables(self):
        shell = page.Shell(("-unix", self.socket))
        examples = page.sections()[TABLES]
        self.assertGreater(len(examples), 5)
        for example in examples:
            with self.subTest(command=example.command):
                answer = shell.run(example)
                self.assertEqual(answer.status, 0, answer.text)
                if not example.command.endswith("health"):
                    self.assertTrue(scene.CACHE in answer.text or "r1" in answer.text, answer.text)

    def test_what_the_page_shows_is_compared(self):
        real = {"a": {"b": "1", "c": [{"d": 1}]}}
        self.assertEqual(list(page.missing({"a": {"b": "2"}}, real)), [])
        for shown in ({"x": 1}, {"a": {"b": "one"}}, {"a": {"b": 1}}, {"a": {"c": [{"e": 1}]}}):
            self.assertEqual(len(list(page.missing(shown, real))), 1, shown)
        self.assertEqual(len(list(different({"a": {"b": "2"}}, real))), 1)


if __name__ == "__main__":
    unittest.main()
