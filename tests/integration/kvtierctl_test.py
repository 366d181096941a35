"""kvtierctl against a real daemon: what it prints, and its exit codes."""
import json
import os
import re
import signal
import subprocess
import unittest

from daemon import (ADMIN, PATIENCE_SECONDS, Daemon, Session, layout, new_folder,
                    wait_until)

BINARY = "client/cli/kvtierctl"
DONE, TO_CHANGE, BAD_COMMAND_LINE, NOT_REACHED, REFUSED = range(5)


class Kvtierctl(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self, ["--tcp=127.0.0.1:0"])

    def run_at(self, socket, *words, **options):
        """(exit code, output, errors)"""
        done = subprocess.run([BINARY, "--socket=" + socket, *words], capture_output=True,
                              stdin=subprocess.DEVNULL, text=True, timeout=PATIENCE_SECONDS,
                              check=False, **options)
        return done.returncode, done.stdout, done.stderr

    def ctl(self, *words, code=DONE):
        """The output of a run that ends with `code` and complains only then."""
        got, output, errors = self.run_at(self.daemon.socket, *words)
        self.assertEqual(got, code, (words, output, errors))
        if code == DONE:
            self.assertEqual(errors, "")
        return output

    def json(self, *words, code=DONE):
        return json.loads(self.ctl(*words, "--output=json", code=code))

    def work(self):
        """A session with a cache, a request and one miss, then one hit."""
        session = Session(self, self.daemon, "vLLM 0")
        session.call("AttachCache", {"cache": "kv", "layout": layout()})
        request = {"cache": "kv", "request_id": "r"}
        session.call("AdmitRequest", {**request, "reserve_blocks": 2})
        session.call("AssignBlocks", {**request, "count": 1})
        session.call("Backup", {"cache": "kv", "inline": {"rows": [
            {"request_id": "r", "slot": 0, "source_hot_row": 0}]}})
        for _ in range(2):
            session.call("SwapIn", {"cache": "kv", "use_slots": True, "inline": {"rows": [
                {"request_id": "r", "topk": [0]}]}})
        return session


class Looking(Kvtierctl):
    def test_stats(self):
        self.assertIn("no caches", self.ctl("stats"))
        zero = self.json("stats")
        self.assertEqual((zero["counters"]["hits"], zero["sessions"]), ("0", 0))
        self.assertNotIn("hit_rate", zero["counters"])
        session = self.work()
        output = self.ctl("stats")
        self.assertIn("lookups  1 hits, 1 misses, hit rate 50.0 %", output)
        self.assertRegex(output, r"\nkv +1 +1 +1/8 ")
        detailed = self.ctl("stats", "kv")
        self.assertIn(session.id, detailed)
        self.assertRegex(detailed, r"\nswap_in +2 ")
        stats = self.json("stats", "kv")
        self.assertEqual(stats["caches"][0]["counters"]["hit_rate"], 0.5)
        self.assertEqual(stats["caches"][0]["counters"]["evictions"], "0")

    def test_lists(self):
        for command in ("caches", "sessions"):
            self.assertEqual(self.ctl(command), "no %s\n" % command)
        session = self.work()
        self.assertRegex(self.ctl("caches"),
                         r"\nkv +%d +1 +1 +1 +8 +16 +2 +4 +8 +64  lru +- +0 +-\n" % os.getuid())
        self.assertRegex(self.ctl("sessions"),
                         r"\n%s  vLLM 0 +%d +%d .* kv\n" % (session.id, os.getpid(), os.getuid()))
        self.assertRegex(self.ctl("requests", "kv"), r"\n%s +r +0 +1 +1\n" % session.id)
        self.assertEqual(self.json("requests", "kv")["requests"][0]["request_id"], "r")
        self.assertEqual(self.json("caches")["caches"][0]["cache"], "kv")
        info = self.ctl("info")
        self.assertIn("version  0.1.0", info)
        self.assertIn("metrics  off", info)
        self.assertEqual(self.ctl("complete", "caches"), "kv\n")
        self.assertEqual(self.ctl("complete", "sessions"), session.id + "\n")

    def test_what_a_session_leaves(self):
        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": "kv", "layout": layout(),
                                     "retain": {"duration": "600s"}})
        request = {"cache": "kv", "request_id": "r"}
        session.call("AdmitRequest", request)
        session.call("AssignBlocks", {**request, "count": 3})
        session.close()
        wait_until(lambda: re.search(r"\nkv +\d+ +0 .* 3 +9m \d+s\n", self.ctl("caches")),
                   "its blocks are kept")
        self.assertRegex(self.ctl("stats"), r"\nkv +0 +0 +0/8 +3 ")

    def test_requests_of_more_than_a_page(self):
        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": "kv", "layout": layout(max_requests=1100)})
        for i in range(1100):
            session.call("AdmitRequest", {"cache": "kv", "request_id": "r%d" % i})
        requests = self.json("requests", "kv")["requests"]
        self.assertEqual(len({r["request_id"] for r in requests}), 1100)

    def test_tcp(self):
        address = self.daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses[1]
        self.assertIn("no caches", self.ctl("stats", "--address=" + address))

    def test_top(self):
        self.work()
        output = self.ctl("top", "--iterations=2", "--interval=100ms")
        self.assertEqual(output.count("kvtierd 0.1.0  boot "), 2)
        self.assertIn("hit rate", output)
        self.assertRegex(output, r"\nkv +1 +1/2 +1/8 ")
        self.assertNotIn("\x1b", output)
        lines = self.ctl("top", "kv", "--iterations=3", "--interval=100ms", "--output=json")
        self.assertEqual([json.loads(line)["caches"][0]["cache"] for line in lines.splitlines()],
                         ["kv"] * 3)

    def test_top_on_a_terminal_leaves_it_as_it_was(self):
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen([BINARY, "--socket=" + self.daemon.socket, "top"],
                                   stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.kill)
        seen = b""
        while b"no caches" not in seen:
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE_SECONDS), 0)
        try:
            while True:
                seen += os.read(master, 65536)
        except OSError:
            pass  # the other end has closed
        self.assertTrue(seen.startswith(b"\x1b[?1049h\x1b[?25l"), seen[:40])
        self.assertTrue(seen.endswith(b"\x1b[?25h\x1b[?1049l"), seen[-40:])

    def test_health(self):
        self.assertEqual(self.ctl("health"), "SERVING\n")
        self.assertEqual(self.json("health", "liveness"), {"liveness": "SERVING"})
        self.ctl("health", "wealth", code=BAD_COMMAND_LINE)


