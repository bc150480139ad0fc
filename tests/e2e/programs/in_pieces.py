"""in_pieces.py LINES LENGTH PIECE: writes numbered lines of LENGTH characters, PIECE bytes a write."""

import os
import sys

lines, length, piece = map(int, sys.argv[1:])
rank = os.environ["HVD_RANK"]
for number in range(lines):
    line = f"{rank} {number} ".ljust(length, "x").encode() + b"\n"
    for at in range(0, len(line), piece):
        os.write(1, line[at : at + piece])
