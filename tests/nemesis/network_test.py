"""Links that are cut, flap, or carry one direction only: N15-N20."""

import time

from faults import Faults
from nemesis import HOSTS, SPARE, STEPS, NemesisCase, is_alive, kill, main, needs_lab, wait_for

# Cuts around the silence limit, in steps of 50 ms.
SWEEP = [round(0.1 + 0.05 * i, 2) for i in range(59)]


@needs_lab
class NetworkTest(NemesisCase):
    def ranks_on(self, host):
        return [p.pid for p in self.lab.processes(host) if "HVD_RANK" in p.environment()]

    def end_deaf_sessions(self, host):
        """sshd waits for a connection that was cut for ever."""
        for p in self.lab.processes(host):
            if p.name == "sshd":
                kill(p.pid)

    def address(self, host):
        return "10.77.0.1" if host == "head" else f"10.77.0.{10 + int(host[1:])}"

    def blackhole(self, host, other):
        """From now on nothing of a host gets to another."""
        self.lab.output(host, "ip", "route", "add", "blackhole", f"{self.address(other)}/32")
        self.addCleanup(self.open_ways, host)

    def open_ways(self, host):
        self.lab.output(host, "sh", "-c", "ip route flush type blackhole")

    def test_n15_a_host_is_cut_off_and_fences_itself(self):
        run = self.train()
        self.at(run, "step")
        host, before, began = self.random.choice(HOSTS), self.now(), time.monotonic()
        old = self.ranks_on(host)
        self.lab("cut", host)
        self.addCleanup(self.lab, "heal", host)
        wait_for(lambda: not any(is_alive(pid) for pid in old), 4, "the ranks of the cut host to be dead")
        self.tell(f"the cut host killed its ranks after {time.monotonic() - began:.2f} s of 1.2 s")
        self.assertIn(self.now(), [before], "ranks run twice")
        self.assert_runs_again(before, run, began, within=2)
        wait_for(lambda: all(p.name == "sshd" for p in self.lab.processes(host)), 10, "the cut host to be clean")
        self.end_deaf_sessions(host)
        self.lab("heal", host)
        self.assert_invariants(run, [f"{host} has not been heard for 2 s", f"{SPARE} takes the ranks of {host}"],
                               attempts=2)

    def test_n16_cuts_of_every_length_around_the_limit(self):
        steps = 11 * 300
        run = self.train("--max-restarts", "1000", "--max-host-failures", "0", heartbeat="1", spares=(),
                         program=self.program(steps, 20, 10))
        self.at(run, "step")
        told, lengths, reached = [], list(SWEEP), 0
        self.random.shuffle(lengths)
        for length in lengths:
            if not run.running:
                run, reached = self.another(run, steps), 0
            host, before = self.random.choice(HOSTS), self.now()
            faults = Faults(self, [host], 1)
            if length < 0.25:
                self.settle(run)
                before = self.now()
            began = time.monotonic()
            faults.cut(run, length)
            longest = time.monotonic() - began  # on a busy machine it takes a while to heal
            step = self.samples.newest()[1]
            lost = length > 1.3  # surely
            # It goes on, in this attempt or another, and never in both.
            wait_for(lambda: not run.running or self.now() != before
                     or not lost and self.samples.newest()[1] > step + 2, 30,
                     lambda: f"it to go on after a cut of {length} s\n{run}")
            if not run.running:
                continue
            told.append((length, self.now() != before))
            # What is sent again may come as long after a cut as the cut was, and the lease is 0.6 s.
            if longest < 0.25:
                self.assertEqual(self.now(), before, f"a cut of {length} s\n{run}")
            # Some progress, so that no pause grows.
            reached = max(reached, step)
            wait_for(lambda: not run.running or self.samples.newest()[1] > reached + 1, 30,
                     lambda: f"progress after a cut of {length} s\n{run}")
        self.finish(run, steps)
        relaunched = sorted(length for length, other in told if other)
        kept = sorted(length for length, other in told if not other)
        self.tell(f"{len(told)} cuts; relaunched from {relaunched[:1]} s on, kept up to {kept[-1:]} s")

    def settle(self, run):
        """What an earlier cut did is over: no other attempt for a while."""
        since, attempt = time.monotonic(), self.now()

        def settled():
            nonlocal since, attempt
            if self.now() != attempt:
                since, attempt = time.monotonic(), self.now()
            return not run.running or time.monotonic() > since + 1.5

        wait_for(settled, 30, lambda: f"it to settle\n{run}")

    def finish(self, run, steps):
        for host in HOSTS:
            self.end_deaf_sessions(host) if not run.running else None
        self.assert_invariants(run, steps=steps)

    def another(self, run, steps):
        self.finish(run, steps)
        self.fresh()
        run = self.train("--max-restarts", "1000", "--max-host-failures", "0", heartbeat="1", spares=(),
                         program=self.program(steps, 20, 10))
        self.at(run, "step")
        return run

    def test_n17_a_link_that_flaps_costs_one_relaunch_at_most(self):
        run = self.train(heartbeat="1", program=self.program(STEPS * 3))
        self.at(run, "step")
        host = self.random.choice(HOSTS)
        for _ in range(20):
            self.lab("cut", host)
            time.sleep(0.2)
            self.lab("heal", host)
            time.sleep(0.3)
        self.assert_invariants(run, attempts=[1, 2], steps=STEPS * 3)

    def test_n18_one_direction_between_two_hosts_is_closed(self):
        self.closed_edge(both=False)

    def test_n19_two_hosts_do_not_reach_each_other(self):
        self.closed_edge(both=True)

    def closed_edge(self, both):
        """Heartbeats stay green; the ranks stall. The edge is named, and one of its hosts, not both,
        is replaced."""
        run = self.train("--stall-timeout", "0.6", "--stall-action", "restart")
        self.at(run, "step")
        one, other = self.random.sample(HOSTS, 2)
        before, began = self.now(), time.monotonic()
        self.blackhole(one, other)
        if both:
            self.blackhole(other, one)
        self.assert_runs_again(before, run, began, within=15)
        run.wait()
        for host in (one, other):
            self.open_ways(host)
        replaced = f"the spare {SPARE} takes the ranks of ({one}|{other})"
        self.assert_invariants(run, ["no progress for", f"({one}|{other}) -> ({one}|{other}) at ", replaced],
                               attempts=range(2, 4))
        self.assertNotIn("has not been heard", run.err)

    def test_n20_control_is_cut_while_data_flows(self):
        run = self.train()
        self.at(run, "step")
        host, before, began = self.random.choice(HOSTS), self.now(), time.monotonic()
        old = self.ranks_on(host)
        self.blackhole(host, "head")
        wait_for(lambda: not any(is_alive(pid) for pid in old), 4, "the lease to end the ranks")
        self.assertEqual(self.now(), before)
        self.assert_runs_again(before, run, began, within=2)
        wait_for(lambda: all(p.name == "sshd" for p in self.lab.processes(host)), 10, "the host to be clean")
        self.end_deaf_sessions(host)
        run.wait()
        self.open_ways(host)
        self.assert_invariants(run, [f"{host} has not been heard for 2 s", f"{SPARE} takes the ranks of {host}"],
                               attempts=range(2, 4))


if __name__ == "__main__":
    main()
