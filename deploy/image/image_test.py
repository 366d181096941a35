"""The image: its root file system is assembled, packed, and the daemon runs from it as the image's
user with a read-only root, in a folder that the init container has handed over."""
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

import yaml

from deploy import deploy_tools
from deploy.image import archive, container

sys.path.append("tests/integration")
from daemon import (ADMIN, HEALTH, PATIENCE_SECONDS, Session, layout,  # noqa: E402
                    wait_until)
from reflection import Client  # noqa: E402

USER = 65532


POOL_FOLDER = "/dev/hugepages/kvtierd"


def pod(folder="base"):
    path = os.path.join(deploy_tools.ROOT, "deploy/kubernetes", folder, "daemon_set.yaml")
    with open(path) as file:
        return yaml.safe_load(file)["spec"]["template"]["spec"]


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.root = cls.folder + "/root"
        subprocess.run(["deploy/image/root", cls.root, "server/kvtierd", "client/cli/kvtierctl"],
                       check=True)


class Content(Image):
    def test_nothing_to_log_into(self):
        programs = os.listdir(self.root + "/usr/bin") + os.listdir(self.root + "/usr/sbin")
        self.assertEqual(sorted(programs), ["install", "kvtierctl", "kvtierd"])

    def test_nobody_may_write_and_nothing_becomes_root(self):
        for folder, folders, files in os.walk(self.root):
            for name in folders + files:
                mode = os.lstat(os.path.join(folder, name)).st_mode
                if not stat.S_ISLNK(mode):
                    self.assertEqual(mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID
                                             | stat.S_ISGID), 0, name)

    def test_all_that_is_linked_to_is_there(self):
        if os.getuid() != 0:
            self.skipTest("chroot is root's")
        for program in os.listdir(self.root + "/usr/bin"):
            done = subprocess.run(["/usr/sbin/chroot", self.root, "/lib64/ld-linux-x86-64.so.2",
                                   "--list", "/usr/bin/" + program],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("not found", done.stdout)

    def test_each_library_has_its_license(self):
        packages = os.listdir(self.root + "/usr/share/doc")
        self.assertIn("libgrpc29", packages)
        for package in packages:
            self.assertEqual(os.listdir(self.root + "/usr/share/doc/" + package), ["copyright"])

    def test_the_containerfile_and_the_archive_agree(self):
        with open("deploy/image/Containerfile") as file:
            text = file.read()
        config = archive.CONFIG["config"]
        final = text[text.index("FROM scratch"):]
        self.assertIn("USER %s\n" % config["User"], final)
        self.assertIn("ENTRYPOINT %s\n" % json.dumps(config["Entrypoint"]), final)
        self.assertIn(archive.NAME, [c["image"] for c in pod()["containers"]])
        # What it copies and runs is there.
        for name in re.findall(r"\b((?:tools|deploy)/[\w/]+)", text):
            self.assertTrue(os.path.exists(os.path.join(deploy_tools.ROOT, name)), name)


class Archive(Image):
    def write(self, name):
        path = os.path.join(self.folder, name)
        archive.write(self.root, path)
        return path

    def test_it_is_an_oci_image(self):
        with tarfile.open(self.write("a.tar")) as tar:
            files = {entry.name: tar.extractfile(entry).read() for entry in tar}
        self.assertEqual(json.loads(files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})

        def blob(entry):
            data = files["blobs/sha256/" + entry["digest"].partition(":")[2]]
            self.assertEqual("sha256:" + hashlib.sha256(data).hexdigest(), entry["digest"])
            self.assertEqual(len(data), entry["size"])
            return data
        manifest = json.loads(blob(json.loads(files["index.json"])["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        self.assertEqual(config["config"]["User"], "%d:%d" % (USER, USER))
        self.assertEqual(len(manifest["layers"]), len(config["rootfs"]["diff_ids"]))
        blob(manifest["layers"][0])

    def test_the_same_folder_gives_the_same_bytes(self):
        digests = set()
        for name in ("a.tar", "b.tar"):
            with open(self.write(name), "rb") as file:
                digests.add(hashlib.sha256(file.read()).hexdigest())
        self.assertEqual(len(digests), 1)


@unittest.skipUnless(os.getuid() == 0, "mounts and users are root's to change")
class Running(Image):
    """As the pod has it: the init container's command and users, the daemon's user."""

    def setUp(self):
        # What kubelet makes: root's, and nobody else's to write.
        self.host = tempfile.mkdtemp(prefix="run-", dir=self.folder)
        os.chmod(self.host, 0o755)
        os.chmod(self.folder, 0o755)
        self.mounts = {"/run/kvtierd": self.host}
        self.log = tempfile.TemporaryFile("w+")
        self.addCleanup(self.log.close)

    def text(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def start(self, command, user, group):
        try:
            process = container.start(self.root, command, user, group, self.mounts,
                                      stderr=self.log)
        except subprocess.SubprocessError:
            self.skipTest("no mount namespaces here")
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.kill)
        return process

    def hand_over(self, command=None, **context):
        """The init container, from the manifest. Its exit code."""
        first = pod()["initContainers"][0]
        context = {**first["securityContext"], **context}
        return self.start(command or first["command"], context["runAsUser"], context["runAsGroup"]).wait(
            PATIENCE_SECONDS)

    def serve(self, *flags):
        daemon = self.start(["/usr/bin/kvtierd", "--backend=cpu", "--pool_bytes=64MiB", *flags],
                            USER, USER)
        path = self.host + "/kvtierd.sock"
        wait_until(lambda: os.path.exists(path) or daemon.poll() is not None, "the socket is there")
        self.assertIsNone(daemon.poll(), self.text())
        client = Client("unix:" + path)
        self.addCleanup(client.close)
        return daemon, client

    def status_of(self, daemon):
        with open("/proc/%d/status" % daemon.pid) as file:
            return dict(line.split(":\t", 1) for line in file.read().splitlines()
                        if ":\t" in line)

    def test_the_folder_is_handed_over_without_a_capability(self):
        for _ in range(2):  # a pod that starts again finds it done
            self.assertEqual(self.hand_over(), 0, self.text())
            folder = os.stat(self.host)
            self.assertEqual((folder.st_uid, folder.st_gid, stat.S_IMODE(folder.st_mode)),
                             (0, USER, 0o1770))

    def test_a_root_that_is_not_in_the_group_could_not(self):
        self.assertNotEqual(self.hand_over(runAsGroup=0), 0)

    def test_without_the_hand_over_the_daemon_says_what_is_wrong(self):
        daemon = self.start(["/usr/bin/kvtierd", "--backend=cpu", "--pool_bytes=64MiB"], USER, USER)
        self.assertEqual(daemon.wait(PATIENCE_SECONDS), 2)
        self.assertIn("Permission denied", self.text())

    def test_it_serves_as_nobody_in_particular(self):
        self.assertEqual(self.hand_over(), 0, self.text())
        daemon, client = self.serve()
        self.assertEqual(client.call(ADMIN + "GetNodeInfo").devices[0].backend, "cpu")
        status = self.status_of(daemon)
        self.assertEqual(status["Uid"].split(), [str(USER)] * 4)
        self.assertEqual(status["Gid"].split(), [str(USER)] * 4)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            self.assertEqual(int(status[name], 16), 0, name)
        self.assertEqual(status["NoNewPrivs"], "1")
        with open("/proc/%d/mountinfo" % daemon.pid) as file:
            mounts = [line.split() for line in file]
        self.assertEqual([m[5].split(",")[0] for m in mounts if m[4] == "/"], ["ro"])
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0, self.text())
        self.assertEqual(os.listdir(self.host), [])

    def test_the_probes_answer(self):
        self.assertEqual(self.hand_over(), 0, self.text())
        daemon, client = self.serve()
        wait_until(lambda: client.call(HEALTH, {}).status == 1, "the pool is ready")
        probes = [pod()["containers"][0][name]["exec"]["command"]
                  for name in ("startupProbe", "livenessProbe", "readinessProbe")]
        for command in probes:
            self.assertEqual(self.start(command, USER, USER).wait(PATIENCE_SECONDS), 0, command)
        # Who execs into the pod is an operator.
        drain = ["/usr/bin/kvtierctl", "drain"]
        self.assertEqual(self.start(drain, USER, USER).wait(PATIENCE_SECONDS), 0)
        results = [self.start(c, USER, USER).wait(PATIENCE_SECONDS) for c in probes]
        self.assertEqual(results, [0, 0, 1])  # alive, and not ready
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0, self.text())

    def test_the_socket_is_the_groups(self):
        self.assertEqual(self.hand_over(), 0, self.text())
        self.serve()
        self.assertEqual(self.connect_as(1000, [USER]), 0)
        self.assertNotEqual(self.connect_as(1000, []), 0)

    def test_a_worker_replaces_no_socket(self):
        """Also one that has the folder mounted to write."""
        self.assertEqual(self.hand_over(), 0, self.text())
        daemon, _ = self.serve()
        names = sorted(os.listdir(self.host))
        self.assertIn("kvtierd.sock", names)
        for name in names:
            path = self.host + "/" + name
            for code in ("os.unlink(%r)" % path, "os.rename(%r, %r)" % (path, path + ".old"),
                         "os.rename(%r, %r)" % (self.host + "/mine", path)):
                with self.subTest(code=code):
                    made = "open(%r, 'w').close()" % (self.host + "/mine")
                    self.assertEqual(self.python_as(1000, [USER], made), 0)
                    self.assertNotEqual(self.python_as(1000, [USER], "import os; " + code), 0)
        self.assertEqual(self.connect_as(1000, [USER]), 0)
        os.unlink(self.host + "/mine")
        # Its own it removes all the same.
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0, self.text())
        self.assertEqual(os.listdir(self.host), [])

    def test_a_kept_pool_outlives_the_container(self):
        """On tmpfs in place of hugetlbfs, which machines without reserved pages do not have."""
        folder = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        self.mounts[POOL_FOLDER] = folder
        command = pod("overlays/kept")["initContainers"][0]["command"]
        for kept in (0, 3):
            self.assertEqual(self.hand_over(command), 0, self.text())
            daemon, client = self.serve("--pool_path=%s/pool" % POOL_FOLDER)
            wait_until(lambda: client.call(HEALTH, {}).status == 1, "the pool is ready")
            session = Session(self, None, client=client)
            attached = session.call("AttachCache", {"cache": "c", "layout": layout()})
            self.assertEqual(attached.blocks_kept, kept)
            session.call("AdmitRequest", {"cache": "c", "request_id": "r"})
            if not kept:
                session.call("AssignBlocks", {"cache": "c", "request_id": "r", "count": 3})
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0, self.text())
        self.assertEqual(os.stat(folder + "/pool").st_uid, USER)

    def connect_as(self, user, groups):
        """As a worker of another user would. 0: it could."""
        return self.python_as(user, groups, "import socket; socket.socket(socket.AF_UNIX).connect(%r)"
                              % (self.host + "/kvtierd.sock"))

    @staticmethod
    def python_as(user, groups, code):
        return subprocess.run(["/usr/bin/python3", "-c", code], user=user, group=user,
                              extra_groups=groups, stderr=subprocess.DEVNULL, check=False,
                              cwd="/").returncode


if __name__ == "__main__":
    unittest.main()
