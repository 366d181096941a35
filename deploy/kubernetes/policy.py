"""What the daemon's pods may and must be, whoever rendered them. A rule yields its faults."""
import re

import yaml

SOCKET_FOLDER = "/run/kvtierd"
GROUP = 65532
POOL_OVERHEAD_BYTES = 2 << 30
KEPT_OVERHEAD_BYTES = 1 << 30
GRACE_MARGIN_SECONDS = 10

UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "KiB": 1 << 10,
         "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Settings that are lists; in a variable, their items between commas.
LISTS = ("allowed_uids", "operator_uids", "tcp", "tls_operators", "tls_viewers", "viewer_uids")
RULES = []


def rule(function):
    RULES.append(function)
    return function


def of_kind(documents, kind):
    return [d for d in documents if d["kind"] == kind]


def quantity_bytes(text):
    """Bytes of a Kubernetes quantity, or of a size in a configuration."""
    number, unit = re.fullmatch(r"(\d+)\s*(\w*)", str(text)).groups()
    return int(number) * UNITS[unit]


def seconds(text):
    """Of a duration in a configuration, in whole seconds or minutes."""
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def pod_of(documents):
    """The pod of the daemon set."""
    return of_kind(documents, "DaemonSet")[0]["spec"]["template"]["spec"]


def daemon_of(documents):
    """The container that runs the daemon."""
    return next(c for c in pod_of(documents)["containers"] if c["name"] == "kvtierd")


def variables_of(documents):
    """The daemon's settings among its variables, as texts, by name of variable."""
    return {each["name"]: each["value"] for each in daemon_of(documents).get("env", [])
            if each["name"].startswith("KVTIERD_")}


def config_of(documents):
    """What holds: the file that the pod mounts, and over it the variables, as a dict."""
    volume = next(v for v in pod_of(documents)["volumes"] if v["name"] == "config")
    name = volume["configMap"]["name"]
    config = next(c for c in of_kind(documents, "ConfigMap") if c["metadata"]["name"] == name)
    values = yaml.safe_load(config["data"]["kvtierd.yaml"])
    for variable, text in variables_of(documents).items():
        name = variable[len("KVTIERD_"):].lower()
        values[name] = text.split(",") if name in LISTS else text
    return values


def faults(documents):
    """[(name of the rule, what is wrong)]."""
    return [(each.__name__, fault) for each in RULES for fault in each(documents)]


@rule
def no_privilege(documents):
    """Nothing of the host but the socket's folder; no capability; a root file system to read."""
    pod = pod_of(documents)
    for field in ("hostIPC", "hostPID", "hostNetwork", "shareProcessNamespace"):
        if pod.get(field):
            yield field + " is on"
    if pod.get("securityContext", {}).get("seccompProfile", {}).get("type") not in (
            "RuntimeDefault", "Localhost"):
        yield "no seccomp profile"
    if pod.get("automountServiceAccountToken") is not False:
        yield "it has a token of the API server"
    for container in pod.get("initContainers", []) + pod["containers"]:
        context = container.get("securityContext", {})
        if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
            yield container["name"] + " is, or may become, privileged"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield container["name"] + " has capabilities"
        if context.get("readOnlyRootFilesystem") is not True:
            yield container["name"] + " may write to its root file system"


@rule
def not_root(documents):
    pod = pod_of(documents)
    context = {**pod.get("securityContext", {}), **daemon_of(documents).get("securityContext", {})}
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield "the daemon may be root"
    if context.get("runAsGroup") != GROUP:
        yield "the daemon's group is not the socket's"


@rule
def only_the_folders_that_it_shares(documents):
    """That of the socket, and that of a pool that is kept."""
    pool = config_of(documents).get("pool_path", "").rpartition("/")[0]
    folders = [SOCKET_FOLDER] + ([pool] if pool else [])
    paths = [v["hostPath"] for v in pod_of(documents)["volumes"] if "hostPath" in v]
    wanted = [{"path": folder, "type": "DirectoryOrCreate"} for folder in folders]
    if sorted(paths, key=str) != sorted(wanted, key=str):
        yield "hostPath is %s" % paths
    first = pod_of(documents)["initContainers"][0]
    if first["command"] != ["/usr/bin/install", "-d", "-g", str(GROUP), "-m", "1770", *folders]:
        yield "nobody gives the folders to the group, with all that is in them its owner's"
    context = first.get("securityContext", {})
    if (context.get("runAsUser"), context.get("runAsGroup")) != (0, GROUP):
        yield "without a capability the folder is root's to give, and to a group of root's alone"
    for container in (first, daemon_of(documents)):
        mounted = {m["mountPath"] for m in container.get("volumeMounts", [])}
        if not mounted >= set(folders):
            yield "%s does not have its folders" % container["name"]


@rule
def one_daemon_a_node(documents):
    update = of_kind(documents, "DaemonSet")[0]["spec"]["updateStrategy"]
    if update.get("type") != "RollingUpdate" or update["rollingUpdate"].get("maxSurge") != 0:
        yield "two daemons of a node would fight for the socket"


@rule
def critical(documents):
    if pod_of(documents).get("priorityClassName") != "system-node-critical":
        yield "it may be evicted for others"
    if not any(t.get("operator") == "Exists" for t in pod_of(documents).get("tolerations", [])):
        yield "it stays away from tainted nodes"


@rule
def no_gpu_is_claimed(documents):
    for container in pod_of(documents)["containers"]:
        for kind in ("requests", "limits"):
            if any("gpu" in name for name in container["resources"].get(kind, {})):
                yield "a GPU that it claims no worker gets"


