"""Workers that crash, leave, hang, crawl or run amok: N1-N4, N10-N13, N27, N28."""

import contextlib
import os
import signal
import subprocess
import time

from nemesis import (HOSTS, RANKS, Histories, NemesisCase, Process, is_alive, kill, main, needs_lab, not_run,
                     wait_for)

RESTART = ("--stall-timeout", "0.6", "--stall-action", "restart")


@needs_lab
class WorkersTest(NemesisCase):
    def only(self, rank, script):
        """The program, but in the first attempt one rank runs a script, which has the program as its
        arguments."""
        return ["sh", "-c", f'[ "$HVD_ATTEMPT.$HVD_RANK" != 1.{rank} ] || {{ {script}; }}; exec "$@"', "sh",
                *self.program()]

    def test_n1_a_worker_is_killed(self):
        run = self.train()
        self.at(run, "step")
        before, rank = self.now(), self.random.randrange(RANKS)
        kill(run.workers()[rank].pid)
        self.assert_runs_again(before, run, time.monotonic())
        self.assert_invariants(run, [rf"rank {rank} on h\d was killed by SIGKILL"], attempts=2)

    def test_n1_a_worker_is_killed_while_others_wait_in_a_collective(self):
        run = self.train()
        rank = self.random.randrange(RANKS)
        with self.in_collective(run, spared=[rank]) as workers:
            before, struck = self.now(), time.monotonic()
            kill(workers[rank].pid)
        self.assert_runs_again(before, run, struck)
        self.assert_invariants(run, [rf"rank {rank} on h\d was killed by SIGKILL"], attempts=2)

    def test_n1_a_worker_is_killed_in_every_other_phase(self):
        for phase in ("rendezvous", "persist", "commit", "shutdown"):
            with self.subTest(phase=phase):
                run = self.train()
                self.at(run, phase)
                rank = self.random.randrange(RANKS)
                with contextlib.suppress(KeyError, ProcessLookupError):  # it may be over
                    kill(run.workers()[rank].pid)
                # Who learns of it first in a save or at the end may say it first.
                self.assert_invariants(run, attempts=range(1, 3))
                self.fresh()

    def test_n2_every_end_of_a_worker_is_told_apart(self):
        endings = [(f"kill -{name} $$", f"was killed by SIG{name}") for name in ("SEGV", "ABRT", "BUS", "TERM")]
        endings += [("exit 77", "ended with exit code 77"), ("exit 137", "ended with exit code 137"),
                    ("exit 0", "ended with exit code 0 without hvd_finalize while other ranks ran")]
        for ending, told in endings:
            with self.subTest(ending):
                rank = self.random.randrange(RANKS)
                go = "/srv/lab/marks/go"
                run = self.train(program=self.only(
                    rank, f'"$@" & child=$!; while [ ! -e {go} ]; do sleep 0.02; done; kill -9 $child; {ending}'))
                self.at(run, "step")
                open(f"{self.marks}/go", "w").close()
                self.assert_invariants(run, [rf"rank {rank} on h\d {told}"], attempts=2)
                self.fresh()

    def test_n3_all_workers_of_a_host_and_all_of_the_job_cost_one_relaunch(self):
        for host in (self.random.choice(HOSTS), None):
            with self.subTest(host=host or "all"):
                run = self.train("--max-restarts", "1")
                self.at(run, "step")
                before, struck = self.now(), time.monotonic()
                for rank, worker in run.workers().items():
                    with contextlib.suppress(ProcessLookupError):
                        if host in (None, HOSTS[rank // 2]):
                            kill(worker.pid)
                self.assert_runs_again(before, run, struck)
                self.assert_invariants(run, [rf"rank \d on {host or 'h.'} was killed by SIGKILL"], attempts=2)
                self.fresh()

    def test_n4_a_crash_loop_ends_by_itself_with_pauses_that_grow(self):
        run = self.train(program=["sh", "-c", "exit 9"]).wait(60)
        self.assert_code(run, 9)
        self.assertEqual(self.attempts(run), 3)
        self.assertIn("the same failure 3 times in a row without progress", run.err)
        self.fresh()
        run = self.train("--max-restarts", "4", program=["sh", "-c", "kill -KILL $$"]).wait(60)
        self.assert_code(run, 70)
        self.assertEqual(self.attempts(run), 5)
        starts = {}
        for _, event in Histories(self.home).events:
            if event.get("message") == "start-attempt":
                starts.setdefault(event["attempt"], event["t"])
        pauses = [starts[n + 1] - starts[n] for n in range(1, 5)]
        self.assertLess(pauses[0], 1.5)
        for pause, least in zip(pauses[1:], (0.5, 1, 2)):  # half of 1, 2 and 4 s
            self.assertGreater(pause, least, pauses)
        self.assert_nothing_left()

    def test_n10_a_stopped_worker_is_named_and_does_not_come_back(self):
        run = self.train(*RESTART)
        self.at(run, "step")
        before, rank = self.now(), self.random.randrange(RANKS)
        pid = run.workers()[rank].pid
        kill(pid, signal.SIGSTOP)
        self.assert_runs_again(before, run, time.monotonic(), within=1)
        self.assertFalse(is_alive(pid), "the stopped worker lives beside its successor")
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGCONT)
        self.assert_invariants(run, [rf"no progress for 0\.\d+ s: rank {rank} on h\d is stopped"], attempts=2)

    def test_n11_a_worker_that_spins_without_steps_is_named(self):
        rank = self.random.randrange(RANKS)
        run = self.train(*RESTART, program=self.only(
            rank, '"$@" & child=$!; while [ ! -e /srv/lab/marks/go ]; do sleep 0.02; done; kill -STOP $child; '
                  'while :; do :; done'))
        self.at(run, "step")
        before, struck = self.now(), time.monotonic()
        open(f"{self.marks}/go", "w").close()
        self.assert_runs_again(before, run, struck, within=2)
        self.assert_invariants(run, [rf"no progress for \d\.\d+ s: rank {rank} on h\d"], attempts=2)

    def test_n12_a_slow_worker_is_not_killed(self):
        run = self.train(*RESTART)
        self.at(run, "step")
        worker = run.workers()[self.random.randrange(RANKS)].pid
        for _ in range(25):
            with contextlib.suppress(ProcessLookupError):
                kill(worker, signal.SIGSTOP)
                time.sleep(0.08)
                kill(worker, signal.SIGCONT)
                time.sleep(0.02)
        self.assert_invariants(run, attempts=1)

    def test_n13_a_worker_that_cannot_be_reaped_holds_nobody_up_for_ever(self):
        # Its tracer stands still: the worker can neither go on nor end.
        run = self.train("--failure-grace", "1", *RESTART)
        self.at(run, "step")
        before, rank = self.now(), self.random.randrange(RANKS)
        victim = run.workers()[rank].pid
        tracer = self.trace(victim)
        if tracer is None:
            return not_run(self, "processes cannot be traced here")
        try:
            kill(tracer.pid, signal.SIGSTOP)
            wait_for(lambda: Process(tracer.pid).state == "T", 5, "the tracer to stand still")
            struck = time.monotonic()
            kill(victim)
            self.assert_runs_again(before, run, struck, within=60)
        finally:
            tracer.kill()
            tracer.wait()
        self.assert_invariants(run, attempts=range(2, 4))

    def trace(self, pid):
        tracer = subprocess.Popen(["strace", "-qq", "-e", "trace=none", "-p", str(pid)], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)

        def traced():
            with open(f"/proc/{pid}/status") as f:
                return f"TracerPid:\t{tracer.pid}\n" in f.read() or tracer.poll() is not None

        wait_for(traced, 5, "the tracer")
        return tracer if tracer.poll() is None else None

    def test_n27_what_a_worker_let_loose_dies_with_its_attempt(self):
        # Forked twice, in a session of its own, deaf to TERM and HUP, with no descriptor of ours, and
        # one that forks all the time.
        loose = ("(setsid sh -c 'trap \"\" TERM HUP INT; exec <&- >&- 2>&-; while :; do sleep 1000; done' &); "
                 "(setsid sh -c 'trap \"\" TERM; while :; do (sleep 0.01 &); sleep 0.005; done' >/dev/null 2>&1 &)")
        rank = self.random.randrange(RANKS)
        run = self.train(program=self.only(rank, loose))
        self.at(run, "step")
        host, before = HOSTS[rank // 2], self.now()

        def escaped():
            return [p.pid for p in self.lab.processes(host) if p.environment().get("HVD_RANK") == str(rank)
                    and p.environment()["HVD_ATTEMPT"] == before[1] and p.name != "train_digits"]

        wait_for(lambda: len(escaped()) >= 3, 10, "them to be loose")
        struck = time.monotonic()
        kill(run.workers()[rank].pid)
        wait_for(lambda: not escaped(), 10, lambda: f"all to be dead: {escaped()}")
        self.tell(f"all that was loose is dead {time.monotonic() - struck:.2f} s after the worker")
        self.assert_runs_again(before, run, struck)
        self.assert_invariants(run, [rf"rank {rank} on {host} was killed by SIGKILL"], attempts=2)

    def test_n28_numbers_of_processes_are_used_again_and_nobody_else_is_hit(self):
        host = self.random.choice(HOSTS)
        low = self.lab.output(host, "sh", "-c", "cat /proc/sys/kernel/pid_max; echo 400 >/proc/sys/kernel/pid_max; "
                                                "cat /proc/sys/kernel/pid_max").split()
        with open("/proc/sys/kernel/pid_max") as f:
            if low[-1] != "400" or f.read().strip() == "400":
                return not_run(self, "a PID namespace has no pid_max of its own here")
        # Short-lived strangers by the thousand; each tells of a signal.
        storm = self.lab.popen(host, "sh", "-c", "n=0; while [ ! -e /srv/lab/marks/calm ]; do sh -c : || echo hit $? "
                               ">>/srv/lab/marks/hits; n=$((n+1)); done; echo $n >/srv/lab/marks/storm")
        run = self.train()
        for steps in (20, 45, 70):
            self.wait_for_steps(run, steps)
            before, struck = self.now(), time.monotonic()
            victims = [w for r, w in run.workers().items() if HOSTS[r // 2] == host]
            kill(self.random.choice(victims).pid)
            self.assert_runs_again(before, run, struck)
        run.wait()
        open(f"{self.marks}/calm", "w").close()
        storm.wait(20)
        with open(f"{self.marks}/storm") as f:
            count = int(f.read())
        self.tell(f"{count} strangers among 400 numbers")
        self.assertGreater(count, 400)
        self.assertFalse(os.path.exists(f"{self.marks}/hits"))
        self.lab.output(host, "sh", "-c", f"echo {low[0]} >/proc/sys/kernel/pid_max")
        self.assert_invariants(run, attempts=4)


if __name__ == "__main__":
    main()
