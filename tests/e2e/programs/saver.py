"""saver.py FOLDER SECONDS [HELPERS]: waits; at TERM it takes so long to write FOLDER/RANK and to tell
hvdlaunch of it as a checkpoint, and ends with 0. With helpers it has so many children that end at
TERM, without which it cannot save. Rank 1 ends with 1 at TERM when EARLY is set."""

import os
import signal
import socket
import subprocess
import sys
import time

folder, seconds = sys.argv[1], float(sys.argv[2])
rank = os.environ["HVD_RANK"]
helpers = [subprocess.Popen(["sleep", "1000"]) for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 0)]


def tell(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect(os.environ["NOTIFY_SOCKET"])
        s.send(f"X_HVD_STEP=7\nX_HVD_CHECKPOINT={path}".encode())


def save(*_):
    if rank == "1" and os.environ.get("EARLY"):
        os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)
    if any(h.poll() is not None for h in helpers):
        print("a helper is gone", flush=True)
        os._exit(9)
    path = os.path.join(folder, rank)
    with open(path, "w"):
        pass
    if not os.environ.get("SILENT"):
        tell(path)
    os._exit(0)


signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
while True:
    time.sleep(1000)
