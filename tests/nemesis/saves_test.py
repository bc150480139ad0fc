"""A save that is killed at each of its system calls, in any rank and in the agent that commits:
whoever goes on finds a complete checkpoint, never older than the last acknowledged one.

strace counts the calls of one undisturbed job; then each is the last of another job. On this
machine every job is run to its end by a relaunch, which must go on from where it was acknowledged
to be. SAVES_ALL=1 takes all calls, else those that a state of the folder lies between.
"""

import collections
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "e2e"))
from harness import BUILD, HVDLAUNCH, SANITIZED, SLOWNESS, Case, main

WORKER = os.path.join(BUILD, "tests", "nemesis", "saving_worker")
STEPS = 2
ALL = bool(os.environ.get("SAVES_ALL"))

# Calls that change a folder, or tell somebody that it has changed. The rest changes nothing between
# one of these and the next.
CHANGES = {"mkdir", "mkdirat", "openat", "write", "pwrite64", "fsync", "fdatasync", "rename", "renameat",
           "renameat2", "unlink", "unlinkat", "rmdir", "sendmsg", "sendto", "copy_file_range", "ftruncate"}

# The rank of that number is traced in its first attempt.
TRACED_RANK = """#!/bin/sh
[ "$HVD_RANK" = "$TRACED" ] && [ "$HVD_ATTEMPT" = 1 ] && exec strace -f -o "$TRACE" $INJECT "$@"
exec "$@"
"""
# The agent is traced the first time it is started.
TRACED_AGENT = """#!/bin/sh
shift
[ -e "$TRACE" ] && exec "$@"
exec strace -f -o "$TRACE" -e trace=%file,%desc $INJECT "$@"
"""
# Ranks see the folder at another place, so that their calls are not taken for the agent's.
ELSEWHERE = """#!/bin/sh
export HVD_CHECKPOINT_DIR="$ALIAS"
exec "$@"
"""


class Call(collections.namedtuple("Call", "name number")):
    """The n-th call of that name in one thread, as strace counts it for an injection."""

    def __str__(self):
        return f"{self.name} number {self.number}"


def calls_of(trace):
    """The calls of each thread, in order, with their arguments."""
    threads, counts = collections.defaultdict(list), collections.Counter()
    with open(trace, errors="replace") as f:
        for line in f:
            found = re.match(r"(\d+) +([a-z_0-9]+)\((.*)", line)
            if found:
                thread, name, arguments = found.groups()
                counts[thread, name] += 1
                threads[thread].append((Call(name, counts[thread, name]), arguments))
    return threads


def injection(call):
    return f"-e inject={call.name}:signal=KILL:when={call.number}"


class TracedCase(Case):
    @classmethod
    def setUpClass(cls):
        if SANITIZED:
            raise unittest.SkipTest("not in a build with sanitizers: a traced process cannot look for leaks")
        tried = subprocess.run(["strace", "true"], stderr=subprocess.PIPE, text=True)
        if tried.returncode != 0:
            raise unittest.SkipTest(f"processes cannot be traced here: {tried.stderr.strip()}")

    def setUp(self):
        super().setUp()
        self.ckpt = self.path("ckpt")
        self.acks = self.path("acks")
        self.killed = 0

    def script(self, name, text):
        path = self.write(name, text)
        os.chmod(path, 0o700)
        return path

    def run_job(self, words, **environment):
        """One job in a new folder, to its end; what it printed. None of its files was there before."""
        for path in (self.ckpt, self.acks, self.path("trace")):
            shutil.rmtree(path, ignore_errors=True)
            if os.path.isfile(path):
                os.unlink(path)
        os.mkdir(self.ckpt)
        done = subprocess.run(words, env=dict(self.environment(), TRACE=self.path("trace"), **environment),
                              cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=30 * SLOWNESS)
        return done.returncode, done.stdout

    def acknowledged(self):
        """The newest step that some rank was told to be saved."""
        with open(self.acks) as f:
            return max((int(line) for line in f), default=0)

    def rank_words(self, steps=STEPS):
        script = self.script("traced", TRACED_RANK)
        return [HVDLAUNCH, "-np", "2", "--no-prefix", "--checkpoint-dir", self.ckpt, script, WORKER,
                str(steps), self.acks]

    def agent_words(self, alias, disturbance=""):
        os.makedirs(alias, exist_ok=True)
        folders = [self.ckpt] + [f"{self.ckpt}/step-{step:09d}{end}" for step in range(1, STEPS + 1)
                                 for end in ("", ".tmp-1", ".old", ".replaced")]
        paths = [word for folder in folders for path in (folder, f"{folder}/manifest.json")
                 for word in ("-P", path)]
        agent = self.script("rsh", TRACED_AGENT.replace("$INJECT", f"{' '.join(paths)} {disturbance} $INJECT"))
        worker = self.script("elsewhere", ELSEWHERE)
        launch = [HVDLAUNCH, "-H", "a:2", "--rsh", agent, "--no-prefix", "--checkpoint-dir", self.ckpt,
                  worker, WORKER, str(STEPS), self.acks]
        return ["unshare", "-m", "sh", "-c", f'mount --bind {self.ckpt} {alias} && exec "$@"', "sh", *launch]

    def calls_to_try(self, calls, first):
        """From the first that touches `first` on."""
        begun = next(i for i, (_, arguments) in enumerate(calls) if first in arguments)
        return [call for call, _ in calls[begun:] if ALL or call.name in CHANGES]


