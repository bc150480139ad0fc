"""What can go wrong in a lab, one thing each: shared by the cases of the catalogue and by ./dev soak.

A fault is a method that does it to a job that runs and says what it did, as a Struck; None where
there was nothing to do it to. It chooses by the case's random numbers."""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Callable, Optional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "e2e"))
from harness import Process, kill  # noqa: E402

# What becomes of the job.
GOES_ON = "goes on"  # the same attempt
RELAUNCHED = "relaunched"
EITHER = "either"  # what comes first decides
ENDED = "ended"  # the launcher too: it is resumed


@dataclass
class Struck:
    told: str
    cause: str = ""  # how the launcher puts it, a regular expression
    outcome: str = RELAUNCHED
    within: float = 0  # seconds until it is noticed
    heal: Optional[Callable] = None  # after the job went on


class Faults:
    """Of a case with lab, random, samples and ckpt; heartbeat is the job's --heartbeat-timeout."""

    def __init__(self, case, hosts, heartbeat):
        self.case, self.lab, self.random = case, case.lab, case.random
        self.hosts, self.heartbeat = hosts, heartbeat

    # ---- choosing ----

    def host(self, run=None):
        """A host that is on; with a run, one that holds ranks."""
        on = [h for h in self.hosts if self.lab.is_on(h)]
        if run:
            on = [h for h in on if self.ranks_on(h)]
        return self.random.choice(on) if on else None

    def ranks_on(self, host):
        """Main processes of the ranks of a host, by rank."""
        found = {}
        for p in self.lab.processes(host):
            environment = p.environment()
            if "HVD_RANK" in environment:
                found.setdefault(int(environment["HVD_RANK"]), p.pid)
        return found

    def rank(self, run):
        workers = run.workers()
        if not workers:
            return None, None
        rank = self.random.choice(sorted(workers))
        return rank, workers[rank].pid

    @staticmethod
    def signal(pid, number):
        """False if the process is gone."""
        try:
            kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    # ---- workers ----

    def end_worker(self, run, number):
        rank, pid = self.rank(run)
        if pid is None or not self.signal(pid, number):
            return None
        return Struck(f"rank {rank} got {number.name}", rf"rank {rank} on h\d was killed by {number.name}")

    def kill_worker(self, run):
        return self.end_worker(run, signal.SIGKILL)

    def crash_worker(self, run):
        return self.end_worker(run, self.random.choice([signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS]))

    def stop_worker(self, run):
        rank, pid = self.rank(run)
        if pid is None or not self.signal(pid, signal.SIGSTOP):
            return None
        # In a save it is given ten times the limit.
        return Struck(f"rank {rank} stopped", rf"rank {rank} on h\d is stopped", within=9,
                      heal=lambda: self.signal(pid, signal.SIGCONT))

    def kill_host_workers(self, run):
        host = self.host(run)
        ranks = host and self.ranks_on(host)
        if not ranks or not any([self.signal(pid, signal.SIGKILL) for pid in ranks.values()]):
            return None
        return Struck(f"all ranks of {host} killed", rf"rank \d on {host} was killed by SIGKILL")

    def kill_all_workers(self, run):
        workers = run.workers()
        if not workers or not any([self.signal(p.pid, signal.SIGKILL) for p in workers.values()]):
            return None
        return Struck("all ranks killed", r"rank \d on h\d was killed by SIGKILL")

    def slow_worker(self, run):
        """One rank that runs a fifth of the time: slow is not dead."""
        rank, pid = self.rank(run)
        if pid is None:
            return None
        for _ in range(self.random.randint(3, 8)):
            self.signal(pid, signal.SIGSTOP)
            time.sleep(0.08)
            self.signal(pid, signal.SIGCONT)
            time.sleep(0.02)
        return Struck(f"rank {rank} slowed", outcome=GOES_ON)

    # ---- agents and the launcher ----

    def end_agent(self, run, number, part):
        host = self.host(run)
        pairs = host and run.agents(host)
        if not pairs or not self.signal(pairs[0][part].pid, number):
            return None
        pid, name = pairs[0][part].pid, ("keeper", "agent")[part]
        return Struck(f"the {name} of {host} got {number.name}", rf"{host}",
                      within=self.heartbeat * (number == signal.SIGSTOP),
                      heal=lambda: self.signal(pid, signal.SIGCONT))

    def kill_agent(self, run):
        return self.end_agent(run, signal.SIGKILL, 1)

    def stop_agent(self, run):
        return self.end_agent(run, signal.SIGSTOP, 1)

    def kill_keeper(self, run):
        return self.end_agent(run, signal.SIGKILL, 0)

    def sessions(self, host):
        """sshd's processes for the connections of a host."""
        return [p.pid for p in self.lab.processes(host) if p.name == "sshd"]

    def kill_session(self, run):
        """The connection breaks; the machine is there."""
        host = self.host(run)
        if not host or not any([self.signal(pid, signal.SIGKILL) for pid in self.sessions(host)]):
            return None
        return Struck(f"the connection of {host} killed", rf"{host}", within=self.heartbeat)

    def lose_sshd(self, run):
        """sshd is gone when the agent is to be started again: another host, or waiting for it."""
        host = self.host(run)
        pairs = host and run.agents(host)
        listener = host and self.lab.listener(host)
        if not pairs or listener is None:
            return None
        kill(listener.pid)
        if not self.signal(pairs[0][1].pid, signal.SIGKILL):
            self.lab.start_sshd(host)
            return None
        time.sleep(self.random.uniform(0.2, 0.6))
        self.lab.start_sshd(host)
        return Struck(f"sshd of {host} away, its agent killed", rf"{host}", within=3)

    def end_launcher(self, run, number):
        if not self.signal(run.launcher, number):
            return None
        return Struck(f"launcher got {number.name}", outcome=ENDED)

    def kill_launcher(self, run):
        return self.end_launcher(run, signal.SIGKILL)

    def interrupt_launcher(self, run):
        return self.end_launcher(run, self.random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))

    def wake_launcher(self, pid):
        # nsenter stops with its child.
        for one in (Process(pid).ppid, pid):
            self.signal(one, signal.SIGCONT)

    def stop_launcher(self, run):
        """Shorter than the lease, with room for a busy machine."""
        pid = run.launcher
        self.signal(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.05, 0.3) * self.heartbeat)
        self.wake_launcher(pid)
        return Struck("launcher stopped for a moment", outcome=GOES_ON)

    # ---- hosts and the network ----

    def power_off(self, run):
        host = self.host(run)
        if not host:
            return None
        self.lab("kill", host)
        return Struck(f"{host} powered off", rf"{host}", within=self.heartbeat,
                      heal=lambda: self.lab("boot", host))

    def crash_host(self, run):
        host = self.host(run)
        if not host:
            return None
        self.lab("crash", host)
        return Struck(f"{host} crashed", rf"{host}", within=self.heartbeat, heal=lambda: self.lab("boot", host))

    def cut(self, run, seconds):
        host = self.host(run)
        if not host:
            return None
        self.lab("cut", host)
        time.sleep(seconds)
        self.lab("heal", host)
        return host

    def short_cut(self, run):
        seconds = self.random.uniform(0.05, 0.25) * self.heartbeat
        host = self.cut(run, seconds)
        return host and Struck(f"{host} cut for {seconds:.2f} s", outcome=GOES_ON)

    def long_cut(self, run):
        """Longer than the silence limit."""
        seconds = self.random.uniform(1.2, 1.8) * self.heartbeat
        host = self.cut(run, seconds)
        return host and Struck(f"{host} cut for {seconds:.2f} s", rf"{host}", within=self.heartbeat)

    def middling_cut(self, run):
        """About as long as the lease and the silence limit."""
        seconds = self.random.uniform(0.5, 1.1) * self.heartbeat
        host = self.cut(run, seconds)
        return host and Struck(f"{host} cut for {seconds:.2f} s", outcome=EITHER, within=self.heartbeat)

    def slow_link(self, run):
        host = self.host(run)
        if not host:
            return None
        self.lab("rate", host, "20")
        time.sleep(self.random.uniform(0.3, 0.8))
        self.full_speed(host)
        return Struck(f"{host} on a slow link", outcome=GOES_ON)

    def full_speed(self, host):
        for space, device in ((f"{self.lab.name}-sw", f"v-{host}"), (f"{self.lab.name}-{host}", "eth0")):
            subprocess.run(["ip", "netns", "exec", space, "tc", "qdisc", "del", "dev", device, "root"],
                           stderr=subprocess.DEVNULL)

    # ---- storage ----

    def break_call(self, call, errno, skip=0, who="", always=False):
        """The shim's next call of this name on the checkpoint folder fails (shim.cc)."""
        folder = f"{self.lab.shared}/break"
        os.makedirs(folder, exist_ok=True)
        name = f"{folder}/{call}" + (f".{who}" if who else "")
        with open(name + "~", "w") as f:
            f.write(f"{errno} {skip} {int(always)}\n")
        os.rename(name + "~", name)
        return name

    def fail_save(self, run):
        import errno as e
        call = self.random.choice(["fsync", "write", "open", "rename", "close"])
        number = self.random.choice([e.EIO, e.ENOSPC, e.EDQUOT, e.EROFS])
        control = self.break_call(call, number, self.random.randint(0, 2))
        deadline = time.monotonic() + 5
        while os.path.exists(control) and time.monotonic() < deadline:
            time.sleep(0.005)
        if os.path.exists(control):  # nobody came by
            with contextlib.suppress(FileNotFoundError):
                os.remove(control)
            return None
        return Struck(f"{call} in a save failed with {e.errorcode[number]}", outcome=EITHER)

    def checkpoints(self):
        """Committed folders, oldest first."""
        return [f for f in sorted(glob.glob(f"{self.case.ckpt}/step-*"))
                if os.path.basename(f)[5:].isdigit() and os.path.exists(f"{f}/manifest.json")]

    def corrupt_newest(self, run):
        """Damages a shard of the newest checkpoint, and kills a rank: the one before serves."""
        if len(self.checkpoints()) < 2:
            return None
        newest = self.checkpoints()[-1]
        try:
            shard = self.random.choice(sorted(glob.glob(f"{newest}/rank-*")))
            with open(shard, "r+b") as f:
                place = self.random.randrange(os.path.getsize(shard))
                f.seek(place)
                byte = f.read(1)[0]
                f.seek(place)
                f.write(bytes([byte ^ (1 << self.random.randrange(8))]))
        except (IndexError, FileNotFoundError):  # pruned meanwhile
            return None
        # A newer one may have been committed meanwhile, so nothing need be said of this.
        struck = self.kill_worker(run)
        if struck is None:
            return None
        struck.told = f"{os.path.basename(newest)} damaged, {struck.told}"
        return struck

    # ---- two at once ----

    SINGLE = ("kill_worker", "crash_worker", "stop_worker", "kill_host_workers", "kill_agent", "kill_keeper",
              "stop_agent", "kill_session", "power_off", "long_cut", "middling_cut")

    def two(self, run):
        """Two within half a second; the second may come in the recovery from the first."""
        first = getattr(self, self.random.choice(self.SINGLE))(run)
        if first is None:
            return None
        time.sleep(self.random.uniform(0, 0.5))
        second = getattr(self, self.random.choice(self.SINGLE))(run)
        if second is None:
            return first
        heals = [s.heal for s in (first, second) if s.heal]
        return Struck(f"{first.told}; {second.told}", first.cause if first.outcome == RELAUNCHED else "",
                      first.outcome if first.outcome == RELAUNCHED else second.outcome,
                      first.within + second.within, lambda: [heal() for heal in heals])
