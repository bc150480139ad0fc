"""N32: a power cut at any moment of a job. Whatever the disk has then, the newest whole checkpoint is
never older than the last acknowledged one, and nothing half is taken for whole.

strace records what the processes of a job do to the checkpoint folder. The record is replayed up to
each call. Sure to be on the disk is only what was synced: the bytes of a file by an fsync of it,
names by an fsync of their folder. All else may be there or not, each by itself and torn, and each
such state is read as a resume reads it (resume_reader.cc).

At each moment these are the states of a single lost and of a single kept change, and random ones:
with SAVES_ALL=1 so many that there are over 100,000 in all.
"""

import collections
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "e2e"))
from harness import BUILD, HVDLAUNCH, SANITIZED, SLOWNESS, Case, main

WORKER = os.path.join(BUILD, "tests", "nemesis", "saving_worker")
READER = os.path.join(BUILD, "tests", "nemesis", "resume_reader")
RANDOM_STATES = 150 if os.environ.get("SAVES_ALL") else 4
SEED = int(os.environ.get("HVD_NEMESIS_SEED", "1"))
BLOCK = 512  # that a disk writes whole or not at all

# What changes files or folders, or syncs them.
KNOWN = ("open", "openat", "creat", "write", "pwrite64", "ftruncate", "rename", "renameat", "renameat2", "unlink",
         "unlinkat", "rmdir", "mkdir", "mkdirat", "link", "linkat", "fsync", "fdatasync")
# What would change them in a way that the replay does not know.
UNKNOWN = ("truncate", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice", "fallocate", "symlink",
           "symlinkat")

Call = collections.namedtuple("Call", "name arguments result begun ended")


def text_of(word):
    """The bytes of a quoted word, all of which strace writes as \\xNN."""
    return bytes.fromhex(word.replace("\\x", ""))


class Argument:
    """One argument as strace shows it: "words", a number, or a descriptor with its path."""

    def __init__(self, shown):
        found = re.match(r'"((?:\\x[0-9a-f]{2})*)"', shown)
        self.bytes = text_of(found.group(1)) if found else None
        found = re.search(r"<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?", shown)
        self.path = text_of(found.group(1)).decode() if found and not found.group(2) else None
        self.shown = shown


def read_trace(path):
    """The calls that succeeded, in the order in which they ended."""
    open_calls, calls = {}, []
    with open(path) as f:
        for number, line in enumerate(f):
            thread, line = line.split(None, 1)
            if line.endswith("<unfinished ...>\n"):
                open_calls[thread] = (number, line[: -len("<unfinished ...>\n")])
                continue
            begun = number
            resumed = re.match(r"<\.\.\. \w+ resumed>(.*)", line, re.S)
            if resumed:
                begun, head = open_calls.pop(thread)
                line = head + resumed.group(1)
            found = re.match(r"(\w+)\((.*)\)\s+= (\d+)", line)
            if found:
                name, arguments, result = found.groups()
                calls.append(Call(name, [Argument(a) for a in arguments.split(", ")], int(result), begun, number))
    return calls


class Inode:
    """A file (bytes) or a folder (numbers of inodes by name): what is surely on the disk, and what
    was done since, in order."""

    def __init__(self, durable):
        self.durable, self.pending = durable, []

    def apply(self, kept):
        """What it holds when these of the pending changes reached the disk, whole."""
        value = self.durable
        for change in self.pending:
            if change.number in kept:
                value = change.apply(value)
        return value


class Names:
    """Names that come and go at once in one folder."""

    def __init__(self, number, gone, come):
        self.number, self.gone, self.come = number, gone, come

    def apply(self, entries):
        entries = {n: i for n, i in entries.items() if (n, i) not in self.gone}
        entries.update(self.come)
        return entries


class Write:
    def __init__(self, number, at, data):
        self.number, self.at, self.data = number, at, data

    def apply(self, content):
        content = content.ljust(self.at, b"\0")
        return content[: self.at] + self.data + content[self.at + len(self.data):]

    def tear(self, rng, content):
        """Some blocks of it, and the length whether they came or not."""
        content = content.ljust(self.at + rng.choice((0, len(self.data))), b"\0")
        for begin in range(0, len(self.data), BLOCK):
            if rng.random() < 0.5:
                content = Write(0, self.at + begin, self.data[begin: begin + BLOCK]).apply(content)
        return content