@rule
def gpus_are_seen(documents):
    if config_of(documents)["backend"] != "cuda":
        return
    if not pod_of(documents).get("runtimeClassName"):
        yield "no runtime class brings the driver in"
    environment = {e["name"]: e.get("value") for e in daemon_of(documents).get("env", [])}
    if environment.get("NVIDIA_VISIBLE_DEVICES") != "all":
        yield "it does not see the GPUs"
    if "compute" not in environment.get("NVIDIA_DRIVER_CAPABILITIES", ""):
        yield "it gets no CUDA driver"


@rule
def probed_over_the_socket(documents):
    """From inside, by kvtierctl: kubelet's own gRPC probes know no TLS."""
    daemon, config = daemon_of(documents), config_of(documents)
    for probe, what in (("startupProbe", "liveness"), ("livenessProbe", "liveness"),
                        ("readinessProbe", "readiness")):
        asked = daemon.get(probe, {})
        command = asked.get("exec", {}).get("command", [])
        if command[:1] != ["/usr/bin/kvtierctl"] or command[-2:] != ["health", what]:
            yield "%s does not ask for %s" % (probe, what)
            continue
        flags = dict(flag.split("=", 1) for flag in command[1:-2])
        if flags.get("--socket", SOCKET_FOLDER + "/kvtierd.sock") != config["socket"]:
            yield "%s asks at another socket" % probe
        if not 0 < seconds(flags.get("--timeout", "60s")) < asked.get("timeoutSeconds", 1):
            yield "%s is cut off before kvtierctl can say why" % probe
    if not config.get("allowed_uids"):
        return
    pod = {**pod_of(documents).get("securityContext", {}), **daemon.get("securityContext", {})}
    if pod.get("runAsUser") not in config["allowed_uids"]:
        yield "probes, which run as the daemon's user, are not let in"


@rule
def tcp_asks_who_comes(documents):
    daemon, config = daemon_of(documents), config_of(documents)
    named = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    ports = [int(address.rpartition(":")[2]) for address in config.get("tcp", [])]
    files = [config.get("tls_" + name, "") for name in ("certificate", "key", "client_ca")]
    if ports and not all(files):
        yield "TCP without mutual TLS"
    if config.get("allow_insecure_tcp"):
        yield "TCP without TLS is let through"
    mounts = {m["mountPath"] for m in daemon["volumeMounts"]}
    if any(name and name.rpartition("/")[0] not in mounts for name in files):
        yield "the certificates are not mounted"
    if ([named["grpc"]] if "grpc" in named else []) != ports:
        yield "the port that is named grpc is another"
    if str(named.get("metrics")) != config.get("metrics_address", "").rpartition(":")[2]:
        yield "the port that is named metrics is another"


@rule
def workers_are_no_operators(documents):
    """Many run as root."""
    if config_of(documents).get("operator_uids", [0]) != []:
        yield "root in a worker's pod may evict others"


@rule
def the_network_is_closed(documents):
    policies = of_kind(documents, "NetworkPolicy")
    labels = of_kind(documents, "DaemonSet")[0]["spec"]["template"]["metadata"]["labels"]
    if not any(labels.items() >= p["spec"]["podSelector"]["matchLabels"].items()
               and sorted(p["spec"]["policyTypes"]) == ["Egress", "Ingress"]
               and not p["spec"].get("egress")
               and all(i.get("from") and i.get("ports") for i in p["spec"]["ingress"])
               for p in policies):
        yield "no policy closes it, and /metrics asks nobody who they are"


@rule
def memory_is_the_pools_and_more(documents):
    """Requests follow the pool; what is a huge page is not counted twice."""
    config, resources = config_of(documents), daemon_of(documents)["resources"]
    pool = quantity_bytes(config["pool_bytes"])
    huge = pool if config["huge_pages"] == "require" else 0
    # What is written of each cache of a kept pool lies beside the rows.
    kept = KEPT_OVERHEAD_BYTES if huge and config.get("pool_path") else 0
    for kind in ("requests", "limits"):
        memory = quantity_bytes(resources[kind]["memory"])
        if memory != pool - huge + POOL_OVERHEAD_BYTES:
            yield "%s.memory is %d for a pool of %d" % (kind, memory, pool)
        if quantity_bytes(resources[kind].get("hugepages-2Mi", "0")) != huge + kept:
            yield "%s.hugepages-2Mi is not the pool" % kind
    if "cpu" not in resources["requests"] or "cpu" in resources["limits"]:
        yield "CPU is to be requested, and not limited: a throttled daemon stalls its node"


@rule
def it_drains_before_it_is_killed(documents):
    grace = seconds(config_of(documents)["shutdown_grace"])
    if pod_of(documents)["terminationGracePeriodSeconds"] < grace + GRACE_MARGIN_SECONDS:
        yield "it is killed while it drains"


@rule
def the_sockets_are_the_groups(documents):
    config = config_of(documents)
    if config["socket"].rpartition("/")[0] != SOCKET_FOLDER:
        yield "the socket lies elsewhere"
    if config["socket_mode"] != "0660":
        yield "socket_mode must be the text 0660"
    mounts = {m["mountPath"] for m in daemon_of(documents)["volumeMounts"]}
    if not mounts >= {SOCKET_FOLDER, "/etc/kvtierd"}:
        yield "the socket's folder or the configuration is not mounted"
