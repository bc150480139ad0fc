"""chatter.py LINES: numbered lines of many lengths, some written in halves, on both streams."""

import os
import sys
import time

for number in range(int(sys.argv[1])):
    stream = 1 if number % 2 == 0 else 2
    line = b"line %d %s\n" % (number, b"x" * (number * 37 % 500))
    half = len(line) // 2 if number % 50 == 0 else 0
    os.write(stream, line[:half])
    if half:
        time.sleep(0.001)
    os.write(stream, line[half:])
