"""Nothing is left, whichever parts of the product die or stand still, as root with a cgroup, as root
without, and as an ordinary user. After each test the harness looks for processes, files and groups."""

import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import unittest

from harness import (HVDLAUNCH, PROGRAMS, PYTHON, SLOWNESS, Case, cgroup_root, descendants, is_alive, kill, main,
                     unlocked_folders, wait_for)

# Children in sessions of their own whose parents are gone, which ignore TERM.
HIDING = ("trap '' TERM; (setsid sleep 1000 &); setsid sh -c 'setsid sleep 1000 & sleep 0' & sleep 1000 &"
          "echo settled; while :; do sleep 1; done")
HIDDEN = 4  # and the rank


class LeftoversCase(Case):
    before = ()  # of the command line

    def settled(self, *options, size=1):
        run = self.start_as("-np", str(size), "--heartbeat-timeout", "1", *options, "sh", "-c", HIDING)
        wait_for(lambda: run.out.count("settled") == size and len(self.ranks(run)) >= HIDDEN * size, 30,
                 lambda: f"{size} trees\n{run}")
        keeper, agent = wait_for(run.agents, 10, "the agent")[0]
        return run, keeper.pid, agent.pid

    def start_as(self, *args):
        return self.start(*args)

    def ranks(self, run):
        return [p for p in run.command.processes() if "HVD_RANK" in p.environment()]

    def assert_ranks_die(self, run, seconds=8):
        wait_for(lambda: not self.ranks(run), seconds, lambda: f"the ranks' trees to be dead\n{run}")
        run.wait(20)
        self.assertNotEqual(run.code, 0)
        self.assert_nothing_left()


class Faults:
    """One test per line of the keeper's table."""

    def test_g1_agent_killed(self):
        run, _, agent = self.settled()
        kill(agent)
        self.assert_ranks_die(run)

    def test_g1_keeper_killed(self):
        run, keeper, _ = self.settled()
        kill(keeper)
        self.assert_ranks_die(run)

    def test_g1_agent_stopped(self):
        run, _, agent = self.settled()
        kill(agent, signal.SIGSTOP)
        self.assert_ranks_die(run)

    def test_g1_keeper_stopped_goes_on_by_the_lease(self):
        run, keeper, agent = self.settled()
        kill(keeper, signal.SIGSTOP)
        wait_for(lambda: self.state(keeper) != "T", 5, "the keeper to go on")
        self.assertTrue(run.running)
        kill(run.launcher)
        self.assert_ranks_die(run)

    def test_g1_keeper_killed_while_the_agent_stands_still(self):
        run, keeper, agent = self.settled()
        kill(agent, signal.SIGSTOP)
        kill(keeper)
        self.assert_ranks_die(run)

    def test_g1_agent_killed_while_the_keeper_stands_still(self):
        run, keeper, agent = self.settled()
        kill(keeper, signal.SIGSTOP)
        kill(agent)
        self.assert_ranks_die(run)

    def test_g1_both_stand_still(self):
        run, keeper, agent = self.settled()
        kill(agent, signal.SIGSTOP)
        kill(keeper, signal.SIGSTOP)
        self.assert_ranks_die(run)

    def test_g4_launcher_killed(self):
        run, _, _ = self.settled("--failure-grace", "0.5")
        kill(run.launcher)
        self.assert_ranks_die(run)

    def test_g1_all_that_is_called_hvdlaunch_is_killed(self):
        run, _, _ = self.settled()
        named = [p for p in run.command.processes()
                 if p.name == "hvdlaunch" or any("hvdlaunch" in word for word in p.argv())]
        for p in named:
            kill(p.pid, signal.SIGSTOP)
        for p in named:
            kill(p.pid)
        self.assert_ranks_die(run)

    def state(self, pid):
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(") ", 1)[1][0]


