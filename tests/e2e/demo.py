"""./dev demo: the main job on this machine, once undisturbed and once with a rank killed half way."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from harness import HVDLAUNCH, RESULT, TRAIN, committed_steps, descendants, kill

RANKS, STEPS, EVERY, STEP_MS = 4, 200, 20, 15
LIMIT = 180  # seconds for one training


def show(text=""):
    print(text, flush=True)


def fail(text):
    show(f"demo: {text}")
    sys.exit(1)


class Training:
    """A hvdlaunch whose output is shown as it comes, and kept."""

    def __init__(self, folder, step_ms):
        command = [HVDLAUNCH, "-np", str(RANKS), "--checkpoint-dir", folder, "--", TRAIN, "--steps", str(STEPS),
                   "--checkpoint-every", str(EVERY), "--step-ms", str(step_ms)]
        show(f"$ {' '.join(command).replace(os.getcwd() + '/', '')}")
        self.deadline = time.monotonic() + LIMIT
        self.folder = folder
        self.lines = []
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace"))
            show("  " + self.lines[-1].rstrip("\n"))

    def check_time(self, what):
        if time.monotonic() > self.deadline:
            self.process.kill()
            fail(f"{what} took longer than {LIMIT} s")

    def kill_rank_at_half_time(self, rank):
        while not any(step >= STEPS // 2 for step in committed_steps(self.folder)):
            if self.process.poll() is not None:
                fail("the training ended before a checkpoint was seen")
            self.check_time("getting half way")
            time.sleep(0.01)
        time.sleep(EVERY / 2 * STEP_MS / 1000)  # some way on, so that there is work to lose
        for p in descendants(self.process.pid):
            if p.environment().get("HVD_RANK") == str(rank) and p.name.startswith("train_digits"):
                kill(p.pid)
                return p.pid
        return fail(f"rank {rank} was not found")

    def result(self):
        while self.process.poll() is None:
            self.check_time("the training")
            time.sleep(0.01)
        self.reader.join(10)
        found = RESULT.findall("".join(self.lines))
        if self.process.returncode != 0 or len(found) != 1:
            fail(f"hvdlaunch ended with {self.process.returncode} and {len(found)} results")
        return found[0]


def undisturbed(folder):
    show(f"1. {RANKS} ranks train a network on handwritten digits, data parallel, undisturbed.")
    training = Training(os.path.join(folder, "undisturbed"), 0)
    return training.result()


def disturbed(folder):
    show()
    show(f"2. The same job, slowed to {STEP_MS} ms a step. Half way one rank is killed with signal 9.")
    training = Training(os.path.join(folder, "disturbed"), STEP_MS)
    pid = training.kill_rank_at_half_time(2)
    show(f"$ kill -9 {pid}     # rank 2, some steps after the checkpoint at step {STEPS // 2}")
    return training.result()


def judge(first, second):
    _, _, _, accuracy, sha256 = first
    _, resumed_at, redone, accuracy_again, sha256_again = second
    if sha256 != sha256_again or accuracy != accuracy_again:
        fail(f"the results differ: {accuracy} {sha256} and {accuracy_again} {sha256_again}")
    if int(resumed_at) == 0:
        fail("the job started over instead of going on from a checkpoint")
    if int(redone) > EVERY:
        fail(f"{redone} steps were redone, more than one checkpoint's worth of {EVERY}")
    show()
    show("What you saw: hvdlaunch noticed the death, stopped the other ranks, and relaunched all four by")
    show(f"itself from the checkpoint at step {resumed_at}; steps that had to be done again: {redone}. The job ended")
    show(f"with the same accuracy ({accuracy}) and, bit for bit, the same weights:")
    show(f"  undisturbed  {sha256}")
    show(f"  killed       {sha256_again}")


def main():
    folder = tempfile.mkdtemp(prefix="hvd-demo-")
    try:
        judge(undisturbed(folder), disturbed(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