class Length:
    def __init__(self, number, length):
        self.number, self.length = number, length

    def apply(self, content):
        return content[: self.length].ljust(self.length, b"\0")

    def tear(self, _, content):
        return self.apply(content)


class Disk:
    """What the processes see of a folder, and what of it is on the disk. The folder itself is."""

    def __init__(self, root):
        self.root = root
        self.inodes = [Inode({})]
        self.now = [{}]  # as the processes see it
        self.done = {}  # by number of the change, when
        self.number = 0

    def find(self, path):
        """The inode's number, or None."""
        at = 0
        for name in os.path.relpath(path, self.root).split("/"):
            if name != ".":
                at = self.now[at].get(name) if isinstance(self.now[at], dict) else None
            if at is None:
                return None
        return at

    def holds(self, path):
        return path is not None and (path + "/").startswith(self.root + "/")

    def change(self, inode, change, when):
        self.inodes[inode].pending.append(change)
        self.now[inode] = change.apply(self.now[inode])
        self.done[change.number] = when

    def next_number(self):
        self.number += 1
        return self.number

    def names(self, folder, gone, come, when):
        self.change(folder, Names(self.next_number(), gone, come), when)

    def make(self, path, content, when):
        self.inodes.append(Inode(content))
        self.now.append(content)
        self.names(self.find(os.path.dirname(path)), [], {os.path.basename(path): len(self.now) - 1}, when)

    def remove(self, path, when):
        name, inode = os.path.basename(path), self.find(path)
        self.names(self.find(os.path.dirname(path)), [(name, inode)], {}, when)

    def rename(self, old, new, exchange, when):
        folder = self.find(os.path.dirname(old))
        assert folder == self.find(os.path.dirname(new)), "a rename from one folder to another"
        moved, there = self.find(old), self.find(new)
        old, new = os.path.basename(old), os.path.basename(new)
        if exchange:
            self.names(folder, [], {old: there, new: moved}, when)
        else:
            self.names(folder, [(old, moved)], {new: moved}, when)

    def sync(self, path, begun):
        """What was done before the call began is on the disk."""
        inode = self.inodes[self.find(path)]
        done = {c.number for c in inode.pending if self.done[c.number] < begun}
        inode.durable = inode.apply(done)
        inode.pending = [c for c in inode.pending if c.number not in done]

    def pending(self):
        return [c.number for inode in self.inodes for c in inode.pending]

    def state(self, kept, rng=None):
        """Files by path, and None for folders, when these changes reached the disk. With a source of
        random numbers the writes among them are torn."""
        found = {}

        def walk(inode, path):
            value = self.inodes[inode].apply(kept) if rng is None or isinstance(self.now[inode], dict) else None
            if isinstance(value, dict):
                found[path] = None
                for name in sorted(value):
                    walk(value[name], f"{path}/{name}")
                return
            if value is None:
                value = self.inodes[inode].durable
                for change in self.inodes[inode].pending:
                    if change.number in kept:
                        value = change.apply(value) if rng.random() < 0.5 else change.tear(rng, value)
            found[path] = value

        walk(0, "")
        return found


