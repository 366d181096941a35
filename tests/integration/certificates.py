"""Certificates for tests, by the openssl of the machine.

    ca = Authority(case, folder, "ours")
    ca.issue("daemon", names=["DNS:localhost", "IP:127.0.0.1"])     # daemon.crt, daemon.key
"""
import os
import shutil
import subprocess

_DAYS = "2"


def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Authority:
    def __init__(self, case, folder, name):
        if shutil.which("openssl") is None:
            case.skipTest("there is no openssl to make certificates with")
        self._folder = folder
        self.certificate, self._key = (os.path.join(folder, name + end)
                                       for end in (".crt", ".key"))
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                 "-subj", "/CN=" + name, "-days", _DAYS, "-keyout", self._key, "-out",
                 self.certificate)

    def issue(self, name, names=(), common_name=None, subject=None):
        """The paths of a certificate and its key. `subject`: instead of a common name."""
        path = os.path.join(self._folder, name)
        with open(path + ".ext", "w") as file:
            file.write("subjectAltName=%s\n" % ",".join(names) if names else "")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                 subject or "/CN=" + (common_name or name), "-keyout", path + ".key", "-out", path + ".csr")
        _openssl("x509", "-req", "-in", path + ".csr", "-CA", self.certificate, "-CAkey", self._key,
                 "-CAcreateserial", "-days", _DAYS, "-extfile", path + ".ext", "-out",
                 path + ".crt.new")
        # As a renewal does: whoever looks sees the one or the other.
        os.rename(path + ".crt.new", path + ".crt")
        os.chmod(path + ".key", 0o600)
        return path + ".crt", path + ".key"
