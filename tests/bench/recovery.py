"""recovery.py [--faults N] [--kinds NAME,..] [--csv FILE] [--json]: from a fault to all ranks
running again, on 8 lab hosts with one rank each: so many faults a kind, one after the other in one
job (the launcher's death: a job each).

detected    the launcher decided to stop the attempt, by its event log
running     the last rank has done the first step of the next attempt, by its own clock
gone        no process of the job is left
All of one kernel's CLOCK_BOOTTIME. The raw times go to FILE (build/bench/recovery.csv).

Beside it the peers that tear down at least: from the kill of a rank or an agent to their end."""

import argparse
import csv
import glob
import json
import os
import random
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from common import Report
from harness import BUILD, HVDLAUNCH, LAB, InLab, Lab, Run, committed_steps, descendants, kill, lab_refusal, wait_for

HOSTS = 8
SPARES = 2
TRAINER = os.path.join(BUILD, "tests", "bench", "bench_trainer")
STEP_MS, STATE_KIB, EVERY = 20, 128, 10
PEER_ROUNDS = 5
PEER_LIMIT = 5  # seconds; one that has not ended by then is said to hang


def boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Job:
    """One hvdlaunch of bench_trainer in the lab."""

    def __init__(self, lab, options=(), spares=0, resume=False):
        self.lab = lab
        self.times = f"{lab.shared}/times"
        self.folder = tempfile.mkdtemp(prefix="recovery-")
        names = [f"h{i + 1}" for i in range(HOSTS + spares)]
        with open(f"{lab.state}/hosts/head/root/hosts.toml", "w") as f:
            f.write("[defaults]\nslots = 1\n")
            for number, name in enumerate(names):
                f.write(f'[[host]]\nname = "{name}"\n' + ("spare = true\n" if number >= HOSTS else ""))
        words = ["resume", "/srv/lab/ckpt"] if resume else [
            "-H", "/root/hosts.toml", "--max-restarts", "1000000", "--max-host-failures", "0",
            "--checkpoint-dir", "/srv/lab/ckpt", *options,
            "--", TRAINER, "/srv/lab/times", str(STEP_MS), str(STATE_KIB), str(EVERY)]
        if not resume:
            shutil.rmtree(f"{lab.shared}/ckpt", ignore_errors=True)
            open(self.times, "wb").close()
        self.known = set(glob.glob(self._logs()))
        self.started = boot()
        with open(f"{self.folder}/out", "wb") as out, open(f"{self.folder}/err", "wb") as err:
            command = InLab(lab, "head", [HVDLAUNCH, *words], stdout=out, stderr=err)
        self.run = Run(command, self.folder, lambda host=None: [
            p for h in ([host] if host else lab.hosts) for p in lab.processes(h)])
        self._log = None

    def _logs(self):
        return f"{self.lab.state}/hosts/head/root/.local/state/hvdlaunch/jobs/*/events.jsonl"

    def newest_step(self):
        return max(committed_steps(f"{self.lab.shared}/ckpt"), default=0)

    def started_ranks(self):
        """When each rank had done its first step, by attempt, of those that all ranks have begun."""
        with open(self.times, "rb") as f:
            content = f.read()
        times = struct.unpack(f"{len(content) // 8}q", content[:len(content) // 8 * 8])
        attempts = [times[i:i + HOSTS] for i in range(0, len(times), HOSTS)]
        return {n: [t / 1e9 for t in ranks] for n, ranks in enumerate(attempts) if len(ranks) == HOSTS and all(ranks)}

    def wait_running(self, after=0, seconds=60):
        """The next attempt all of whose ranks run, and when the last of them began to."""
        def all_running():
            if not self.run.running:
                raise AssertionError(f"the job ended\n{self.run}")
            started = self.started_ranks()
            newest = max(started, default=0)
            return newest > after and (newest, max(started[newest]))

        return wait_for(all_running, seconds, lambda: f"an attempt after {after}\n{self.run}")

    def wait_for_agents(self, count):
        wait_for(lambda: len(self.run.agents()) == count, 30, f"{count} agents\n")

    def stops(self):
        """(boot time, reason) of the stops of attempts that were decided since the last call."""
        if self._log is None:
            path = wait_for(lambda: set(glob.glob(self._logs())) - self.known, 10, "the event log").pop()
            self._log = open(path)
            self._offset = json.loads(self._log.readline())["boot"]
            self._rest = ""
        text = self._rest + self._log.read()
        lines = text.split("\n")
        self._rest = lines.pop()
        found = {}
        for line in map(json.loads, lines):
            if line.get("message") == "stop-attempt":
                found.setdefault(line["attempt"], (line["t"] + self._offset, line["reason"]))
        return list(found.values())

    def end(self):
        try:
            self.run.command.end()
            wait_for(lambda: not any(self.lab.processes(h) for h in self.lab.hosts if self.lab.is_on(h)), 30,
                     "the job's end")
        finally:
            if self._log:
                self._log.close()
            shutil.rmtree(self.folder)


class Bench:
    def __init__(self, lab, options):
        self.lab, self.faults = lab, options.faults
        self.random = random.Random(options.seed)
        self.rows = []

    def note(self, kind, **values):
        for what, value in values.items():
            self.rows.append((kind, what, value * 1000))

    def pause(self, job):
        """A random moment after progress was made: else there is a pause before the relaunch."""
        before = job.newest_step()
        wait_for(lambda: job.newest_step() > before, 30, "a new checkpoint")
        time.sleep(self.random.uniform(0, STEP_MS * EVERY / 1000))

    # ---- faults; each returns when it struck, and what the reason must name ----

    def kill_worker(self, job):
        rank, worker = self.random.choice(sorted(job.run.workers().items()))
        struck = boot()
        kill(worker.pid)
        return struck, f"rank {rank} on"

    def stop_worker(self, job):
        rank, worker = self.random.choice(sorted(job.run.workers().items()))
        struck = boot()
        kill(worker.pid, signal.SIGSTOP)
        return struck, f"rank {rank} on"

    def _host_of_a_rank(self, job):
        workers = {p.ppid for p in job.run.workers().values()}
        host = self.random.choice([h for h in job.lab.hosts[1:] if any(
            agent.pid in workers for _, agent in job.run.agents(h))])
        return host, next(agent for _, agent in job.run.agents(host) if agent.pid in workers)

    def kill_agent(self, job):
        host, agent = self._host_of_a_rank(job)
        struck = boot()
        kill(agent.pid)
        return struck, host

    def cut_host(self, job):
        host, _ = self._host_of_a_rank(job)
        struck = boot()
        self.lab("cut", host)
        self.cut = host
        return struck, host

    def heal(self):
        self.lab("heal", self.cut)
        # Its agent has fenced itself by then, and the next fault must not find it half dead.
        wait_for(lambda: not self.lab.processes(self.cut), 10, "the cut host to be clean")

    # ---- measures ----

    def strike(self, kind, fault, options=(), spares=0, after=None):
        """So many faults in one job."""
        job = Job(self.lab, options, spares)
        try:
            attempt, _ = job.wait_running()
            time.sleep(1.2)  # for the event log to be opened
            job.stops()
            for _ in range(self.faults):
                job.wait_for_agents(HOSTS + spares)
                self.pause(job)
                struck, named = fault(job)
                attempt, running = job.wait_running(attempt)
                stops = wait_for(job.stops, 5, "the stop in the event log")
                right = len(stops) == 1 and named in stops[0][1]
                self.note(kind, detected=stops[0][0] - struck, running=running - struck, wrong=0 if right else 0.001)
                if not right:
                    print(f"recovery: {kind}: expected '{named}', was told {stops}", file=sys.stderr)
                if after:
                    after()
        finally:
            job.end()

    def kill_launcher(self, kind):
        """From the launcher's death to the last process's, and from `resume` to the first new step."""
        job = Job(self.lab)
        try:
            attempt, _ = job.wait_running()
            for _ in range(self.faults):
                self.pause(job)
                launcher = job.run.launcher
                ours = [p for h in self.lab.hosts for p in self.lab.processes(h)
                        if p.name in ("hvdlaunch", "hvdkeeper", "bench_trainer") and p.pid != launcher]
                watched = {os.pidfd_open(p.pid): p for p in ours}
                poller = select.poll()
                for fd in watched:
                    poller.register(fd, select.POLLIN)
                struck = boot()
                kill(launcher)
                while watched:
                    ended = poller.poll(20_000)
                    if not ended:
                        raise AssertionError(f"20 s after the launcher there are {list(watched.values())}")
                    gone = boot()
                    for fd, _ in ended:
                        poller.unregister(fd)
                        os.close(fd)
                        del watched[fd]
                survivors = [p for h in self.lab.hosts for p in self.lab.processes(h) if p.name != "sshd"]
                job.run.wait(10)
                folder, job = job, None
                folder.end()
                job = Job(self.lab, resume=True)
                attempt, running = job.wait_running(attempt)
                self.note(kind, gone=gone - struck, survivors=len(survivors) / 1000, resumed=running - job.started)
        finally:
            if job:
                job.end()

    @staticmethod
    def clear(look):
        for p in look():
            if p.name == "sshd":
                continue
            try:
                kill(p.pid)
            except ProcessLookupError:
                pass

    def peer(self, name, argv, agent_name):
        """Milliseconds from the kill of a rank and of an agent to the end of a peer's launcher."""
        for kind, victim in (("worker", "sleep"), ("agent", agent_name), ("launcher", None)):
            for _ in range(PEER_ROUNDS):
                command = InLab(self.lab, "head", argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                on_hosts = lambda: [p for h in self.lab.hosts[1:HOSTS + 1] for p in self.lab.processes(h)]
                ranks = lambda: [p for p in on_hosts() if p.name == "sleep"]
                try:
                    wait_for(lambda: len(ranks()) == HOSTS, 60, f"{name} to start")
                    top = next(p for p in descendants(command._popen.pid))
                    chosen = [p for p in on_hosts() if p.name.startswith(victim)] if victim else [top]
                    struck = boot()
                    kill(self.random.choice(chosen).pid)
                    over = (lambda: not ranks()) if kind == "launcher" else (lambda: command.poll() is not None)
                    while not over() and boot() - struck < PEER_LIMIT:
                        time.sleep(0.001)
                    self.note(f"{name} {kind}", gone=boot() - struck)
                finally:
                    self.clear(on_hosts)
                    command.end()
                    wait_for(lambda: not any(self.lab.processes(h) for h in self.lab.hosts), 30, f"the end of {name}")

    def peers(self):
        hosts = ",".join(f"h{i + 1}" for i in range(HOSTS))
        mpirun = shutil.which("mpirun.openmpi") or "mpirun"
        self.peer("hydra", ["mpiexec.hydra", "-launcher", "ssh", "-hosts", hosts, "-n", str(HOSTS), "sleep", "1000"],
                  "hydra_pmi_proxy")
        self.peer("mpirun", [mpirun, "--allow-run-as-root", "--host", hosts, "--mca", "plm_rsh_args", "-o BatchMode=yes",
                             "-n", str(HOSTS), "sleep", "1000"], "orted")


def measures(bench):
    stall = ("--stall-timeout", "0.5", "--stall-action", "restart")
    quick = ("--heartbeat-timeout", "0.3")
    return {
        "worker": lambda: bench.strike("worker", bench.kill_worker),
        "agent": lambda: bench.strike("agent", bench.kill_agent),
        "agent-spare": lambda: bench.strike("agent-spare", bench.kill_agent, spares=SPARES),
        "cut": lambda: bench.strike("cut", bench.cut_host, quick, SPARES, bench.heal),
        "stopped": lambda: bench.strike("stopped", bench.stop_worker, stall),
        "launcher": lambda: bench.kill_launcher("launcher"),
        "peers": bench.peers,
    }


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def tell(report, rows):
    cases = {}
    for kind, what, value in rows:
        cases.setdefault((kind, what), []).append(value)
    for (kind, what), values in cases.items():
        if what in ("wrong", "survivors"):
            report.value(f"{kind} {what}", sum(values), f"of {len(values)}")
            continue
        report.value(f"{kind} {what} p50", statistics.median(values), "ms")
        report.value(f"{kind} {what} p99", percentile(values, 0.99), f"ms (n = {len(values)}, largest {max(values):.0f})")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench recovery")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--csv", default=os.path.join(BUILD, "bench", "recovery.csv"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = Report("recovery", ["--json"] if options.json else [])
    refusal = lab_refusal()
    if refusal:
        raise SystemExit(f"bench recovery: not run: {refusal}")
    lab = Lab(HOSTS + SPARES)
    bench = Bench(lab, options)
    known = measures(bench)
    try:
        for kind in options.kinds.split(",") if options.kinds else known:
            if kind not in known:
                raise SystemExit(f"bench recovery: there is no kind '{kind}'; there are {', '.join(known)}")
            known[kind]()
    finally:
        lab.down()
        os.makedirs(os.path.dirname(options.csv), exist_ok=True)
        with open(options.csv, "w", newline="") as f:
            csv.writer(f).writerows([("kind", "what", "ms"), *bench.rows])
    tell(report, bench.rows)


main()