class Replay:
    """Does to a Disk what a record says."""

    def __init__(self, root):
        self.disk = Disk(root)
        self.when = 0

    def path(self, folder, name):
        name = name.bytes.decode()
        return os.path.normpath(name if folder is None else os.path.join(folder.path or "/", name))

    def paths_of(self, call):
        """The paths that a call names, of its folder-and-name pairs or its single names."""
        arguments = call.arguments
        if call.name in ("write", "pwrite64", "ftruncate", "fsync", "fdatasync"):
            return [arguments[0].path]
        if call.name in ("openat", "mkdirat", "unlinkat"):
            return [self.path(*arguments[:2])]
        if call.name in ("renameat", "renameat2", "linkat"):
            return [self.path(*arguments[0:2]), self.path(*arguments[2:4])]
        return [self.path(None, a) for a in arguments[: 2 if call.name in ("rename", "link") else 1]]

    def perform(self, call):
        """Whether the call was one on the folder."""
        self.when = call.ended
        if call.name in UNKNOWN:
            touched = [p for a in call.arguments for p in (a.path, a.bytes and a.bytes.decode(errors="replace"))]
            assert not any(self.disk.holds(p) for p in touched), f"{call.name} is not known to the replay"
            return False
        paths = self.paths_of(call)
        if not self.disk.holds(paths[-1]):
            return False
        getattr(self, f"do_{call.name.rstrip('2').removesuffix('64').removesuffix('at')}")(call, *paths)
        return True

    def do_open(self, call, path):
        flags = next(a.shown for a in call.arguments if a.shown.startswith("O_"))
        inode = self.disk.find(path)
        if inode is None and "O_CREAT" in flags:
            self.disk.make(path, b"", self.when)
        elif inode is not None and "O_TRUNC" in flags:
            self.disk.change(inode, Length(self.disk.next_number(), 0), self.when)

    def do_creat(self, *_):
        raise AssertionError("creat is not known to the replay")

    def do_write(self, call, path):
        inode = self.disk.find(path)
        if inode is not None:  # at the end: nobody here seeks
            self.written(inode, len(self.disk.now[inode]), call)

    def do_pwrite(self, call, path):
        self.written(self.disk.find(path), int(call.arguments[3].shown), call)

    def written(self, inode, at, call):
        change = Write(self.disk.next_number(), at, call.arguments[1].bytes[: call.result])
        self.disk.change(inode, change, self.when)

    def do_ftruncate(self, call, path):
        length = int(call.arguments[1].shown)
        self.disk.change(self.disk.find(path), Length(self.disk.next_number(), length), self.when)

    def do_rename(self, call, old, new):
        exchange = any("RENAME_EXCHANGE" in a.shown for a in call.arguments)
        self.disk.rename(old, new, exchange, self.when)

    def do_link(self, _, old, new):
        folder = self.disk.find(os.path.dirname(new))
        self.disk.names(folder, [], {os.path.basename(new): self.disk.find(old)}, self.when)

    def do_unlink(self, _, path):
        self.disk.remove(path, self.when)

    do_rmdir = do_unlink

    def do_mkdir(self, _, path):
        self.disk.make(path, {}, self.when)

    def do_fsync(self, call, path):
        self.disk.sync(path, call.begun)

    do_fdatasync = do_fsync


class Reader:
    """Reads states of a folder as a resume does, each different one once."""

    def __init__(self, scratch, ckpt, ranks):
        self.scratch, self.ckpt = scratch, ckpt
        self.known = {}
        self.process = subprocess.Popen([READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, RANKS=str(ranks)))

    def read(self, state):
        digest = hashlib.sha256()
        for path, content in state.items():
            if path.startswith(self.ckpt) and not path.endswith(".lock"):
                digest.update(f"{path}\0{content is None}\0{len(content or b'')}\0".encode() + (content or b""))
        key = digest.digest()
        if key not in self.known:
            self.known[key] = self.ask(state)
        return self.known[key]

    def ask(self, state):
        for path, content in state.items():
            if content is None:
                os.mkdir(self.scratch + path)
            else:
                with open(self.scratch + path, "wb") as f:
                    f.write(content)
        self.process.stdin.write(self.scratch + self.ckpt + "\n")
        self.process.stdin.flush()
        step, _, why = self.process.stdout.readline().strip().partition(" ")
        shutil.rmtree(self.scratch)
        return int(step), why

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


