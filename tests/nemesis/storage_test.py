"""Disks that fill up, fail, or show what is there late: N30, N35. N31, N33 and N34 are in saves_test.py and
tests/e2e; N32, a power cut, is in power_test.py.

Calls fail by a library that is loaded before agents and workers (shim.cc)."""

import errno
import glob
import os
import time

from faults import Faults
from nemesis import (BUILD, EVERY, HOSTS, RANKS, SPARE, STEPS, NemesisCase, committed_steps, kill, main, needs_lab,
                     plain_build_only, wait_for)

SHIM = f"{BUILD}/tests/nemesis/libnemesis_shim.so"


@plain_build_only("the sanitizers' library must come first")
@needs_lab
class StorageTest(NemesisCase):
    def setUp(self):
        super().setUp()
        for host in [*HOSTS, SPARE]:
            path = f"{self.lab.state}/hosts/{host}/root/.bashrc"
            with open(path, "w") as f:
                f.write(f"export LD_PRELOAD={SHIM}\n")
            self.addCleanup(os.remove, path)
        self.faults = Faults(self, HOSTS, 2)

    def acknowledged(self):
        return committed_steps(self.ckpt)

    def test_n30_every_call_of_a_save_fails_once(self):
        """Whichever call fails, on a worker or in the commit, with whatever number: the save is not
        acknowledged, and the job goes on from the one before."""
        numbers = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS]
        calls = [("open", 0), ("write", 0), ("write", 1), ("fsync", 0), ("fsync", 1), ("close", 0), ("mkdir", 0)]
        cases = [(call, skip, str(self.random.randrange(RANKS))) for call, skip in calls]
        cases += [(call, skip, "agent") for call, skip in calls[:-1] + [("rename", 0), ("rename", 1)]]
        self.random.shuffle(cases)
        steps = 11 * 60
        run = self.train("--max-restarts", "100", program=self.program(steps))
        self.at(run, "step")
        hit = 0
        for call, skip, who in cases:
            if not run.running:
                break
            before, step = self.samples.newest()
            control = self.faults.break_call(call, self.random.choice(numbers), skip, who)
            wait_for(lambda: not os.path.exists(control) or not run.running
                     or self.samples.newest()[1] > step + 2 * EVERY, 20, lambda: f"{call} of {who} to fail\n{run}")
            if os.path.exists(control):  # there are not so many calls of that name
                os.remove(control)
                continue
            hit += 1
            wait_for(lambda: not run.running or self.now() != before or self.samples.newest()[1] > step + EVERY, 20,
                     lambda: f"it to go on after {call} of {who}\n{run}")
        self.tell(f"{hit} of {len(cases)} calls failed")
        self.assertGreaterEqual(hit, 6)
        self.assert_invariants(run, steps=steps)

    def test_n30_a_disk_that_stays_full_ends_the_job_with_what_was_acknowledged(self):
        run = self.train()
        self.at(run, "step")
        wait_for(self.acknowledged, 20, lambda: f"a checkpoint\n{run}")
        control = self.faults.break_call("write", errno.ENOSPC, always=True)
        run.wait(60)
        newest = self.acknowledged()[-1]
        if run.code != 0:
            self.assertIn("No space left on device", run.err)
            self.assertIn("to go on: hvdlaunch resume /srv/lab/ckpt", run.err)
            self.assertLess(newest, STEPS)
        self.assert_nothing_left()
        os.remove(control)
        if run.code != 0:
            run = self.start("resume", "/srv/lab/ckpt")
            self.wait_for_steps(run, newest + 1)
        self.assert_invariants(run)

    def test_n30_a_small_disk_that_is_really_full(self):
        # Every host has its own, with room for less than it is to keep.
        for host in HOSTS:
            self.lab.output(host, "sh", "-c", "mkdir -p /root/ckpt; mount -t tmpfs -o size=160k none /root/ckpt")
            self.addCleanup(self.lab.output, host, "sh", "-c", "umount /root/ckpt; rm -rf /root/ckpt /run/mount")
        run = self.train("--checkpoint-keep", "2", "--max-restarts", "2", ckpt="/root/ckpt", spares=()).wait(60)
        self.assertIn("No space left on device", run.err)
        if run.code == 0:
            self.samples.check(STEPS, self.reference().sha256)
        else:
            self.assertIn(run.code, (1, 70), str(run))
        for host in HOSTS:
            self.lab.output(host, "rm", "-rf", "/run/mount")
        self.assert_nothing_left()

    def test_n35_a_folder_that_others_see_late_or_stale(self):
        # The first opening of a folder or file of a checkpoint says that the handle is stale, as NFS
        # does where another host replaced it; in an agent, when the next attempt is prepared.
        run = self.train()
        for skip in (0, 1, 3):
            self.at(run, "step")
            if not run.running:
                break
            before, rank = self.now(), self.random.randrange(RANKS)
            control = self.faults.break_call("read", errno.ESTALE, skip, "agent")
            began = time.monotonic()
            kill(run.workers()[rank].pid)
            self.assert_runs_again(before, run, began)
            if os.path.exists(control):
                os.remove(control)
        self.assert_invariants(run)

    def test_n35_a_checkpoint_that_becomes_visible_late_is_not_taken_for_half(self):
        # Where the next attempt looks, the manifest is not there yet.
        run = self.train()
        self.wait_for_steps(run, 3 * EVERY)
        before = self.now()
        newest = sorted(glob.glob(f"{self.ckpt}/step-?????????"))[-1]
        os.rename(f"{newest}/manifest.json", f"{newest}/late")
        kill(run.workers()[self.random.randrange(RANKS)].pid)
        wait_for(lambda: self.now() not in (None, before) or not run.running, 20, lambda: f"it to run again\n{run}")
        if os.path.exists(f"{newest}/late"):
            os.rename(f"{newest}/late", f"{newest}/manifest.json")
        self.assert_code(run.wait(), 0)
        self.samples.check(STEPS, self.reference().sha256)
        self.assert_nothing_left()


if __name__ == "__main__":
    main()
