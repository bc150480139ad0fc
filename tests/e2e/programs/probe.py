"""Writes what this worker was given, byte for byte, to $PROBE_DIR/RANK.json."""

import json
import os
import sys


def text(raw):
    return raw.decode("latin-1")


with open("/proc/self/cmdline", "rb") as f:
    argv = f.read().split(b"\0")[:-1]
with open("/proc/self/status") as f:
    status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
seen = {
    "argv": [text(a) for a in argv[2:]],  # after python3 and this file
    "environment": {text(n): text(v) for n, v in os.environb.items()},
    "cwd": os.getcwd(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
    "blocked": int(status["SigBlk"], 16),
    "processors": sorted(os.sched_getaffinity(0)),
    "session_leader": os.getsid(0) == os.getpid(),
}
path = os.path.join(os.environ["PROBE_DIR"], os.environ["HVD_RANK"] + ".json")
with open(path, "w") as f:
    json.dump(seen, f)
sys.stdout.write("probed\n")
