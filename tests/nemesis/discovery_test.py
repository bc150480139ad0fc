"""A discovery script that hangs, fails, lies, changes its mind or vanishes: N36."""

import os
import re
import shlex
import time

from nemesis import HOSTS, RANKS, SPARE, NemesisCase, kill, main, needs_lab, wait_for

SCRIPT = "/srv/lab/discover"
# What a run of the script does, and what is said of it.
TROUBLES = {
    "hangs": ("sleep 1000", "did not end within 5 s and was killed"),
    "fails": ("echo h1:2; echo no cloud today >&2; exit 1", "ended with exit code 1: no cloud today"),
    "prints junk": ("head -c 4000 /dev/urandom", "output of the discovery script:"),
    "prints 10 MB": ("yes h1:2 | head -c 10000000", "printed more than 1 MiB and was killed|is named twice"),
    "prints NULs": (r"printf 'h1:2\0h2:2\n'", "output of the discovery script:1:1: "),
    "prints one twice": ("echo h1:2; echo h2:2; echo h1:2", "host 'h1' is named twice"),
    "prints nothing": ("true", "output of the discovery script"),
}


@needs_lab
class DiscoveryTest(NemesisCase):
    def script(self, text):
        path = f"{self.lab.shared}/discover"
        self.addCleanup(lambda: os.path.exists(path) and os.remove(path))
        with open(f"{path}.new", "w") as f:
            f.write(f"#!/bin/sh\n{text}\n")
        os.chmod(f"{path}.new", 0o755)
        os.rename(f"{path}.new", path)

    def print_hosts(self, hosts):
        self.script("".join(f"echo {h}:2\n" for h in hosts))

    def discovering(self, steps):
        return self.start("-np", str(RANKS), "--host-discovery-script", SCRIPT, "--heartbeat-timeout", "2",
                          "--checkpoint-dir", "/srv/lab/ckpt", *self.program(steps, step_ms=50))

    def test_n36_what_a_script_cannot_tell_changes_nothing(self):
        self.print_hosts(HOSTS)
        steps = 11 * 40
        run = self.discovering(steps)
        self.at(run, "step")
        troubles = list(TROUBLES.items())
        self.random.shuffle(troubles)
        before = self.now()
        for name, (text, told) in troubles:
            self.script(text)
            run.wait_for_text(rf"{told}.*; the hosts stay those that it named before")
            self.assertEqual(self.now(), before, f"{name}\n{run}")
        os.remove(f"{self.lab.shared}/discover")
        run.wait_for_text("exit code 127: .*not found; the hosts stay")
        self.script("sleep 1000")
        # A failure is dealt with while a run hangs.
        self.a_while(2)
        began = time.monotonic()
        kill(run.workers()[self.random.randrange(RANKS)].pid)
        self.assert_runs_again(before, run, began)
        self.print_hosts(HOSTS)
        self.assert_invariants(run, attempts=2, steps=steps)

    def test_n36_a_list_that_flips_causes_no_restart(self):
        # Between three hosts and one; the ranks of two could go to the spares that come and go.
        few, many = shlex.quote("h1:2\n"), shlex.quote("".join(f"{h}:2\n" for h in [*HOSTS, SPARE]))
        self.print_hosts([*HOSTS, SPARE])
        run = self.discovering(11 * 30)
        self.at(run, "step")
        self.script(f"if [ $(($(date +%s) % 2)) = 0 ]; then printf %s {few}; else printf %s {many}; fi")
        self.assert_invariants(run, attempts=1, steps=11 * 30)
        self.assertNotIn("listed", run.err)

    def test_n36_a_host_that_goes_is_replaced_by_one_that_comes(self):
        self.print_hosts(HOSTS)
        steps = 11 * 40
        run = self.discovering(steps)
        self.at(run, "step")
        gone = self.random.choice(HOSTS)
        struck, before = time.monotonic(), self.now()
        self.print_hosts([h for h in HOSTS if h != gone] + [SPARE])
        run.wait_for_text(f"{SPARE} stands by as a spare")
        self.assert_runs_again(before, run, struck, within=6)
        wait_for(lambda: not self.lab.processes(gone), 10, f"{gone} to be let go")
        self.assert_invariants(run, [f"{gone} is not listed any more", f"the spare {SPARE} takes the ranks of {gone}"],
                               attempts=2, steps=steps)
        self.assertEqual(len(re.findall("is not listed any more: stopping", run.err)), 1)


if __name__ == "__main__":
    main()