class Acting(Kvtierctl):
    def test_evict(self):
        session = self.work()
        self.assertEqual(self.ctl("evict", session.id, "--message=over quota"),
                         session.id + " has ended\n")
        self.assertEqual(session.events.get(timeout=PATIENCE_SECONDS).revoked.message,
                         "over quota")
        code, output, errors = self.run_at(self.daemon.socket, "evict", session.id)
        self.assertEqual((code, output), (REFUSED, ""))
        self.assertIn("(SESSION_UNKNOWN)", errors)

    def test_drain(self):
        session = self.work()
        self.assertEqual(self.ctl("drain", "--message=kernel update"),
                         "draining; 1 sessions are still open\n")
        self.assertEqual(session.events.get(timeout=PATIENCE_SECONDS).draining.message,
                         "kernel update")
        self.assertEqual(self.ctl("health", code=TO_CHANGE), "NOT_SERVING\n")
        self.assertEqual(self.ctl("health", "liveness"), "SERVING\n")
        self.assertIn(", draining, ", self.ctl("stats"))
        self.assertIn("DRAINING", self.ctl("top", "--iterations=1"))
        report = self.json("doctor", code=TO_CHANGE)
        self.assertIn("NOT_SERVING", str(report))

    def test_drain_waits_for_sessions_to_leave(self):
        session = self.work()
        self.assertEqual(self.json("drain", "--wait=300ms", code=TO_CHANGE), {"sessions": 1})
        code, output, errors = self.run_at(self.daemon.socket, "drain", "--wait=300ms")
        self.assertEqual((code, output), (TO_CHANGE, "draining; 1 sessions are still open\n"))
        self.assertIn("1 sessions have not left within 300ms", errors)
        # The same again, while the session leaves when it is told.
        waiting = subprocess.Popen([BINARY, "--socket=" + self.daemon.socket, "drain",
                                    "--wait=%ds" % PATIENCE_SECONDS],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(waiting.stdout.close)
        self.addCleanup(waiting.wait, PATIENCE_SECONDS)
        self.assertEqual(session.events.get(timeout=PATIENCE_SECONDS).WhichOneof("event"),
                         "draining")
        session.close()
        self.assertEqual(waiting.stdout.read(), "draining; 0 sessions are still open\n")
        self.assertEqual(waiting.wait(PATIENCE_SECONDS), DONE)


class Failing(Kvtierctl):
    def test_nobody_there(self):
        folder = new_folder(self)
        for command in (["stats"], ["top"], ["sessions"], ["health"], ["evict", "x"], ["drain"]):
            code, output, errors = self.run_at(folder + "/d.sock", *command)
            self.assertEqual((code, output), (NOT_REACHED, ""), command)
            self.assertIn(folder + "/d.sock does not exist", errors)

    def test_a_daemon_that_does_not_answer(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.daemon.process.send_signal, signal.SIGCONT)
        code, _, errors = self.run_at(self.daemon.socket, "stats", "--timeout=200ms")
        self.assertEqual(code, NOT_REACHED)
        self.assertIn(self.daemon.socket, errors)

    def test_refused(self):
        for command in (["stats", "none"], ["requests", "none"], ["top", "none"]):
            code, output, errors = self.run_at(self.daemon.socket, *command)
            self.assertEqual((code, output), (REFUSED, ""), command)
            self.assertIn("(CACHE_UNKNOWN)", errors)

    def test_the_command_line(self):
        for words in ([], ["stat"], ["requests"], ["stats", "--outptu=json"],
                      ["completion", "fish"]):
            self.assertEqual(self.run_at(self.daemon.socket, *words)[0], BAD_COMMAND_LINE, words)

    def test_the_reference_has_the_usage(self):
        with open("docs/KVTIERCTL.md") as f:
            self.assertIn("\n```\n%s```\n" % self.ctl("help"), f.read(),
                          "put what kvtierctl help prints into docs/KVTIERCTL.md")


class Doctor(Kvtierctl):
    def test_a_real_machine(self):
        code, output, errors = self.run_at(self.daemon.socket, "doctor")
        self.assertIn(code, (DONE, TO_CHANGE))
        self.assertEqual(errors, "")
        self.assertRegex(output, r"(?m)^ok +daemon +kvtierd 0\.1\.0 answers, pid %d$"
                         % self.daemon.pid)
        for check in ("socket", "driver", "mig", "memlock", "open files", "pages",
                      "shared memory", "cgroup", "numa"):
            self.assertRegex(output, r"(?m)^(ok|note|warning|bad) +%s  " % check)

    def test_without_a_daemon(self):
        code, output, _ = self.run_at(new_folder(self) + "/d.sock", "doctor", "--output=json")
        self.assertEqual(code, TO_CHANGE)
        findings = json.loads(output)["findings"]
        self.assertEqual((findings[0]["check"], findings[0]["level"]), ("daemon", "bad"))
        self.assertTrue(findings[0]["advice"])


class Completion(Kvtierctl):
    def complete(self, *words, socket=None):
        """What bash offers for the last word."""
        folder = os.path.abspath(os.path.dirname(BINARY))
        script = """
            eval "$(kvtierctl completion bash)"
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvtierctl; printf '%s\\n' "${COMPREPLY[@]}"
            """
        done = subprocess.run(
            ["bash", "-c", script, "bash", "kvtierctl", *words], capture_output=True, text=True,
            check=True, timeout=PATIENCE_SECONDS,
            env={**os.environ, "PATH": folder + ":" + os.environ["PATH"],
                 "KVTIERD_SOCKET": socket or self.daemon.socket})
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash(self):
        session = self.work()
        self.assertEqual(self.complete("se"), ["sessions"])
        self.assertIn("doctor", self.complete(""))
        self.assertNotIn("complete", self.complete(""))
        self.assertEqual(self.complete("--ou"), ["--output="])
        self.assertEqual(self.complete("stats", ""), ["kv"])
        self.assertEqual(self.complete("--output=json", "evict", ""), [session.id])
        self.assertEqual(self.complete("health", "l"), ["liveness"])

    def test_bash_asks_the_daemon_of_the_line(self):
        """Bash cuts words at = and : before the function sees them."""
        session = self.work()
        nobody = new_folder(self) + "/d.sock"
        self.assertEqual(self.complete("evict", "", socket=nobody), [])
        for at in (["--socket=" + self.daemon.socket], ["--socket", "=", self.daemon.socket]):
            self.assertEqual(self.complete(*at, "evict", "", socket=nobody), [session.id])
            self.assertEqual(self.complete("stats", *at, "", socket=nobody), ["kv"])
            self.assertEqual(self.complete(*at, "sess", socket=nobody), ["sessions"])
        host, port = self.daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses[1].split(":")
        self.assertEqual(self.complete("--address", "=", host, ":", port, "evict", "",
                                       socket=nobody), [session.id])
        self.assertEqual(self.complete("--output", "="), [])


if __name__ == "__main__":
    unittest.main()