@unittest.skipIf(os.geteuid() != 0 or not cgroup_root(), "needs root and a cgroup of version 2 to write to")
class RootWithCgroupTest(Faults, LeftoversCase):
    def groups(self):
        return glob.glob(f"{cgroup_root()}/**/hvdlaunch-*", recursive=True)

    def test_the_agent_has_a_group_of_its_own(self):
        run, keeper, agent = self.settled()
        with open(f"/proc/{agent}/cgroup") as f:
            self.assertIn("/hvdlaunch-", f.read())
        with open(f"/proc/{keeper}/cgroup") as f:
            self.assertNotIn("/hvdlaunch-", f.read())
        kill(run.launcher)
        self.assert_ranks_die(run)

    def test_g7_the_next_agent_sweeps_what_both_guards_left(self):
        run, keeper, agent = self.settled()
        kill(keeper, signal.SIGSTOP)
        kill(agent, signal.SIGSTOP)
        kill(keeper)
        kill(agent)
        run.wait(20)
        self.launch("-np", "1", "--heartbeat-timeout", "0.5", "sleep", "0.5")
        self.assert_nothing_left()


@unittest.skipIf(os.geteuid() != 0, "needs root")
class RootWithoutCgroupTest(Faults, LeftoversCase):
    def start_as(self, *args):
        return self.start(*args, around=["unshare", "-m", "sh", "-c",
                                         'umount -a -l -t cgroup2 && exec "$@"', "sh"])


@unittest.skipIf(os.geteuid() != 0, "needs root")
class OrdinaryUserTest(Faults, LeftoversCase):
    uid = 65534

    def start_as(self, *args):
        return self.start_by(self.uid, *args)

    def start_by(self, uid, *args):
        os.chmod(self.dir, 0o755)
        home = self.path(f"home-{uid}")
        for name in ("", "/run", "/tmp"):
            os.makedirs(home + name, 0o700, exist_ok=True)
            os.chown(home + name, uid, uid)
        program = self.path("hvdlaunch")
        if not os.path.exists(program):
            shutil.copy(HVDLAUNCH, program)
        return self.start(*args, program=program, cwd="/",
                          around=["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"],
                          env={"HOME": home, "XDG_RUNTIME_DIR": home + "/run", "TMPDIR": home + "/tmp",
                               "XDG_STATE_HOME": home + "/state"})

    def leftovers(self):
        left = super().leftovers()
        for home in glob.glob(self.path("home-*")):
            left += [f"{home}/{sub}/{n}" for sub in ("run", "tmp") for n in os.listdir(f"{home}/{sub}")]
        return left

    def test_g7_two_users_at_once(self):
        runs = [self.start_by(uid, "-np", "2", "sh", "-c", "echo $HVD_RANK; sleep 0.3") for uid in (65534, 65533)]
        for run in runs:
            self.assert_code(run.wait(), 0)


class SweepTest(Case):
    def folder(self, name, *, strange=False, locked=False):
        path = self.path("run", name)
        os.mkdir(path, 0o700)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path + "/agent")
        if strange:
            with open(path + "/data", "w"):
                pass
        return path

    def test_g7_folders_of_dead_jobs_are_swept_and_nothing_else(self):
        dead = self.folder("hvdlaunch-abcdef")
        kept = [self.folder("hvdlaunch-abcdeg", strange=True), self.folder("hvdlaunch-longer-name"),
                self.folder("other-abcdef")]
        self.assert_code(self.launch("-np", "1", "--heartbeat-timeout", "0.5", "sleep", "0.5"), 0)
        self.assertFalse(os.path.exists(dead))
        for path in kept:
            self.assertEqual(os.path.exists(path + "/agent"), True, path)
            shutil.rmtree(path)

    def test_g7_fifty_random_kills_leave_nothing(self):
        """Launcher, keeper, agent or a rank is killed at a random time of the launch."""
        draw = random.Random(7)
        memory = "/dev/shm/hvdlaunch-??????"  # where agents have their folders
        before = unlocked_folders(memory)
        for _ in range(50):
            run = self.start("-np", "2", "--heartbeat-timeout", "1", "--failure-grace", "0.1", "sleep", "60",
                             env={"XDG_RUNTIME_DIR": None})
            until = time.monotonic() + draw.uniform(0, 0.06)
            while time.monotonic() < until:
                time.sleep(0.002)
            parts = run.command.processes()
            kill(draw.choice(parts).pid if parts and draw.random() < 0.7 else run.launcher)
            wait_for(lambda: not run.command.processes() or run.running and self.kill_on(run), 15,
                     lambda: f"all to end\n{run}")
        new = lambda: unlocked_folders(memory) - before
        wait_for(lambda: not new(), 10, lambda: f"nothing to be left but {new()}")

    def kill_on(self, run):
        """The part killed was none that ends the launch, or the launch began after it."""
        try:
            kill(run.launcher)
        except ProcessLookupError:
            pass
        return False


