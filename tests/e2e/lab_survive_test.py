"""Jobs that survive their launcher, on hosts reached over SSH: broken connections, cut links, and a
launcher that is killed and comes back."""

import time

from harness import PROGRAMS, PYTHON, LabCase, is_alive, kill, main, needs_lab, wait_for


@needs_lab
class SurviveTest(LabCase):
    hosts = 2

    def launch_surviving(self, *args, survive="60", lines=600, code=0):
        return self.start("-H", "h1:1,h2:1", "--survive", survive, "--heartbeat-timeout", "1", "--failure-grace",
                          "0.3", "--no-prefix", *args, PYTHON, f"{PROGRAMS}/counter.py", str(lines), "0.01",
                          str(code))

    def pids(self, run):
        return {rank: p.pid for rank, p in run.workers().items()}

    def connections(self, host):
        """The sshds of a host that serve a connection."""
        listener = self.lab.listener(host).pid
        return [p for p in self.lab.processes(host) if p.name == "sshd" and p.pid != listener]

    def assert_whole(self, runs, lines):
        shown = [line.split(" ")[0] for run in runs for line in run.out.splitlines()]
        self.assertEqual(set(shown), {f"{rank}:{i}" for rank in (0, 1) for i in range(lines)}, f"{runs[-1]}")
        self.assertEqual(len(shown), 2 * lines)

    def test_a_broken_connection_is_dialled_again_and_the_ranks_go_on(self):
        for transport in ("libssh", "openssh"):
            with self.subTest(transport):
                run = self.launch_surviving("--transport", transport, code=3)
                before = wait_for(lambda: self.pids(run) if len(self.pids(run)) == 2 else None, 30, "ranks")
                run.wait_for_text(r"1:20 of")
                for p in self.connections("h2"):
                    kill(p.pid)
                run.wait_for_text("h2 is connected again")
                self.assertEqual(self.pids(run), before)
                self.assert_code(run.wait(30), 3)
                self.assertIn("its ranks go on", run.err)
                self.assertNotIn("attempt 2", run.err)
                self.assert_whole([run], 600)

    def test_a_link_that_is_cut_for_a_while_costs_nothing(self):
        run = self.launch_surviving(code=3)
        before = wait_for(lambda: self.pids(run) if len(self.pids(run)) == 2 else None, 30, "ranks")
        self.lab("cut", "h2")
        self.addCleanup(self.lab, "heal", "h2")
        run.wait_for_text("h2 has not been heard for 1")
        time.sleep(1)
        self.lab("heal", "h2")
        run.wait_for_text("h2 is connected again", 30)
        self.assertEqual(self.pids(run), before)
        self.assert_code(run.wait(30), 3)
        self.assert_whole([run], 600)
        self.clear_connections()

    def clear_connections(self):
        """Of links that were cut: sshd waits for what never ends."""
        for host in ("h1", "h2"):
            for p in self.connections(host):
                kill(p.pid)

    def test_a_host_is_lost_only_when_its_ranks_are_dead(self):
        run = self.launch_surviving(survive="1.5", lines=3000)
        wait_for(lambda: len(self.pids(run)) == 2, 30, "ranks")
        began = time.monotonic()
        self.lab("cut", "h2")
        self.addCleanup(self.lab, "heal", "h2")
        ranks = lambda: [p for p in self.lab.processes("h2") if "HVD_RANK" in p.environment()]
        time.sleep(1.2)
        self.assertTrue(ranks())
        self.assertTrue(run.running)
        while run.running:
            alive = ranks()
            self.assertFalse(alive and "exit code" in run.err, "the host was given up while its rank ran")
            time.sleep(0.02)
        self.assertGreater(time.monotonic() - began, 1.5 + 0.3 + 0.5)
        self.assert_code(run, 70)
        self.assertFalse(ranks())
        self.lab("heal", "h2")
        self.clear_connections()

    def test_a_killed_launcher_and_the_next_one(self):
        run = self.launch_surviving(code=5)
        before = wait_for(lambda: self.pids(run) if len(self.pids(run)) == 2 else None, 30, "ranks")
        run.wait_for_text(r"1:30 of")
        kill(run.launcher)
        wait_for(lambda: not run.running, 10, "the launcher to be dead")
        time.sleep(0.5)
        # One host's connection stays as it was for sshd: only the agent tells that nobody is there.
        after = self.start("attach")
        after.wait_for_text("goes on, with all its ranks")
        self.assertEqual(self.pids(after), before)
        self.assertTrue(all(is_alive(pid) for pid in before.values()))
        self.assert_code(after.wait(30), 5)
        self.assert_whole([run, after], 600)

    def test_an_agent_that_ends_is_found_out_at_once(self):
        run = self.launch_surviving("--max-restarts", "1", survive="300", lines=150)
        wait_for(lambda: len(self.pids(run)) == 2, 30, "ranks")
        run.wait_for_text(r"1:30 of")
        began = time.monotonic()
        kill(run.agents("h2")[0][1].pid)
        run.wait_for_text("attempt 2 goes on", 10)
        self.assertLess(time.monotonic() - began, 5)
        self.assert_code(run.wait(30), 0)


if __name__ == "__main__":
    main()
