#!/usr/bin/python3
"""Who may include whom: the rooms of the house, and the one door per library. And that no name is
two types: in one program, the one's constructor would be run on the other's memory.

A room is a folder; a file belongs to the innermost room that holds it. Prints every include that
breaks a rule and every such name, and ends with 1 if there was one.
"""

import os
import re
import sys

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

# Room: the rooms it may include beside itself.
ALLOWED = {
    "cli": {"launcher", "supervisor", "supervisor/agent", "base"},
    "launcher": {"supervisor", "base"},
    "supervisor": {"base"},
    "supervisor/agent": {"base"},
    "comm": {"base"},
    "base": set(),
    "examples": {"comm"},
}

# What the launcher's and the workers' sides of base may not mix: comm takes these files only.
COMM_FROM_BASE = {"error", "time", "fd", "codec", "frame", "message", "poller", "checkpoint_format"}

# Library header (a pattern): the files, without ending, that are its door.
DOORS = {
    r"CLI/": r"cli/options.*",
    r"toml\+\+/|toml\.hpp": r"launcher/(hosts|toml_).*|base/run_file.*",
    r"libssh/": r"launcher/ssh_.*|launcher/gss_stubs",
    r"event2/": r"base/http.*",
    r"pmix": r"supervisor/agent/pmix.*",
    r"nvml": r"supervisor/agent/nvml.*",
    r"nccl|cuda": r"comm/nccl_.*",
    r"mpi\.h": r"comm/mpi_.*",
    r"xxhash": r"base/checkpoint_format.*",
}

# The pure core: no I/O and no clock.
PURE_ROOM = "supervisor"
IMPURE = re.compile(r"sys/|unistd|fcntl|poll|signal|netdb|arpa/|netinet/|fstream|iostream|cstdio|"
                    r"filesystem|thread|mutex|pthread|base/(fd|poller)\.h")

TYPE = re.compile(r"^(?:class|struct|enum class|union) (\w+)[^;{]*\{", re.M)

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)


def room_of(path):
    rooms = [r for r in ALLOWED if path.startswith(r + "/")]
    return max(rooms, key=len, default=None)


def matches(table, name):
    return [door for header, door in table.items() if re.match(header, name)]


def faults_of(path, text):
    room = room_of(path)
    stem = os.path.splitext(path)[0]
    for mark, name in INCLUDE.findall(text):
        target = room_of(name)
        if mark == '"' and target is not None and target != room and target not in ALLOWED[room]:
            yield f"{path}: {room} may not include {name}"
        if room == "comm" and target == "base":
            if os.path.splitext(os.path.basename(name))[0] not in COMM_FROM_BASE:
                yield f"{path}: comm may not include {name}"
        if room == PURE_ROOM and IMPURE.match(name):
            yield f"{path}: {PURE_ROOM} is pure and may not include {name}"
        for door in matches(DOORS, name):
            if not re.fullmatch(door, stem):
                yield f"{path}: {name} is included through {door} only"


def types_of(path, text):
    """Types that other files can name; those of .cc files stand in unnamed namespaces."""
    return [(name, path) for name in TYPE.findall(text)] if path.endswith(".h") else []


def twice(types):
    first = {}
    for name, path in types:
        if first.setdefault(name, path) != path:
            yield f"{path}: {name} is another type in {first[name]}"


def sources():
    for room in ALLOWED:
        for folder, _, names in os.walk(os.path.join(TREE, room)):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), TREE)
                if name.endswith((".cc", ".h", ".cu", ".hpp")) and room_of(path) == room:
                    yield path


def main():
    files = sorted(sources())
    faults, types = [], []
    for path in files:
        with open(os.path.join(TREE, path), encoding="utf-8") as f:
            text = f.read()
        faults += faults_of(path, text)
        types += types_of(path, text)
    faults += twice(types)
    print("\n".join(faults) if faults else f"rooms: {len(files)} files keep the include rule")
    sys.exit(1 if faults or not files else 0)


main()