class SavesTest(TracedCase):
    def check_killed_at(self, call, words, **environment):
        code, said = self.run_job(words, INJECT=injection(call), **environment)
        with self.subTest(call=str(call)):
            self.assertEqual(code, 0, said)
            self.assertEqual(os.listdir(self.path("run")) + os.listdir(self.path("tmp")), [])
            froms = [int(step) for step in re.findall(r"^from (\d+)$", said, re.M)]
            told = [int(step) for step in re.findall(r"^acknowledged (\d+)$", said, re.M)]
            if len(froms) < 2 and "attempt 2" not in said:
                return
            self.killed += call.name in CHANGES
            self.assertGreaterEqual(froms[-1], told[-1] if told else 0, said)
            left = [name for name in os.listdir(self.ckpt) if "tmp-1" in name or name.endswith(".old")]
            self.assertEqual(left, [], said)

    def check_all(self, calls, words, **environment):
        self.assertGreater(len(calls), 10)
        for call in calls:
            self.check_killed_at(call, words, **environment)
        # Waits come in another number each time; files are touched the same way.
        self.assertGreaterEqual(self.killed, sum(call.name in CHANGES for call in calls) * 0.9)

    def check_rank(self, rank):
        words = self.rank_words()
        code, said = self.run_job(words, TRACED=str(rank), INJECT="")
        self.assertEqual(code, 0, said)
        threads = calls_of(self.path("trace"))
        calls = max(threads.values(), key=len)
        # Without all: the saves of the last step, the first of which follows an acknowledged one.
        first = self.ckpt if ALL else f"{self.ckpt}/step-{STEPS:09d}"
        calls = self.calls_to_try(calls, first)
        half = len(calls) // 2  # one save each
        self.check_all(calls if ALL else (calls[:half], calls[half:])[rank], words, TRACED=str(rank))

    def test_k1_rank_0_is_killed_at_each_call(self):
        self.check_rank(0)

    def test_k1_rank_1_is_killed_at_each_call(self):
        self.check_rank(1)

    def test_a_rank_that_keeps_its_state_in_memory_is_killed_at_each_call(self):
        """States that differ from rank to rank: of the one that was lost, too, there is one of all."""
        words = self.rank_words(steps=4)
        code, said = self.run_job(words, TRACED="1", INJECT="", SAVES_IN_MEMORY="1")
        self.assertEqual(code, 0, said)
        main, *others = sorted(calls_of(self.path("trace")).values(), key=len, reverse=True)
        begun = next(i for i, (call, _) in enumerate(main) if call.name == "memfd_create")
        calls = [call for call, _ in main[begun:] if ALL or call.name in CHANGES | {"fallocate", "recvmsg"}]
        # Those of the threads that look at a copy, one for each: counted by thread, as the first is.
        calls += [call for call, _ in others[0] if call.name in ("sendmsg", "madvise", "exit")]
        self.assertGreater(len(calls), 10)
        for call in calls:
            self.check_killed_at(call, words, TRACED="1", SAVES_IN_MEMORY="1")
        self.assertGreater(self.killed, 5)
        self.assertEqual([name for name in os.listdir(self.ckpt) if name.startswith("step-")], [])

    def check_agent(self, disturbance=""):
        alias = self.path("alias")
        words = self.agent_words(alias, disturbance)
        code, said = self.run_job(words, ALIAS=alias, INJECT="")
        self.assertEqual(code, 0, said)
        threads = calls_of(self.path("trace"))
        calls = max(threads.values(), key=len)
        first = "manifest.json" if ALL else f"step-{STEPS:09d}.tmp-1"
        calls = self.calls_to_try(calls, first)
        # Only the second commit of a step replaces something.
        self.check_all(calls[len(calls) // 2 :] if disturbance and not ALL else calls, words, ALIAS=alias)

    @unittest.skipIf(os.geteuid() != 0, "needs root, to mount the folder at a second place")
    def test_k1_the_agent_is_killed_at_each_call(self):
        self.check_agent()

    @unittest.skipIf(os.geteuid() != 0, "needs root, to mount the folder at a second place")
    def test_k1_the_agent_is_killed_where_folders_cannot_be_exchanged(self):
        self.check_agent("-e inject=renameat2:error=EINVAL")

    def test_k1_a_process_that_is_alone_is_killed_at_each_call(self):
        trace = self.path("trace")
        environment = dict(HVD_CHECKPOINT_DIR=self.ckpt)
        code, said = self.run_job(["strace", "-f", "-o", trace, WORKER, str(STEPS), self.acks], **environment)
        self.assertEqual(code, 0, said)
        calls = max(calls_of(trace).values(), key=len)
        calls = self.calls_to_try(calls, self.ckpt)
        self.assertGreater(len(calls), 10)
        for call in calls:
            with self.subTest(call=str(call)):
                code, said = self.run_job(["strace", "-o", trace, *injection(call).split(), WORKER, str(STEPS),
                                           self.acks], **environment)
                told = self.acknowledged()
                steps = [n for n in os.listdir(self.ckpt) if re.fullmatch(r"step-\d+", n)]
                newest = max((int(n[5:]) for n in steps), default=0)
                self.assertGreaterEqual(newest, told, said)
                resumed = dict(HVD_RESUME_FROM=f"{self.ckpt}/step-{newest:09d}") if newest else {}
                done = subprocess.run([WORKER, str(STEPS), self.acks], stdout=subprocess.PIPE, text=True, timeout=30,
                                      env=dict(self.environment(), **environment, **resumed))
                self.assertEqual(done.returncode, 0)
                self.assertIn(f"from {newest}\n", done.stdout)


class DiskTest(TracedCase):
    """A disk that fails costs a checkpoint, with the reason, and not the work; what was not synced is
    never acknowledged."""

    ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
    # Without these nothing can be saved; an unlink that fails had nothing to remove.
    NEEDED = {"openat", "write", "fsync", "rename", "renameat", "renameat2"}

    def check_failed_at(self, call, error, words, **environment):
        inject = f"-e inject={call.name}:error={error}:when={call.number}"
        code, said = self.run_job(words, INJECT=inject, **environment)
        with self.subTest(call=str(call), error=error):
            self.assertEqual(code, 0, said)
            self.assertNotIn("attempt 2", said)
            shown = self.launch("checkpoints", self.ckpt, "--verify", "--json", timeout=20)
            whole = json.loads(shown.out)["checkpoints"]
            self.assertEqual([c["why_not"] for c in whole], [""] * len(whole), said)
            self.assertGreaterEqual(max((c["step"] for c in whole), default=0), self.acknowledged(), said)
            if call.name in self.NEEDED:
                self.assertIn("was not saved: ", said)
                self.assertRegex(said, "refused [12]: .*" + os.strerror(getattr(errno, error)))

    def check_errors(self, calls, words, **environment):
        self.assertGreater(len(calls), 5)
        for number, call in enumerate(calls):
            for error in self.ERRORS if ALL else (self.ERRORS[number % len(self.ERRORS)],):
                self.check_failed_at(call, error, words, **environment)

    def calls_of_save(self, words, **environment):
        code, said = self.run_job(words, INJECT="", **environment)
        self.assertEqual(code, 0, said)
        calls = max(calls_of(self.path("trace")).values(), key=len)
        begun = next(i for i, (_, arguments) in enumerate(calls) if f"step-{1:09d}.tmp-1" in arguments)
        return [(call, arguments) for call, arguments in calls[begun:]
                if call.name in self.NEEDED | {"mkdir", "unlink", "unlinkat", "close"} and '"1\\n"' not in arguments
                and '"2\\n"' not in arguments]

    def test_n30_each_call_of_a_rank_may_fail(self):
        words = self.rank_words()
        calls = [call for call, _ in self.calls_of_save(words, TRACED="1")]
        self.check_errors(calls if ALL else calls[:12], words, TRACED="1")

    @unittest.skipIf(os.geteuid() != 0, "needs root, to mount the folder at a second place")
    def test_n30_each_call_of_the_commit_may_fail(self):
        alias = self.path("alias")
        words = self.agent_words(alias)
        calls = self.calls_of_save(words, ALIAS=alias)
        # What is removed after the last rename and its fsync is no part of the promise.
        renames = [i for i, (call, _) in enumerate(calls) if call.name.startswith("rename")]
        end = (renames[-1] if ALL else renames[0]) + 2
        self.check_errors([call for call, _ in calls[:end]], words, ALIAS=alias)

    def test_n30_a_save_beside_the_work_tells_its_failure_at_the_next_call(self):
        words = self.rank_words()
        code, said = self.run_job(words, INJECT="", TRACED="1", SAVES_ASIDE="1")
        self.assertEqual((code, self.acknowledged()), (0, STEPS), said)
        self.assertNotIn("refused", said)
        self.assert_code(self.launch("resume", self.ckpt, timeout=20), 0)  # it reads what it saved
        self.check_failed_at(Call("fsync", 1), "EIO", words, TRACED="1", SAVES_ASIDE="1")

    @unittest.skipIf(os.geteuid() != 0, "needs root, to mount a small disk")
    def test_n30_a_full_disk(self):
        """Room for two checkpoints, of which one is kept by something else."""
        mount = self.path("small")
        os.mkdir(mount)
        launch = [HVDLAUNCH, "-np", "2", "--no-prefix", "--checkpoint-dir", f"{mount}/ckpt", WORKER, "2", self.acks]
        script = f'mount -t tmpfs -o size=100k tmpfs {mount} && head -c 70k /dev/zero >{mount}/fill && "$@"; echo code $?'
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *launch], env=self.environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=30 * SLOWNESS)
        self.assertIn("code 0", done.stdout)
        self.assertRegex(done.stdout, "was not saved: .*No space left on device")


