"""The Debian package: what is in it, where, for whom; its programs, scripts and manual."""
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest


def output_of(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError("%s: %d %s%s" % (command, done.returncode, done.stdout, done.stderr))
    return done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("dpkg-deb", "dpkg-shlibdeps"):
            if not shutil.which(tool):
                raise unittest.SkipTest("no " + tool)
        cls.folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.path = cls.build("first")
        cls.tree = cls.folder + "/tree"
        output_of("dpkg-deb", "-R", cls.path, cls.tree)
        cls.control = dict(re.findall(r"^([\w-]+): (.*)$", cls.read("DEBIAN/control"), re.MULTILINE))

    @classmethod
    def build(cls, name):
        folder = os.path.join(cls.folder, name)
        output_of("deploy/debian/build", folder, "server/kvtierd", "client/cli/kvtierctl",
                  env={**os.environ, "SOURCE_DATE_EPOCH": "1769860800"})
        return os.path.join(folder, os.listdir(folder)[0])

    @classmethod
    def read(cls, name):
        with open(os.path.join(cls.tree, name)) as file:
            return file.read()

    def files(self):
        for folder, _, names in os.walk(self.tree):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), self.tree)
                if not path.startswith("DEBIAN/"):
                    yield path

    def test_everything_is_where_an_administrator_looks(self):
        self.assertEqual(sorted(self.files()), [
            "etc/kvtierd/kvtierd.yaml",
            "lib/systemd/system/kvtierd.service",
            "usr/bin/kvtierctl",
            "usr/bin/kvtierd",
            "usr/lib/sysusers.d/kvtierd.conf",
            "usr/share/bash-completion/completions/kvtierctl",
            "usr/share/doc/kvtierd/changelog.gz",
            "usr/share/doc/kvtierd/copyright",
            "usr/share/doc/kvtierd/monitoring/alerts.yaml",
            "usr/share/doc/kvtierd/monitoring/dashboard.json",
            "usr/share/man/man1/kvtierctl.1.gz",
            "usr/share/man/man8/kvtierd.8.gz"])

    def test_all_of_it_is_roots_and_nobodys_to_write(self):
        for line in output_of("dpkg-deb", "-c", self.path).splitlines():
            mode, owner = line.split()[:2]
            self.assertEqual(owner, "root/root", line)
            self.assertRegex(mode, r"^[d-]rw[x-]r-[x-]r-[x-]$", line)

    def test_control(self):
        version = output_of("server/kvtierd", "--version").split()[1]
        self.assertEqual(os.path.basename(self.path), "kvtierd_%s_amd64.deb" % version)
        self.assertEqual(self.control["Version"], version)
        for needed in ("libc6 (>= ", "libgrpc++1.51", "libprotobuf32", "systemd"):
            self.assertIn(needed, self.control["Depends"])
        # What an administrator has changed stays.
        self.assertEqual(self.read("DEBIAN/conffiles"), "/etc/kvtierd/kvtierd.yaml\n")

    def test_the_sums_are_right(self):
        sums = dict(reversed(line.split("  ")) for line in self.read("DEBIAN/md5sums").splitlines())
        self.assertEqual(set(sums), set(self.files()) - {"etc/kvtierd/kvtierd.yaml"})
        for name, digest in sums.items():
            with open(os.path.join(self.tree, name), "rb") as file:
                self.assertEqual(hashlib.md5(file.read()).hexdigest(), digest, name)

    def test_the_same_sources_give_the_same_package(self):
        digests = set()
        for path in (self.path, self.build("second")):
            with open(path, "rb") as file:
                digests.add(hashlib.sha256(file.read()).hexdigest())
        self.assertEqual(len(digests), 1)

    def test_the_daemon_takes_its_configuration(self):
        self.assertEqual(output_of(self.tree + "/usr/bin/kvtierd", "--validate",
                                   "--config=" + self.tree + "/etc/kvtierd/kvtierd.yaml"), "valid\n")

    def test_the_units_user_is_made(self):
        if not shutil.which("systemd-sysusers"):
            self.skipTest("no systemd-sysusers")
        root = self.folder + "/users"
        os.makedirs(root + "/etc")
        output_of("systemd-sysusers", "--root=" + root, self.tree + "/usr/lib/sysusers.d/kvtierd.conf")
        unit = dict(line.split("=", 1) for line in
                    self.read("lib/systemd/system/kvtierd.service").splitlines() if "=" in line)
        with open(root + "/etc/passwd") as file:
            user = next(line for line in file if line.startswith(unit["User"] + ":"))
        self.assertTrue(user.rstrip().endswith(":/usr/sbin/nologin"), user)

    def test_scripts_are_shell(self):
        for name in ("postinst", "prerm", "postrm"):
            output_of("sh", "-n", os.path.join(self.tree, "DEBIAN", name))
            self.assertIn("set -e\n", self.read("DEBIAN/" + name))

    def manual(self, name):
        with gzip.open("%s/usr/share/man/%s.gz" % (self.tree, name), "rt") as file:
            return file.read()

    def test_the_manuals_say_what_the_help_says(self):
        for name, text, count in (
                ("man8/kvtierd.8", output_of("server/kvtierd", "--help"), 8),
                ("man1/kvtierctl.1", output_of("client/cli/kvtierctl", "help"), 5)):
            codes = re.findall(r"^  (\d)  (.*)$", text, re.MULTILINE)
            self.assertEqual(len(codes), count, text)
            for code, meaning in codes:
                self.assertIn(".TP\n.B %s\n%s\n" % (code, meaning), self.manual(name))
        text = output_of("server/kvtierd", "--help")
        for flag in re.findall(r"^  (--(?:print_\w+|validate))", text, re.MULTILINE):
            self.assertIn(flag.replace("-", "\\-"), self.manual("man8/kvtierd.8"))

    def test_the_completion_is_shell(self):
        path = self.tree + "/usr/share/bash-completion/completions/kvtierctl"
        output_of("bash", "-n", path)
        with open(path) as file:
            self.assertIn("complete -F", file.read())


if __name__ == "__main__":
    unittest.main()
