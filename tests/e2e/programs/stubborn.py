"""stubborn.py FOLDER: ignores TERM, starts a child in a session of its own whose parent ends at
once, which ignores TERM too, and waits. Every process writes its pid as a file into FOLDER."""

import os
import signal
import sys
import time


def settle(folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with open(os.path.join(folder, str(os.getpid())), "w"):
        pass


folder = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        settle(folder)
        time.sleep(1000)
    os._exit(0)
settle(folder)
print("settled", flush=True)
time.sleep(1000)
