"""The kustomizations, rendered by kubectl: schemas of Kubernetes, our policies, and proof that each
policy fires."""
import copy
import unittest

import yaml

from deploy import deploy_tools
from deploy.kubernetes import policy

OVERLAYS = ("cpu", "gpu", "hugepages", "kept")
# Kinds of the Prometheus operator; their schemas are the operator's, not Kubernetes'.
FOREIGN_KINDS = {"PodMonitor", "PrometheusRule"}


def rendered(overlay):
    return deploy_tools.kustomize("deploy/kubernetes/overlays/" + overlay)


def with_tls():
    return deploy_tools.kustomize("deploy/kubernetes/examples/tls")


class Rendered(unittest.TestCase):
    def test_what_is_there(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                self.assertEqual(
                    sorted(d["kind"] for d in rendered(overlay)),
                    ["ConfigMap", "ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy",
                     "PodMonitor", "PrometheusRule", "ResourceQuota", "ServiceAccount"])

    def test_kubernetes_takes_it(self):
        schemas = deploy_tools.Schemas()
        for overlay in OVERLAYS:
            for document in rendered(overlay):
                if document["kind"] not in FOREIGN_KINDS:
                    with self.subTest(overlay=overlay, kind=document["kind"]):
                        self.assertEqual(schemas.faults(document), [])

    def test_the_schemas_fire(self):
        schemas = deploy_tools.Schemas()
        pod = lambda d: d["spec"]["template"]["spec"]
        for change in (lambda d: pod(d).update(hostPid=True),
                       lambda d: pod(d)["containers"][0].update(image=["a"]),
                       lambda d: pod(d)["containers"][0]["livenessProbe"]["exec"].update(command="a"),
                       lambda d: d["spec"].pop("selector")):
            document = policy.of_kind(rendered("gpu"), "DaemonSet")[0]
            change(document)
            self.assertNotEqual(schemas.faults(document), [])

    def test_all_is_in_one_namespace(self):
        for overlay in OVERLAYS:
            for document in rendered(overlay):
                if document["kind"] != "Namespace":
                    self.assertEqual(document["metadata"].get("namespace"), "kvtierd", document)

    def test_q01_our_policies_hold(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                self.assertEqual(policy.faults(rendered(overlay)), [])

    def test_another_configuration_rolls_the_pods(self):
        names = {volume["configMap"]["name"] for overlay in OVERLAYS
                 for volume in policy.pod_of(rendered(overlay))["volumes"] if "configMap" in volume}
        self.assertEqual(len(names), len(OVERLAYS))


class Tls(unittest.TestCase):
    """The component, in the example that shows how to use it."""

    def test_kubernetes_takes_it_and_our_policies_hold(self):
        schemas = deploy_tools.Schemas()
        for document in with_tls():
            if document["kind"] not in FOREIGN_KINDS:
                self.assertEqual(schemas.faults(document), [], document["kind"])
        self.assertEqual(policy.faults(with_tls()), [])

    def test_every_overlay_takes_it(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                documents = deploy_tools.kustomize_of({
                    "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                    "resources": ["deploy/kubernetes/overlays/" + overlay],
                    "components": ["deploy/kubernetes/components/tls"]})
                self.assertEqual(policy.faults(documents), [])
                self.assertEqual(policy.config_of(documents)["tcp"], ["0.0.0.0:7400"])

    def test_the_example_is_the_overlay_and_names(self):
        config, plain = policy.config_of(with_tls()), policy.config_of(rendered("gpu"))
        self.assertEqual({name for name in config if name not in plain},
                         {"tcp", "tls_certificate", "tls_key", "tls_client_ca", "tls_viewers",
                          "tls_operators"})
        self.assertEqual({name: config[name] for name in plain}, plain)

    def test_our_policies_fire(self):
        for name, spoil in TLS_FAULTS:
            documents = with_tls()
            spoil(documents)
            self.assertIn(name, [found for found, _ in policy.faults(documents)])


def set_config(documents, **keys):
    config = next(c for c in policy.of_kind(documents, "ConfigMap")
                  if "kvtierd.yaml" in c["data"])
    values = {**yaml.safe_load(config["data"]["kvtierd.yaml"]), **keys}
    config["data"]["kvtierd.yaml"] = yaml.safe_dump(values)


def change_mode(command, mode):
    command[command.index("-m") + 1] = mode


POD, DAEMON = policy.pod_of, policy.daemon_of


def daemon_set(documents):
    return policy.of_kind(documents, "DaemonSet")[0]["spec"]


# A fault of each kind, and the rule that must find it.
FAULTS = [
    ("no_privilege", lambda d: POD(d).update(hostIPC=True)),
    ("no_privilege", lambda d: POD(d).update(hostPID=True)),
    ("no_privilege", lambda d: POD(d).update(hostNetwork=True)),
    ("no_privilege", lambda d: POD(d)["securityContext"].pop("seccompProfile")),
    ("no_privilege", lambda d: POD(d).pop("automountServiceAccountToken")),
    ("no_privilege", lambda d: DAEMON(d)["securityContext"].update(privileged=True)),
    ("no_privilege", lambda d: DAEMON(d)["securityContext"].pop("allowPrivilegeEscalation")),
    ("no_privilege", lambda d: DAEMON(d)["securityContext"]["capabilities"].update(add=["IPC_LOCK"])),
    ("no_privilege", lambda d: POD(d)["initContainers"][0].pop("securityContext")),
    ("no_privilege", lambda d: DAEMON(d)["securityContext"].update(readOnlyRootFilesystem=False)),
    ("not_root", lambda d: DAEMON(d)["securityContext"].update(runAsUser=0)),
    ("not_root", lambda d: POD(d)["securityContext"].update(runAsNonRoot=False)),
    ("not_root", lambda d: POD(d)["securityContext"].update(runAsGroup=0)),
    ("only_the_folders_that_it_shares",
     lambda d: POD(d)["volumes"].append({"hostPath": {"path": "/"}})),
    ("only_the_folders_that_it_shares", lambda d: set_config(d, pool_path="/dev/shm/kvtierd/pool")),
    ("only_the_folders_that_it_shares",
     lambda d: POD(d)["initContainers"][0].update(command=["true"])),
    ("only_the_folders_that_it_shares",
     lambda d: change_mode(POD(d)["initContainers"][0]["command"], "0770")),
    ("only_the_folders_that_it_shares",
     lambda d: POD(d)["initContainers"][0].update(volumeMounts=[])),
    ("only_the_folders_that_it_shares",
     lambda d: POD(d)["initContainers"][0]["securityContext"].update(runAsGroup=0)),
    ("one_daemon_a_node",
     lambda d: daemon_set(d)["updateStrategy"]["rollingUpdate"].update(maxSurge=1)),
    ("critical", lambda d: POD(d).pop("priorityClassName")),
    ("critical", lambda d: POD(d).pop("tolerations")),
    ("no_gpu_is_claimed", lambda d: DAEMON(d)["resources"]["limits"].update({"nvidia.com/gpu": 1})),
    ("gpus_are_seen", lambda d: POD(d).pop("runtimeClassName")),
    ("gpus_are_seen", lambda d: DAEMON(d).pop("env")),
    ("probed_over_the_socket", lambda d: DAEMON(d).pop("startupProbe")),
    ("probed_over_the_socket",
     lambda d: DAEMON(d).update(livenessProbe={"grpc": {"port": 7400, "service": "liveness"}})),
    ("probed_over_the_socket",
     lambda d: DAEMON(d)["livenessProbe"]["exec"]["command"].__setitem__(-1, "readiness")),
    ("probed_over_the_socket",
     lambda d: DAEMON(d)["readinessProbe"]["exec"]["command"].insert(1, "--socket=/tmp/k.sock")),
    ("probed_over_the_socket", lambda d: DAEMON(d)["readinessProbe"].update(timeoutSeconds=2)),
    ("probed_over_the_socket", lambda d: set_config(d, allowed_uids=[1000])),
    ("tcp_asks_who_comes", lambda d: set_config(d, tcp=["0.0.0.0:7400"])),
    ("tcp_asks_who_comes", lambda d: set_config(d, allow_insecure_tcp=True)),
    ("tcp_asks_who_comes", lambda d: set_config(d, tls_key="/etc/tls/tls.key")),
    ("tcp_asks_who_comes",
     lambda d: DAEMON(d)["ports"].append({"name": "grpc", "containerPort": 7400})),
    ("tcp_asks_who_comes", lambda d: set_config(d, metrics_address="")),
    ("workers_are_no_operators", lambda d: set_config(d, operator_uids=[0])),
    ("the_network_is_closed",
     lambda d: policy.of_kind(d, "NetworkPolicy")[0]["spec"]["ingress"].append({})),
    ("the_network_is_closed", lambda d: d.remove(policy.of_kind(d, "NetworkPolicy")[0])),
    ("memory_is_the_pools_and_more", lambda d: set_config(d, pool_bytes="65GiB")),
    ("memory_is_the_pools_and_more", lambda d: set_config(d, huge_pages="require")),
    ("memory_is_the_pools_and_more", lambda d: DAEMON(d)["resources"]["limits"].update(cpu="1")),
    ("it_drains_before_it_is_killed", lambda d: set_config(d, shutdown_grace="1m")),
    ("the_sockets_are_the_groups", lambda d: set_config(d, socket="/tmp/kvtierd.sock")),
    ("the_sockets_are_the_groups", lambda d: set_config(d, socket_mode=432)),
    ("the_sockets_are_the_groups", lambda d: DAEMON(d).update(volumeMounts=[])),
]


TLS_FAULTS = [
    ("tcp_asks_who_comes", lambda d: DAEMON(d)["env"].remove(
        {"name": "KVTIERD_TLS_CLIENT_CA", "value": "/etc/kvtierd-tls/ca.crt"})),
    ("tcp_asks_who_comes", lambda d: DAEMON(d)["volumeMounts"].remove(
        {"name": "tls", "mountPath": "/etc/kvtierd-tls", "readOnly": True})),
    ("tcp_asks_who_comes", lambda d: DAEMON(d)["ports"].remove(
        {"name": "grpc", "containerPort": 7400})),
    ("the_network_is_closed", lambda d: policy.of_kind(d, "NetworkPolicy")[0]["spec"]["ingress"][1]
     .pop("from")),
]


class Policies(unittest.TestCase):
    """Each fires on a fault of its kind, so that those above say something."""

    def test_q01_each_fault_is_found(self):
        sound = rendered("gpu")
        for number, (name, spoil) in enumerate(FAULTS):
            with self.subTest(fault=number, rule=name):
                documents = copy.deepcopy(sound)
                spoil(documents)
                self.assertIn(name, [found for found, _ in policy.faults(documents)])

    def test_each_rule_has_a_fault(self):
        self.assertEqual({each.__name__ for each in policy.RULES}, {name for name, _ in FAULTS})


class Worker(unittest.TestCase):
    """The example of a worker."""

    def setUp(self):
        with open("deploy/kubernetes/examples/worker.yaml") as file:
            self.worker = yaml.safe_load(file)
        self.pod = self.worker["spec"]["template"]["spec"]

    def test_kubernetes_takes_it(self):
        self.assertEqual(deploy_tools.Schemas().faults(self.worker), [])

    def test_it_reaches_the_daemons_socket(self):
        daemon = rendered("gpu")
        folder = next(v["hostPath"]["path"] for v in self.pod["volumes"])
        self.assertEqual(folder, policy.SOCKET_FOLDER)
        mount = self.pod["containers"][0]["volumeMounts"][0]["mountPath"]
        self.assertIn(policy.config_of(daemon)["socket"],
                      self.pod["containers"][0]["args"][0].split("="))
        self.assertEqual(mount, folder)
        self.assertIn(policy.GROUP, self.pod["securityContext"]["supplementalGroups"])


if __name__ == "__main__":
    unittest.main()
