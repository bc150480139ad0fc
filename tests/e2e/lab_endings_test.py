"""Endings on hosts reached over SSH: codes, Ctrl-Z, links that are down for ever."""

import os
import signal
import time

from harness import HVDLAUNCH, PROGRAMS, PYTHON, LabCase, Process, is_alive, kill, main, needs_lab, wait_for


@needs_lab
class EndingsTest(LabCase):
    hosts = 2

    def on_hosts(self, *args):
        return self.start("-H", "h1:1,h2:1", "--heartbeat-timeout", "2", *args)

    def ranks_on(self, host):
        return [p.pid for p in self.lab.processes(host) if "HVD_RANK" in p.environment()]

    def test_f1_the_codes_of_a_remote_rank(self):
        for script, code in (("exit 0", 0), ("exit 1", 1), ("exit 42", 42), ("exit 255", 255),
                             ("kill -KILL $$", 137), ("kill -ABRT $$", 134), ("exec /etc/hostname", 126)):
            with self.subTest(script):
                last = "" if code == 0 else "exec sleep 100"
                run = self.on_hosts("sh", "-c", f"[ $HVD_RANK = 0 ] || {{ {script}; }}; {last}").wait(30)
                self.assert_code(run, code)
                if code != 0:
                    self.assertEqual(run.err.splitlines()[-1],
                                     f"hvdlaunch: exit code {code}, from rank 1 on h2")
        self.assert_code(self.on_hosts("no-such-program").wait(30), 127)
        self.assert_code(self.start("-H", "h1:1,nowhere:1", "--start-timeout", "2", "true").wait(30), 69)

    def test_ctrl_z_stops_the_ranks_of_all_hosts(self):
        def ranks():
            return [Process(pid) for host in ("h1", "h2") for pid in self.ranks_on(host)]

        folder = self.path("launch")
        os.mkdir(folder)
        script = "(setsid sleep 1000 &); while :; do sleep 0.05; done"
        with open(self.path("err"), "wb") as err:
            shell = self.lab.popen("head", PYTHON, f"{PROGRAMS}/job_control.py", HVDLAUNCH, "-H", "h1:1,h2:1",
                                   "--heartbeat-timeout", "1", "sh", "-c", script, stderr=err,
                                   start_new_session=True)
        launcher = lambda: next((p.pid for p in self.lab.processes("head") if p.name == "hvdlaunch"), None)
        pid = wait_for(launcher, 20, "the launcher")
        wait_for(lambda: len(self.ranks_on("h1")) >= 2 and len(self.ranks_on("h2")) >= 2, 30, "the ranks")
        kill(pid, signal.SIGTSTP)
        wait_for(lambda: Process(pid).state == "T", 10, "the launcher to stand still")
        wait_for(lambda: all(p.still for p in ranks()), 5, lambda: f"the ranks to stand still: {ranks()}")
        time.sleep(2.5)  # more than two silence limits
        self.assertEqual([p for p in ranks() if not p.still], [])
        kill(pid, signal.SIGCONT)
        wait_for(lambda: ranks() and not any(p.state == "T" for p in ranks()), 10, "the ranks to go on")
        time.sleep(1.5)
        self.assertTrue(is_alive(pid))
        kill(pid, signal.SIGINT)
        self.assertEqual(shell.wait(30), 130)

    def test_g4_a_link_that_is_down_for_ever_leaves_nothing(self):
        run = self.on_hosts("--failure-grace", "0.5", "sh", "-c",
                            "trap '' TERM; (setsid sleep 1000 &); while :; do sleep 1; done")
        wait_for(lambda: len(self.ranks_on("h2")) >= 2, 30, lambda: f"the ranks of h2\n{run}")
        self.lab("cut", "h2")
        self.addCleanup(self.lab, "heal", "h2")
        wait_for(lambda: not self.ranks_on("h2"), 10, "h2's ranks to be dead")
        self.assert_code(run.wait(30), 70)
        wait_for(lambda: not self.ranks_on("h1"), 10, "h1's ranks to be dead")
        for p in self.lab.processes("h2"):  # sshd waits for a connection that never ends
            kill(p.pid)


if __name__ == "__main__":
    main()
