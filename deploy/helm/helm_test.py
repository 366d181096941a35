"""The chart, rendered by Helm's own library: the same objects as the kustomizations, the schemas of
Kubernetes, our policies over many values, and values that must be refused."""
import copy
import json
import os
import unittest

import yaml

from deploy import deploy_tools
from deploy.kubernetes import policy

CHART = os.path.join(deploy_tools.ROOT, "deploy/helm/kvtierd")
# The values with which the chart is the overlay.
OVERLAYS = {
    "gpu": {},
    "cpu": {"backend": "cpu", "pool": {"gibibytes": 8}, "resources": {"cpu": "1"}},
    "hugepages": {"pool": {"hugePages": "require"}},
    "kept": {"pool": {"hugePages": "require", "keepIn": "/dev/hugepages/kvtierd"}},
}
TLS = {"secretName": "kvtierd-tls", "viewers": ["watch.example"],
       "operators": ["ops.example", "spiffe://example/ops"]}
FOREIGN_KINDS = {"PodMonitor", "PrometheusRule"}


def render(values=None, name="kvtierd"):
    """The objects of a release."""
    with deploy_tools.helm().Chart.load(CHART) as chart:
        files = chart.render(values or {}, name=name, namespace="kvtierd")
    return [document for path, text in files.items() if path.endswith(".yaml")
            for document in deploy_tools.load_all(text)]


def plain(documents):
    """{(kind, role): content} without what is named after the release, its labels, or its tool."""
    found = {}
    for document in documents:
        document = copy.deepcopy(document)
        kind, metadata = document["kind"], document.pop("metadata")
        role = metadata["name"]
        if kind == "ConfigMap" and "kvtierd.yaml" in document["data"]:
            role = "config"
            document = {"config": yaml.safe_load(document["data"]["kvtierd.yaml"])}
        found[kind, role] = _without_instance(document)
    daemon = found["DaemonSet", "kvtierd"]["spec"]["template"]
    daemon["metadata"].pop("annotations")
    next(v for v in daemon["spec"]["volumes"] if v["name"] == "config").pop("configMap")
    # Lists whose order says nothing.
    daemon["spec"]["volumes"].sort(key=_name)
    for container in daemon["spec"]["containers"] + daemon["spec"]["initContainers"]:
        container["volumeMounts"].sort(key=_name)
    return found


def _name(item):
    return item["name"]


def _without_instance(value):
    if isinstance(value, dict):
        return {k: _without_instance(v) for k, v in value.items()
                if k not in ("app.kubernetes.io/instance", "app.kubernetes.io/part-of")}
    if isinstance(value, list):
        return [_without_instance(item) for item in value]
    return value


