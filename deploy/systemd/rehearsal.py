"""What systemd_test.py has done under a real service manager; started by manager.sh.

    rehearsal.py SOCKET

Prints JSON: what the manager said after each step.
"""
import json
import os
import signal
import subprocess
import sys
import time

PROPERTIES = ["ActiveState", "StatusText", "MainPID", "NRestarts", "Result", "ExecMainStatus"]
PATIENCE_SECONDS = 50  # only a failure waits so long
DROP_IN = os.environ["XDG_RUNTIME_DIR"] + "/systemd/user/kvtierd.service.d"


def systemctl(*words):
    return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True,
                          check=False)


def show():
    text = systemctl("show", "kvtierd", "-p", ",".join(PROPERTIES)).stdout
    return dict(line.split("=", 1) for line in text.splitlines())


def wait_for(condition):
    """The state for which the condition holds, or the last one."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        state = show()
        if condition(state) or time.monotonic() > end:
            return state
        time.sleep(0.05)


def restarted(before):
    return lambda s: (s["ActiveState"] == "active" and s["StatusText"] == "serving"
                      and s["MainPID"] != before["MainPID"])


def folder_of(socket):
    """Which folder it is, whatever its name; None: there is none."""
    folder = os.path.dirname(socket)
    return os.stat(folder).st_ino if os.path.exists(folder) else None


def set_start(line):
    """Another ExecStart from now on."""
    os.makedirs(DROP_IN, exist_ok=True)
    with open(DROP_IN + "/start.conf", "w") as file:
        file.write("[Service]\nExecStart=\nExecStart=%s\n" % line)
    systemctl("daemon-reload")


def main():
    steps = {}
    systemctl("start", "kvtierd")  # returns when the daemon has said that it is ready
    steps["started"] = show()
    with open("/proc/%s/status" % steps["started"]["MainPID"]) as file:
        steps["process"] = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    steps["socket_is_there"] = os.path.exists(sys.argv[1])
    steps["folder_started"] = folder_of(sys.argv[1])
    steps["reload_status"] = systemctl("reload", "kvtierd").returncode
    steps["reloaded"] = show()

    before = show()
    os.kill(int(before["MainPID"]), signal.SIGKILL)
    steps["killed"] = wait_for(restarted(before))
    steps["folder_killed"] = folder_of(sys.argv[1])
    before = show()
    os.kill(int(before["MainPID"]), signal.SIGSTOP)  # silent: the watchdog's case
    steps["hung"] = wait_for(restarted(before))

    systemctl("stop", "kvtierd")
    steps["stopped"] = show()
    steps["socket_is_gone"] = not os.path.exists(sys.argv[1])
    steps["folder_stopped"] = folder_of(sys.argv[1])

    binary = subprocess.run(["systemctl", "--user", "show", "kvtierd", "-p", "ExecStart", "--value"],
                            capture_output=True, text=True, check=True).stdout
    binary = binary.partition("path=")[2].partition(" ;")[0]
    set_start(binary + " --no_such_flag")
    systemctl("start", "kvtierd")
    steps["wrong"] = wait_for(lambda s: s["ActiveState"] == "failed")

    systemctl("reset-failed", "kvtierd")  # and the count of starts with it
    set_start(binary + " --backend=cuda")
    systemctl("start", "kvtierd")
    steps["no_device"] = wait_for(lambda s: s["ExecMainStatus"] == "4" and int(s["NRestarts"]) > 0)
    steps["was_tried_again"] = int(steps["no_device"]["NRestarts"]) > 0
    systemctl("stop", "kvtierd")
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