def memory_group():
    """A memory cgroup of 64 MB, and how it is called, or nothing. What the sanitizers keep must fit too."""
    name = f"hvd-test-{os.getpid()}"
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = f"{root}/{name}"
        try:
            os.mkdir(path)
            with open(f"{path}/{limit}", "w") as f:
                f.write(f"{64 * SLOWNESS}M")
            return path
        except OSError:
            if os.path.isdir(path):
                os.rmdir(path)
    return None


class MemoryTest(Case):
    HUNGRY = f"x = bytearray({300 * SLOWNESS} << 20); import time; time.sleep(100)"

    def setUp(self):
        super().setUp()
        self.group = memory_group()
        if self.group is None:
            self.skipTest("no memory cgroup can be made here")
        self.addCleanup(lambda: wait_for(self.remove_group, 10, "the group to be empty"))

    def remove_group(self):
        try:
            os.rmdir(self.group)
            return True
        except OSError:
            return False

    def killed_for_memory(self):
        answers = []
        for path in glob.glob(self.path("home/state/hvdlaunch/jobs/*/report.json")):
            with open(path) as f:
                answers.append(json.load(f)["cause"].get("killed_for_memory"))
        return answers

    def test_f3_a_rank_killed_for_memory_is_told(self):
        join = f"echo $$ > {self.group}/cgroup.procs; "
        eats = f"exec {PYTHON} -c '{self.HUNGRY}'"
        # The whole launch in a small group, as a container or a batch step has it.
        run = self.start("-np", "2", "sh", "-c", f"[ $HVD_RANK = 0 ] || {{ sleep 0.2; {eats}; }}; sleep 50",
                         around=["sh", "-c", join + 'exec "$@"', "sh"]).wait()
        self.assert_code(run, 137)
        self.assertRegex(run.err, "rank 1 on .* was killed by the kernel .SIGKILL.: it ran out of memory")
        # One rank alone.
        run = self.launch("-np", "2", "--heartbeat-timeout", "1", "sh", "-c",
                          f"[ $HVD_RANK = 0 ] || {{ {join} sleep 0.5; {eats}; }}; sleep 50")
        self.assert_code(run, 137)
        self.assertRegex(run.err, "rank 1 on .* it ran out of memory")
        self.assertEqual(self.killed_for_memory(), ["yes", "yes"])

    def test_f3_other_kills_are_told_apart(self):
        script = ("trap '' TERM; [ $HVD_RANK = 0 ] || { sleep 0.2; kill -KILL $$; };"
                  "while :; do sleep 0.1; done")
        run = self.launch("-np", "2", "--failure-grace", "0.3", "sh", "-c", script)
        self.assert_code(run, 137)
        self.assertRegex(run.err, "rank 1 on .* was killed by SIGKILL, (not for memory|whether for memory)")
        self.assertRegex(run.err, "(?s)what followed:\n.*rank 0 on .* was killed by hvdlaunch")
        self.assertIn(self.killed_for_memory(), (["no"], ["unknown"]))


if __name__ == "__main__":
    main()