class Rendered(unittest.TestCase):
    maxDiff = None

    def test_it_is_the_kustomization(self):
        for overlay, values in OVERLAYS.items():
            with self.subTest(overlay=overlay):
                chart = plain(render(values))
                other = plain(deploy_tools.kustomize("deploy/kubernetes/overlays/" + overlay))
                other.pop(("Namespace", "kvtierd"))  # helm install --create-namespace
                self.assertEqual(sorted(chart), sorted(other))
                for key, document in chart.items():
                    self.assertEqual(document, other[key], key)

    def test_kubernetes_takes_it_and_our_policies_hold(self):
        schemas = deploy_tools.Schemas()
        for values in (*OVERLAYS.values(),
                       {"pool": {"gibibytes": 1536, "hugePages": "require"},
                        "resources": {"memoryOverheadGibibytes": 2}},
                       {"pool": {"keepIn": "/dev/shm/kvtierd"}},
                       {"shutdownGraceSeconds": 600, "ports": {"grpc": 7500, "metrics": 9500}},
                       {"tls": TLS}, {"tls": TLS, "ports": {"grpc": 7500}},
                       {"pool": {"numaNode": 1},
                        "seccompProfile": {"type": "Localhost", "localhostProfile": "kvtierd.json"}},
                       {"config": {"log_level": "debug", "sessions_max": 200,
                                   "allowed_uids": [0, 1000, 65532]},
                        "image": {"digest": "sha256:" + "0" * 64},
                        "imagePullSecrets": [{"name": "pull"}],
                        "podAnnotations": {"a": "b"}, "nodeSelector": {"pool": "decode"}}):
            with self.subTest(values=values):
                documents = render(values)
                for document in documents:
                    if document["kind"] not in FOREIGN_KINDS:
                        self.assertEqual(schemas.faults(document), [], document["kind"])
                self.assertEqual(policy.faults(documents), [])

    def test_further_keys_of_the_configuration(self):
        config = policy.config_of(render({"config": {
            "log_format": "text", "sessions_max": 200, "allowed_uids": [0, 1000]}}))
        self.assertEqual((config["log_format"], config["sessions_max"], config["allowed_uids"]),
                         ("text", 200, [0, 1000]))

    def test_tcp_is_there_with_a_secret_alone(self):
        self.assertNotIn("tcp", policy.config_of(render()))
        documents = render({"tls": TLS})
        config = policy.config_of(documents)
        self.assertEqual((config["tcp"], config["tls_operators"]),
                         (["0.0.0.0:7400"], TLS["operators"]))
        volume = next(v for v in policy.pod_of(documents)["volumes"] if v["name"] == "tls")
        self.assertEqual(volume["secret"], {"secretName": "kvtierd-tls", "defaultMode": 0o440})

    def test_tls_is_the_kustomizations_component(self):
        chart = render({"tls": {**TLS, "viewers": ["watch.example.org"],
                                "operators": ["spiffe://example.org/ops"]}})
        other = deploy_tools.kustomize("deploy/kubernetes/examples/tls")
        self.assertEqual(policy.config_of(chart), policy.config_of(other))
        for part in (lambda d: policy.daemon_of(d)["ports"],
                     lambda d: policy.daemon_of(d)["volumeMounts"],
                     lambda d: [v for v in policy.pod_of(d)["volumes"] if v["name"] == "tls"],
                     lambda d: policy.pod_of(d)["securityContext"],
                     lambda d: policy.of_kind(d, "NetworkPolicy")[0]["spec"]["ingress"]):
            sides = [_without_instance(part(documents)) for documents in (chart, other)]
            for side in sides:
                if isinstance(side, list):
                    side.sort(key=lambda item: json.dumps(item, sort_keys=True))
            self.assertEqual(*sides)

    def test_another_configuration_rolls_the_pods(self):
        def annotations(values):
            daemon = policy.of_kind(render(values), "DaemonSet")[0]
            return daemon["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(annotations({}), annotations({}))
        self.assertNotEqual(annotations({}), annotations({"config": {"log_level": "debug"}}))

    def test_what_is_off_is_not_there(self):
        kinds = [d["kind"] for d in render({
            "monitoring": {"podMonitor": False, "prometheusRule": False, "dashboard": False},
            "networkPolicy": {"enabled": False}, "criticalPodsQuota": False})]
        self.assertEqual(sorted(kinds), ["ConfigMap", "DaemonSet", "ServiceAccount"])

    def test_two_releases_do_not_meet(self):
        first, second = render(name="a"), render(name="b")
        names = [{(d["kind"], d["metadata"]["name"]) for d in each} for each in (first, second)]
        self.assertEqual(names[0] & names[1], set())
        selectors = [policy.of_kind(each, "DaemonSet")[0]["spec"]["selector"]
                     for each in (first, second)]
        self.assertNotEqual(*selectors)

    def test_the_dashboard_is_whole(self):
        dashboard = next(d for d in policy.of_kind(render(), "ConfigMap")
                         if "kvtierd.json" in d["data"])
        with open(os.path.join(CHART, "files/dashboard.json")) as file:
            self.assertEqual(json.loads(dashboard["data"]["kvtierd.json"]), json.load(file))


class Values(unittest.TestCase):
    def test_those_that_make_no_sense_are_refused(self):
        deploy_tools.helm()  # without it nothing is rendered, and nothing refused
        for values in ({"pool": {"gibibyte": 64}}, {"pool": {"gibibytes": 0}},
                       {"pool": {"gibibytes": "64"}}, {"backend": "gpu"}, {"nonsense": 1},
                       {"config": {"pool_bytes": "1GiB"}}, {"config": {"allow_insecure_tcp": True}},
                       {"tls": {"secret": "x"}},
                       {"pool": {"keepIn": "relative"}}, {"config": {"Log-Level": "debug"}},
                       {"user": 0}, {"image": {"digest": "latest"}}, {"socketFolder": "relative"},
                       {"pool": {"numaNode": 0}},  # mbind is not in RuntimeDefault
                       {"seccompProfile": {"type": "Unconfined"}}):
            with self.subTest(values=values):
                with self.assertRaises(Exception) as caught:
                    render(values)
                self.assertIn("schema", str(caught.exception))

    def test_the_schema_knows_each_value(self):
        def compare(values, schema, where):
            for key, value in values.items():
                self.assertIn(key, schema["properties"], where)
                if isinstance(value, dict) and "properties" in schema["properties"][key]:
                    compare(value, schema["properties"][key], where + "." + key)
        with open(os.path.join(CHART, "values.yaml")) as file:
            values = yaml.safe_load(file)
        with open(os.path.join(CHART, "values.schema.json")) as file:
            compare(values, json.load(file), "values")

    def test_lint(self):
        report = deploy_tools.helm().lint(CHART)
        self.assertEqual(report["errors"], [])
        self.assertEqual([m for m in report["messages"] if "icon" not in m["error"]], [])


if __name__ == "__main__":
    unittest.main()
