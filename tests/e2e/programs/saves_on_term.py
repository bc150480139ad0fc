"""Waits; at TERM it writes "saved" to standard output and ends with 0."""

import signal
import sys
import time


def save(*_):
    print("saved", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
time.sleep(1000)
