"""The unit: systemd finds nothing wrong with it, its times fit the daemon's, and a real service
manager starts, reloads, revives and stops a daemon by it."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

UNIT = "deploy/systemd/kvtierd.service"
ANALYZE = "/usr/bin/systemd-analyze"
# Of 10, where less is better.
EXPOSURE_MAX = 2.0
# What a start takes at most that finds no device.
START_SECONDS = 20
NO_MANAGER = 77
# Those make mounts that the manager of a user may not make inside a container.
NEED_MORE_MOUNTS = {"ProtectHome", "ProtectKernelLogs", "ProtectKernelTunables"}
# A user's manager runs as its user.
OF_THE_SYSTEM = {"User", "Group"}


def lines():
    with open(UNIT) as file:
        return file.read().splitlines()


def settings():
    """{name: value} of the unit; the last of several."""
    return dict(line.split("=", 1) for line in lines() if "=" in line and line[0] != "#")


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()
    return int(number) * {"s": 1, "min": 60}[unit]


class Unit(unittest.TestCase):
    """What can be said without running it."""

    def analyze(self, *words):
        if not os.path.exists(ANALYZE):
            self.skipTest("no systemd-analyze")
        folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        path = folder + "/kvtierd.service"
        with open(path, "w") as file:  # the binary as if it were installed; the page is
            for line in lines():
                if not line.startswith("Documentation="):
                    file.write(line.replace("/usr/bin/kvtierd", "/bin/true") + "\n")
        return subprocess.run([ANALYZE, *words, path], capture_output=True, text=True, check=False)

    def test_systemd_finds_nothing_wrong(self):
        done = self.analyze("verify", "--man=no")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_it_is_not_exposed(self):
        done = self.analyze("security", "--offline=yes", "--no-pager")
        level = float(re.search(r"exposure level for \S+: ([\d.]+)", done.stdout).group(1))
        self.assertLessEqual(level, EXPOSURE_MAX, done.stdout)

    def test_each_time_leaves_room_for_the_one_inside(self):
        unit = settings()
        with open("deploy/systemd/kvtierd.yaml") as file:
            grace = seconds(yaml.safe_load(file)["shutdown_grace"])
        self.assertGreaterEqual(seconds(unit["TimeoutStopSec"]), grace + 10)
        self.assertGreaterEqual(seconds(unit["WatchdogSec"]), 10)
        self.assertEqual(unit["Type"], "notify")

    def test_codes_that_another_start_does_not_change(self):
        text = subprocess.run(["server/kvtierd", "--help"], capture_output=True, text=True,
                              check=False).stdout
        codes = dict(re.findall(r"^  (\d)  (.*)$", text, re.MULTILINE))
        kept = settings()["RestartPreventExitStatus"].split()
        self.assertEqual([codes[code] for code in kept],
                         ["the command line or the configuration is wrong"])

    def test_a_driver_that_comes_late_is_tried_for_and_not_for_ever(self):
        unit = settings()
        tries, within = int(unit["StartLimitBurst"]), seconds(unit["StartLimitIntervalSec"])
        self.assertGreaterEqual(tries * seconds(unit["RestartSec"]), 20)
        # So often before the interval is over, and then no more.
        self.assertLess(tries * (seconds(unit["RestartSec"]) + START_SECONDS), within)

    def test_the_socket_lies_in_the_units_folder(self):
        self.assertEqual(settings()["RuntimeDirectory"], "kvtierd")
        self.assertEqual(settings()["RuntimeDirectoryPreserve"], "yes")
        with open("deploy/systemd/kvtierd.yaml") as file:
            socket = yaml.safe_load(file).get("socket", "/run/kvtierd/kvtierd.sock")
        self.assertTrue(socket.startswith("/run/kvtierd/"))


@unittest.skipUnless(os.getuid() == 0, "namespaces are root's to make")
class RealManager(unittest.TestCase):
    def test_it_is_started_revived_and_stopped(self):
        folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        shutil.copy("server/kvtierd", folder + "/kvtierd")
        socket = "/run/user/0/kvtierd/kvtierd.sock"
        with open(folder + "/kvtierd.yaml", "w") as file:
            file.write("backend: cpu\npool_bytes: 64MiB\nsocket: %s\n" % socket)
        with open(folder + "/kvtierd.service", "w") as file:
            file.write(self.unit())
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
             "deploy/systemd/manager.sh", folder, "/usr/bin/python3",
             "deploy/systemd/rehearsal.py", socket],
            capture_output=True, text=True, check=False, timeout=240)
        if done.returncode == NO_MANAGER:
            self.skipTest("no systemd that can be run here")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(json.loads(done.stdout))

    @staticmethod
    def unit():
        """The unit, as a user's manager takes it, and less patient; but a machine that does much
        else may not let it beat for seconds."""
        changed = {"WatchdogSec": "10s", "RestartSec": "100ms",
                   "ExecStart": "/run/under_test/kvtierd --config=/run/under_test/kvtierd.yaml"}
        kept = []
        for line in lines():
            name = line.partition("=")[0]
            if name not in NEED_MORE_MOUNTS | OF_THE_SYSTEM:
                kept.append("%s=%s" % (name, changed[name]) if name in changed else line)
        return "\n".join(kept) + "\n"

    def check(self, steps):
        for step in ("started", "reloaded", "killed", "hung"):
            with self.subTest(step=step):
                self.assertEqual((steps[step]["ActiveState"], steps[step]["StatusText"]),
                                 ("active", "serving"), steps)
        self.assertTrue(steps["socket_is_there"])
        self.assertEqual(steps["reload_status"], 0)
        self.assertEqual(steps["reloaded"]["MainPID"], steps["started"]["MainPID"])
        self.assertEqual([steps[step]["NRestarts"] for step in ("started", "killed", "hung")],
                         ["0", "1", "2"])
        # Its filter, and no capability, were in force all the while.
        self.assertEqual(steps["process"]["Seccomp"], "2")
        self.assertEqual(int(steps["process"]["CapBnd"], 16), 0)
        self.assertEqual((steps["stopped"]["ActiveState"], steps["stopped"]["Result"]),
                         ("inactive", "success"))
        self.assertTrue(steps["socket_is_gone"])
        # What a container has mounted: revived and started again, the daemon is where it was.
        self.assertEqual(steps["folder_killed"], steps["folder_started"])
        self.assertEqual(steps["folder_stopped"], steps["folder_started"])
        # No such device: tried again, as the driver may come.
        self.assertEqual((steps["no_device"]["ExecMainStatus"], steps["was_tried_again"]),
                         ("4", True), steps)
        # A wrong command line is not tried again and again.
        self.assertEqual((steps["wrong"]["ActiveState"], steps["wrong"]["ExecMainStatus"],
                          steps["wrong"]["NRestarts"]), ("failed", "1", "0"))


if __name__ == "__main__":
    unittest.main()
