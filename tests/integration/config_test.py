"""Where the configuration comes from, how it is checked, and what SIGHUP does."""
import json
import os
import re
import signal
import subprocess
import unittest

import jsonschema
import raw_http2
import yaml
from daemon import ADMIN, BINARY, Daemon, Process, Session, new_folder, wait_until
from reflection import CallError

REFERENCE = "docs/CONFIGURATION.md"
SCHEMA = "docs/kvtierd.schema.json"


def run(*flags, environment=()):
    """Exit code, output and errors of a kvtierd that ends by itself."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVTIERD_")}
    done = subprocess.run([BINARY, *flags], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, env={**clean, **dict(environment)}, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def read(path):
    with open(path) as f:
        return f.read()


class Config(unittest.TestCase):
    def setUp(self):
        self.folder = new_folder(self)
        self.path = os.path.join(self.folder, "kvtierd.yaml")

    def write(self, text):
        with open(self.path, "w") as f:
            f.write(text)


class Actions(Config):
    def test_validate(self):
        self.write("pool_bytes: 64MiB\nlog_format: json\n")
        self.assertEqual(run("--config=" + self.path, "--validate"), (0, "valid\n", ""))
        for text, message in (("pool_byte: 1GiB\n", "did you mean 'pool_bytes'?"),
                              ("pool_bytes: 1GB\n", "kvtierd.yaml:1: pool_bytes: '1GB' is no size"),
                              ("\nsocket_mode: 0666\n",
                               "kvtierd.yaml:2: socket_mode: "),
                              ("socket: unix://\n", "kvtierd.yaml:1: socket: "),
                              ("a: {b: c}\n", "kvtierd.yaml:1: ")):
            with self.subTest(text=text):
                self.write(text)
                code, output, errors = run("--config=" + self.path, "--validate")
                self.assertEqual((code, output), (1, ""))
                self.assertIn(message, errors)
                self.assertIn("level=error event=failed exit_code=1", errors)

    def test_a_file_that_cannot_be_read(self):
        for path, message in ((self.path, "No such file"), (self.folder, "Is a directory")):
            code, _, errors = run("--validate", "--config=" + path)
            self.assertEqual(code, 1)
            self.assertIn(message, errors)
        self.write("# " + "x" * (2 << 20))
        self.assertIn("is it a configuration?", run("--validate", "--config=" + self.path)[2])

    def test_print_config_says_where_from(self):
        self.write("cpu_threads: 2\npin_threads: 3\n")
        code, output, _ = run("--print_config", "--numa_node=0",
                              environment={"KVTIERD_CONFIG": self.path,
                                           "KVTIERD_PIN_THREADS": "4"})
        self.assertEqual(code, 0)
        for line in ("cpu_threads: 2  # %s:1" % self.path,
                     "pin_threads: 4  # KVTIERD_PIN_THREADS", "numa_node: 0  # --numa_node",
                     'pool_bytes: "1GiB"  # default'):
            self.assertIn("\n" + line + "\n", output)
        # It is a configuration itself, in our eyes and in YAML's.
        self.write(output)
        self.assertEqual(run("--validate", "--config=" + self.path)[0], 0)
        jsonschema.validate(yaml.safe_load(output), json.loads(read(SCHEMA)))

    def test_the_schema_is_the_committed_one(self):
        _, output, _ = run("--print_schema")
        self.assertEqual(output, read(SCHEMA),
                         "run: kvtierd --print_schema >%s" % SCHEMA)
        schema = json.loads(output)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate({"pool_bytes": "8GiB", "tcp": ["127.0.0.1:1"], "numa_node": -1,
                             "allow_world_writable_socket": False, "shutdown_grace": "1m30s",
                             "socket_mode": "0660", "backend": "cpu"}, schema)
        for wrong in ({"pool_byte": "8GiB"}, {"pool_bytes": "8GB"}, {"pool_bytes": 0},
                      {"tcp": "127.0.0.1:1"}, {"numa_node": "0"}, {"numa_node": -2},
                      {"allow_world_writable_socket": "yes"}, {"shutdown_grace": "5"},
                      {"socket_mode": 432}, {"backend": "abacus"}, {"allowed_uids": [-1]}):
            with self.subTest(wrong=wrong), self.assertRaises(jsonschema.ValidationError):
                jsonschema.validate(wrong, schema)

    def test_the_reference_is_the_committed_one(self):
        _, output, _ = run("--print_reference")
        self.assertIn("\n" + output, read(REFERENCE),
                      "put the table of kvtierd --print_reference into %s" % REFERENCE)

    def test_the_examples_of_the_reference_are_valid(self):
        examples = re.findall(r"^```yaml\n(.*?)^```", read(REFERENCE), re.DOTALL | re.MULTILINE)
        self.assertTrue(examples)
        for example in examples:
            self.write(example)
            self.assertEqual(run("--validate", "--config=" + self.path), (0, "valid\n", ""))
            jsonschema.validate(yaml.safe_load(example), json.loads(read(SCHEMA)))

    def test_help_lists_every_setting(self):
        code, output, _ = run("--help")
        self.assertEqual(code, 0)
        for name in json.loads(read(SCHEMA))["properties"]:
            self.assertIn("\n  --%s (" % name, output)
        self.assertEqual(run("--version")[:2], (0, "kvtierd 0.1.0\n"))


class Served(Config):
    def test_a_daemon_from_a_file_alone(self):
        path = os.path.join(self.folder, "d.sock")
        self.write("socket: %s\nbackend: cpu\npool_bytes: 64MiB\ncaches_max: 3\n" % path)
        daemon = subprocess.Popen([BINARY, "--config", self.path], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
        self.addCleanup(daemon.stderr.close)
        self.addCleanup(daemon.wait, 30)
        self.addCleanup(daemon.terminate)
        wait_until(lambda: os.path.exists(path), "the socket is there")

    def test_variables_that_are_none_are_told(self):
        daemon = Process(self, os.path.join(self.folder, "d.sock"),
                         env={**os.environ, "KVTIERD_SERVICE_HOST": "10.0.0.1"})
        daemon.wait_for_event("listening")
        self.assertIn("level=warning event=unknown_environment variable=KVTIERD_SERVICE_HOST",
                      daemon.text())

    def test_json_lines(self):
        daemon = Process(self, os.path.join(self.folder, "d.sock"), ["--log_format=json"])
        wait_until(lambda: '"event":"ready"' in daemon.text(), "it is ready")
        self.assertEqual(daemon.stop(), 0)
        events = [json.loads(line) for line in daemon.text().splitlines()]
        # How often it says how far it is, and why it takes no work yet, depends on the machine.
        steps = [e for e in events if e["event"] not in ("pinning", "not_ready")]
        self.assertEqual([e["event"] for e in steps],
                         ["backend", "listening", "ready", "stopping", "stopped"])
        self.assertEqual(steps[-1]["exit_code"], 0)
        self.assertEqual({e["level"] for e in steps}, {"info"})


class Reload(Config):
    def reload(self, daemon, text, event):
        """Sends SIGHUP; the event's line."""
        before = daemon.text()
        self.write(text)
        daemon.process.send_signal(signal.SIGHUP)
        lines = wait_until(lambda: [line for line in daemon.text()[len(before):].splitlines()
                                    if " event=%s " % event in line], event)
        return lines[0]

    def test_what_can_change_does(self):
        self.write("sessions_max: 2\n")
        daemon = Daemon(self, ["--config=" + self.path])
        Session(self, daemon)
        line = self.reload(daemon, "sessions_max: 1\npool_bytes: 2GiB\nlog_level: warning\n"
                           "cpu_threads: 2\n", "config_reloaded")
        self.assertIn("level=warning", line)
        # --pool_bytes is a flag of this test, and goes over the file.
        self.assertIn(" applied=sessions_max,log_level needs_restart=cpu_threads", line)
        with self.assertRaises(CallError) as caught:
            Session(self, daemon)
        self.assertEqual(caught.exception.reason, "LIMIT_REACHED")
        self.reload(daemon, "sessions_max: 2\n", "config_reloaded")
        Session(self, daemon)
        self.assertEqual(daemon.stop(), 0)

    def test_a_mistake_changes_nothing(self):
        self.write("sessions_max: 2\n")
        daemon = Daemon(self, ["--config=" + self.path])
        Session(self, daemon)
        line = self.reload(daemon, "sessions_max: 1\nlog_levle: debug\n", "config_rejected")
        self.assertIn("did you mean 'log_level'?", line)
        Session(self, daemon)
        self.assertTrue(daemon.running())

    def test_users_who_may_connect(self):
        self.write("allowed_uids: [%d]\n" % os.getuid())
        daemon = Daemon(self, ["--config=" + self.path])
        self.reload(daemon, "allowed_uids: [%d]\n" % (os.getuid() + 1), "config_reloaded")
        # Who is connected stays.
        self.assertTrue(daemon.client.call(ADMIN + "GetNodeInfo").boot_id)
        with self.assertRaises(CallError) as caught:
            daemon.connect(self).call(ADMIN + "GetNodeInfo")
        self.assertEqual(caught.exception.code, "PERMISSION_DENIED")
        self.assertIn("--allowed_uids", caught.exception.message)
        daemon.wait_for_event("connection_refused")
        self.assertIn("uid=%d" % os.getuid(), daemon.text())


if __name__ == "__main__":
    unittest.main()