class PowerTest(Case):
    @classmethod
    def setUpClass(cls):
        if SANITIZED:
            raise unittest.SkipTest("not in a build with sanitizers: a traced process cannot look for leaks")
        tried = subprocess.run(["strace", "true"], stderr=subprocess.PIPE, text=True)
        if tried.returncode != 0:
            raise unittest.SkipTest(f"processes cannot be traced here: {tried.stderr.strip()}")

    def setUp(self):
        super().setUp()
        # Folders above the checkpoints are new too.
        self.root, self.trace = self.path("disk"), self.path("trace")
        self.ckpt, self.acks = f"{self.root}/new/ckpt", f"{self.root}/acks"
        os.mkdir(self.root)
        self.rng = random.Random(SEED)
        self.job_files = set()  # as they were written

    def record(self, words, *options, **environment):
        """Runs it, and adds what it does to the record."""
        trace = ["strace", "-A", "-f", "-y", "-xx", "-s", "1000000", "-o", self.trace, "-e",
                 "trace=" + ",".join(KNOWN + UNKNOWN), *options]
        done = subprocess.run(trace + words, env=dict(self.environment(), **environment), cwd=self.dir,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60 * SLOWNESS)
        self.assertEqual(done.returncode, 0, done.stdout)
        if os.path.exists(f"{self.ckpt}/job.toml"):
            with open(f"{self.ckpt}/job.toml", "rb") as f:
                self.job_files.add(f.read())

    def kept_sets(self, pending):
        """Which of the changes that are not sure to be there are: none, all, all but one, one only,
        and random ones."""
        yield frozenset(), None
        everything = frozenset(pending)
        yield everything, None
        for one in pending:
            yield everything - {one}, None
            yield frozenset((one,)), None
        for _ in range(RANDOM_STATES if pending else 0):
            share = self.rng.choice((0.2, 0.5, 0.8, 1))
            yield frozenset(n for n in pending if self.rng.random() < share), self.rng

    def check_power_cuts(self, ranks=2):
        """At each moment of the record; the steps that were acknowledged at its end."""
        replay = Replay(self.root)
        reader = Reader(self.path("state"), self.ckpt.removeprefix(self.root), ranks)
        self.addCleanup(reader.close)
        job_file = f"{self.ckpt.removeprefix(self.root)}/job.toml"
        acknowledged = states = moments = 0
        for call in read_trace(self.trace):
            if not replay.perform(call):
                continue
            moments += 1
            if call.name == "write" and call.arguments[0].path == self.acks:
                acknowledged = max(acknowledged, int(call.arguments[1].bytes))
            for kept, rng in self.kept_sets(replay.disk.pending()):
                states += 1
                state = replay.disk.state(kept, rng)
                step, why = reader.read(state)
                if acknowledged and self.job_files and state.get(job_file) not in self.job_files:
                    why = "and no job.toml"
                if step < acknowledged or why:
                    lost = set(replay.disk.pending()) - kept
                    self.fail(f"after {moments} calls, the last one {call.name} of "
                              f"{replay.paths_of(call)}: step {acknowledged} was acknowledged, and without the changes "
                              f"{sorted(lost)} a resume finds {step} {why}")
        print(f"{states} states after {moments} calls, {len(reader.known)} different ones", file=sys.stderr)
        self.assertGreater(len(reader.known), 50)
        return acknowledged

    def launch_words(self, steps):
        return [HVDLAUNCH, "-np", "2", "--no-prefix", "--checkpoint-keep", "2", "--checkpoint-dir", self.ckpt, WORKER,
                str(steps), self.acks]

    def test_n32_a_job_that_is_resumed(self):
        """New folders, saves, one in the place of another, old ones removed, all again in a second
        run."""
        self.record(self.launch_words(4))
        self.record([HVDLAUNCH, "resume", self.ckpt, "--", WORKER, "6", self.acks])
        self.assertEqual(self.check_power_cuts(), 6)

    def test_n32_where_folders_cannot_be_exchanged(self):
        self.record(self.launch_words(2), "-e", "inject=renameat2:error=EINVAL")
        self.assertEqual(self.check_power_cuts(), 2)

    def test_n32_saves_beside_the_work(self):
        self.record(self.launch_words(3), SAVES_ASIDE="1")
        self.assertEqual(self.check_power_cuts(), 3)

    def test_n32_a_process_that_is_alone(self):
        self.record([WORKER, "3", self.acks], HVD_CHECKPOINT_DIR=self.ckpt)
        self.assertEqual(self.check_power_cuts(ranks=1), 3)


if __name__ == "__main__":
    main()
