"""hostile_agent.py MODE WORDS..: stands in for the agent that WORDS would start, and lies as MODE says."""

import os
import re
import struct
import sys

MODE = sys.argv[1]
BUILD = re.search(r"B=([0-9a-f]+)", " ".join(sys.argv[2:]))[1]
STARTED, ENDED, STOPPED, OUTPUT, OUTPUT_END, NOTICE = 4, 5, 6, 7, 8, 19
START_ATTEMPT, STOP_ATTEMPT, GOODBYE = 5, 6, 19
NOT_REFUSED = bytes(5)  # the end of its hello


def text(value):
    return struct.pack("<I", len(value)) + value


def send(kind, body):
    sys.stdout.buffer.write(struct.pack("<I", 1 + len(body)) + bytes([kind]) + body)
    sys.stdout.buffer.flush()


def read_frame():
    head = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(*struct.unpack("<I", head)) if len(head) == 4 else b""


def ended(rank):
    return struct.pack("<IIii", 1, rank, 0, 0) + b"\0" + text(b"") + b"\0" + text(b"") + struct.pack("<I", 0)


def lie():
    """Rank 1 is this host's; rank 0 another's."""
    send(NOTICE, text(b"\x1b[2J\x1b]0;owned\x07 notice of evil"))
    for attempt, rank in ((1, 0), (9, 1), (1, 4000000000)):
        send(OUTPUT, struct.pack("<IIB", attempt, rank, 0) + text(b"stolen\n"))
        for stream in (0, 1):
            send(OUTPUT_END, struct.pack("<IIB", attempt, rank, stream))
    send(ENDED, ended(0))
    send(ENDED, ended(4000000000))
    send(OUTPUT, struct.pack("<IIB", 1, 1, 0) + text(b"my own\n"))
    send(ENDED, ended(1))
    for stream in (0, 1):
        send(OUTPUT_END, struct.pack("<IIB", 1, 1, stream))


def main():
    print(f"welcome\nhvdlaunch-agent-ready {BUILD}", flush=True)
    protocol = read_frame()[1:5]
    if MODE == "early":
        send(OUTPUT, struct.pack("<IIB", 1, 1, 0) + text(b"stolen\n"))
    with open("/proc/sys/kernel/random/boot_id", "rb") as f:
        boot = f.read().strip()
    send(0, protocol + text(b"../../etc/\x1b[31m") + text(boot)
         + struct.pack("<QIII", os.stat("/proc/self/ns/net").st_ino, 1, 0, 4711) + NOT_REFUSED)
    if MODE == "twice":
        send(0, protocol + text(b"") + text(b"") + struct.pack("<QIII", 0, 1, 0, 0) + NOT_REFUSED)
    if MODE == "long":
        sys.stdout.buffer.write(b"\xff\xff\xff\xff" + bytes(100))
        sys.stdout.buffer.flush()
    if MODE == "none":
        send(255, b"")
    while frame := read_frame():
        if frame[0] == START_ATTEMPT:
            lie()
        elif frame[0] == STOP_ATTEMPT:
            send(STOPPED, frame[1:5] + struct.pack("<I", 0))
        elif frame[0] == GOODBYE:
            return


main()