class DamageTest(Case):
    """A checkpoint that is not what was committed is rejected by name, and the one before is used."""

    def setUp(self):
        super().setUp()
        self.whole, self.ckpt = self.path("whole"), self.path("ckpt")
        self.assert_code(self.launch("-np", "2", "--checkpoint-dir", self.whole, WORKER, "3", self.path("acks")), 0)

    def shard(self, rank, step=3):
        return f"{self.ckpt}/step-{step:09d}/rank-{rank:04d}.safetensors"

    @property
    def manifest(self):
        return f"{self.ckpt}/step-{3:09d}/manifest.json"

    def check(self, what, path, damage, why):
        with self.subTest(what=what):
            shutil.rmtree(self.ckpt, ignore_errors=True)
            shutil.copytree(self.whole, self.ckpt)
            damage()
            run = self.launch("resume", self.ckpt, "--no-prefix", timeout=30)
            self.assert_code(run, 0)
            self.assertIn("from 2\n", run.out, str(run))
            name = os.path.join(*path.split("/")[-2:])
            self.assertTrue(name in run.err or all(part in run.err for part in name.split("/")), str(run))
            self.assertIn(why, run.err)
            self.assertEqual(self.launch("resume", self.ckpt, "--no-prefix", timeout=30).out.split()[-1], "3")

    def test_n33_the_one_before_is_used(self):
        def put(path, content):
            with open(path, "r+b") as f:
                f.write(content)

        def swap_ranks():
            os.rename(self.shard(0), self.path("kept"))
            os.rename(self.shard(1), self.shard(0))
            os.rename(self.path("kept"), self.shard(1))

        def in_place(path, make):
            os.unlink(path)
            make(path)

        shard = self.shard(1)
        for what, damage, why in (
            ("ranks are swapped", swap_ranks, "it is the shard of rank 0 of 2 at step 3"),
            ("it is another step's", lambda: shutil.copy(self.shard(1, 2), shard), "it is the shard of rank 1 of 2 at step 2"),
            ("it is another rank's", lambda: shutil.copy(self.shard(0), shard), "it is the shard of rank 0 of 2 at step 3"),
            ("it is empty", lambda: os.truncate(shard, 0), "it holds 0 bytes"),
            ("it is missing", lambda: os.unlink(shard), "is missing"),
            ("it is a folder", lambda: in_place(shard, os.mkdir), "is missing"),
            ("it is a link", lambda: in_place(shard, lambda p: os.symlink(self.shard(1, 2), p)), "is missing"),
            ("its header is huge", lambda: put(shard, b"\xff" * 7 + b"\x7f"), "its header is longer than the file"),
        ):
            self.check(what, shard, damage, why)
        for what, damage, why in (
            ("the manifest is missing", lambda: os.unlink(self.manifest), "missing"),
            ("the manifest is empty", lambda: os.truncate(self.manifest, 0), "is missing or cannot be read"),
            ("the manifest is another step's",
             lambda: shutil.copy(self.manifest.replace("3/m", "2/m"), self.manifest), "is of step 2"),
            ("the manifest is a folder", lambda: in_place(self.manifest, os.mkdir), "cannot be read"),
            ("the manifest is a link", lambda: in_place(self.manifest, lambda p: os.symlink(p, p)), "cannot be read"),
        ):
            self.check(what, self.manifest, damage, why)


if __name__ == "__main__":
    main()
