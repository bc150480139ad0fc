"""counter.py LINES PAUSE [CODE]: writes so many numbered lines, so many seconds apart, and waits for the
file $GO if that is set. Rank 0 ends a little behind the others, with the code."""

import os
import sys
import time

lines, pause = int(sys.argv[1]), float(sys.argv[2])
rank, go = os.environ["HVD_RANK"], os.environ.get("GO")
for i in range(lines):
    sys.stdout.write(f"{rank}:{i} of {os.getpid()}\n")
    if pause:
        sys.stdout.flush()
        time.sleep(pause)
sys.stdout.flush()
while go and not os.path.exists(go):
    time.sleep(0.01)
if rank == "0" and len(sys.argv) > 3:
    time.sleep(1)
    sys.exit(int(sys.argv[3]))
