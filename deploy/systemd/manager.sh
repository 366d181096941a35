#!/bin/sh
# Runs a command under a real systemd, as far as a machine has one that was not booted with it: the
# manager of a user, in namespaces of its own, with /run to itself. FOLDER has kvtierd.service and what
# that starts; both see it as /run/under_test.
#
#   unshare --mount --pid --fork --kill-child --mount-proc manager.sh FOLDER COMMAND...
#
# 77: there is no such thing here.
set -e
folder="$1"
shift
mount --make-rprivate / && mount -t tmpfs none /run || exit 77
export XDG_RUNTIME_DIR=/run/user/0 HOME=/run/home
# Its presence says that systemd is in charge.
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR/systemd/user" "$HOME"
chmod 700 "$XDG_RUNTIME_DIR"
cp -r "$folder" /run/under_test
cp /run/under_test/kvtierd.service "$XDG_RUNTIME_DIR/systemd/user/"
/lib/systemd/systemd --user --unit=basic.target >/dev/null 2>&1 &
for _ in $(seq 60); do
  systemctl --user is-active --quiet basic.target 2>/dev/null && break
  kill -0 $! 2>/dev/null || exit 77
  sleep 0.5
done
systemctl --user is-active --quiet basic.target || exit 77
"$@"
