"""Every configuration that deploy/ makes is one that the daemon itself calls valid."""
import os
import subprocess
import tempfile
import unittest

from deploy import deploy_tools
from deploy.helm import helm_test
from deploy.kubernetes import policy

OVERLAYS = ("cpu", "gpu", "hugepages", "kept")


def validate(text, variables=None):
    """What the daemon says to it, and its status."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kvtierd.yaml")
        with open(path, "w") as file:
            file.write(text)
        done = subprocess.run(["server/kvtierd", "--config=" + path, "--validate"],
                              capture_output=True, text=True, check=False,
                              env={**os.environ, **(variables or {})})
    return done.returncode, done.stdout + done.stderr


def config_text(documents):
    return next(c["data"]["kvtierd.yaml"] for c in policy.of_kind(documents, "ConfigMap")
                if "kvtierd.yaml" in c["data"])


class Valid(unittest.TestCase):
    def test_of_the_kustomizations(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                documents = deploy_tools.kustomize("deploy/kubernetes/overlays/" + overlay)
                self.assertEqual(validate(config_text(documents)), (0, "valid\n"))

    def test_of_the_component(self):
        documents = deploy_tools.kustomize("deploy/kubernetes/examples/tls")
        variables = policy.variables_of(documents)
        self.assertIn("KVTIERD_TCP", variables)
        self.assertEqual(validate(config_text(documents), variables), (0, "valid\n"))
        variables.pop("KVTIERD_TLS_KEY")
        self.assertEqual(validate(config_text(documents), variables)[0], 1)

    def test_of_the_chart(self):
        for values in ({}, {"backend": "cpu"}, {"pool": {"gibibytes": 1536, "hugePages": "require"}},
                       {"pool": {"keepIn": "/dev/shm/kvtierd"}}, {"tls": helm_test.TLS},
                       {"pool": {"numaNode": 1}, "seccompProfile": {
                           "type": "Localhost", "localhostProfile": "kvtierd.json"}},
                       {"config": {"log_level": "debug", "sessions_max": 200, "log_format": "text",
                                   "allowed_uids": [0, 1000], "device_memory": "ipc"}}):
            with self.subTest(values=values):
                self.assertEqual(validate(config_text(helm_test.render(values))), (0, "valid\n"))

    def test_of_the_service(self):
        with open("deploy/systemd/kvtierd.yaml") as file:
            self.assertEqual(validate(file.read()), (0, "valid\n"))

    def test_the_daemon_would_say_what_is_wrong(self):
        for text in ("pool_byte: 1GiB\n", "pool_bytes: 64Gi\n", "backend: gpu\n"):
            status, said = validate(text)
            self.assertEqual(status, 1, said)
            self.assertIn(text.partition(":")[0], said)


if __name__ == "__main__":
    unittest.main()
