"""Hosts as they really are: their names, order and identity, what their logins give the ranks, and
the GPUs they have."""

import os
import signal

from harness import HVDLAUNCH, PYTHON, LabCase, kill, lines_of, main, needs_lab, processes

# A /dev of this host's own with two GPUs in it, as their device files tell.
TWO_GPUS = """
set -e
mkdir /run/dev
mount -t tmpfs dev /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /run/dev
ln -s /proc/self/fd /run/dev/fd
mkdir /run/dev/pts /run/dev/shm
touch /run/dev/nvidiactl /run/dev/nvidia0 /run/dev/nvidia1
mount --bind /dev/pts /run/dev/pts
mount --bind /dev/shm /run/dev/shm
mount --move /run/dev /dev
rmdir /run/dev
"""


@needs_lab
class HostsTest(LabCase):
    hosts = 2

    def append(self, path, text):
        """Adds to a file of a host for this test."""
        with open(path) as f:
            before = f.read()
        self.replace(path, before + text)

    def name(self, name, address):
        """Gives an address one more name, on head, with a known host key."""
        with open(f"{self.lab.state}/hostkey.pub") as f:
            key = " ".join(f.read().split()[:2])
        self.append(f"{self.lab.state}/hosts/head/root/.ssh/known_hosts", f"{name} {key}\n")
        if address:
            self.append(f"{self.lab.state}/hosts/head/hosts", f"{address} {name}\n")

    def write_on(self, host, path, text):
        with open(f"{self.lab.state}/hosts/{host}{path}", "w") as f:
            f.write(text)

    def test_a2_a_name_is_never_shortened(self):
        self.name("w.one.test", "10.77.0.11")
        self.name("w.two.test", "10.77.0.12")
        run = self.launch("-H", "w.one.test:1,w.two.test:1", "hostname")
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "h1"), (1, "h2")])
        self.assertNotIn("one machine", run.err)

    def test_a2_two_names_of_one_machine_are_reported(self):
        run = self.launch("-H", "h1:1,10.77.0.11:1,h2:1", "hostname")
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "h1"), (1, "h1"), (2, "h2")])
        self.assertIn("h1 and 10.77.0.11 are one machine", run.err)

    def test_a6_hosts_by_ipv6_addresses(self):
        for host, number in (("head", 1), ("h1", 11), ("h2", 12)):
            self.lab.output(host, "ip", "-6", "addr", "add", f"fd00:77::{number}/64", "dev", "eth0", "nodad")
            self.addCleanup(self.lab.output, host, "ip", "-6", "addr", "del", f"fd00:77::{number}/64", "dev", "eth0")
        self.name("fd00:77::11", None)
        self.name("fd00:77::12", None)
        script = "echo $(hostname) $MASTER_ADDR"
        run = self.launch("-H", "[fd00:77::11]:1,[fd00:77::12]:1", "sh", "-c", script)
        self.assert_code(run, 0)
        self.assertEqual(sorted(line for _, line in lines_of(run.out.replace("fd00:77::1", "v6-"))),
                         ["h1 v6-1", "h2 v6-1"])
        self.write_on("head", "/root/hosts.toml", '[[host]]\nname = "h2"\naddress = "fd00:77::12"\n')
        self.assertEqual(lines_of(self.launch("-H", "hosts.toml", "hostname").out), [(0, "h2")])

    def test_d1_a_virtual_environment_is_the_one_of_the_launcher(self):
        for host in ("head", "h1"):
            self.lab.output(host, PYTHON, "-m", "venv", "--without-pip", "/root/venv")
            self.addCleanup(self.lab.output, host, "rm", "-rf", "/root/venv")
        active = {"VIRTUAL_ENV": "/root/venv", "PATH": "/root/venv/bin:/usr/bin:/bin"}
        run = self.launch("-H", "h1:1", "python3", "-c", "import sys; print(sys.prefix)", env=active)
        self.assertEqual(lines_of(run.out), [(0, "/root/venv")], str(run))
        # A host that lacks it says so and does not run another Python.
        run = self.launch("-H", "h1:1,h2:1", "python3", "-c", "pass", env=active)
        self.assert_code(run, 127)
        self.assertRegex(run.err, "rank 1 on h2 could not start: .*/root/venv/bin/python3")

    def test_d5_no_value_is_in_a_command_line_or_a_log(self):
        secret = f"s3cr3t-{os.getpid()}"
        run = self.start("-H", "h1:1,h2:1", "-v", "-x", "MYTOKEN", "sleep", "1000", env={"MYTOKEN": secret})
        for worker in run.wait_for_workers(2).values():
            self.assertEqual(worker.environment()["MYTOKEN"], secret)
        self.assertEqual([p for p in processes().values() if secret in " ".join(p.argv())], [])
        kill(run.launcher, signal.SIGTERM)
        self.assert_code(run.wait(), 143)
        self.assertNotIn(secret, run.err + run.out)

    def test_j1_ranks_follow_the_list_wherever_it_is_typed(self):
        for host in ("head", "h1", "h2"):
            out = self.lab.output(host, HVDLAUNCH, "-H", "h2:2,h1:2", "hostname")
            self.assertEqual(sorted(lines_of(out)), [(0, "h2"), (1, "h2"), (2, "h1"), (3, "h1")], host)

    def test_j4_a_host_has_its_own_view_of_gpus(self):
        self.write_on("head", "/root/hosts.toml",
                      '[[host]]\nname = "h1"\ngpus = [2, "GPU-abc"]\n[[host]]\nname = "h2"\n')
        script = "echo ${CUDA_VISIBLE_DEVICES-unset} ${HVD_GPU-none}"
        here = {"CUDA_VISIBLE_DEVICES": "7"}  # the launcher's, and nobody else's
        run = self.launch("-H", "hosts.toml", "sh", "-c", script, env=here)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "2,GPU-abc 2"), (1, "2,GPU-abc GPU-abc"), (2, "unset none")])
        self.write_on("head", "/root/hosts.toml", '[[host]]\nname = "h1"\ngpus = [2, "GPU-abc"]\n')
        run = self.launch("-H", "hosts.toml", "--gpus-per-rank", "1", "sh", "-c", script)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "2 2"), (1, "GPU-abc GPU-abc")])
        run = self.launch("-np", "3", "-H", "hosts.toml", "--oversubscribe", "--gpus-per-rank", "1", "true")
        self.assert_code(run, 2)
        self.assertIn("h1: 3 ranks with 1 GPU each do not fit its 2 GPUs", run.err)

    def test_j5_two_ranks_do_not_share_a_gpu_unasked(self):
        self.lab.output("h2", "sh", "-c", TWO_GPUS)
        self.addCleanup(self.lab.output, "h2", "sh", "-c", "umount -R /dev; rm -rf /run/mount")
        marker = "/srv/lab/started"
        run = self.launch("-H", "h1:3,h2:3", "touch", marker)
        self.assert_code(run, 2)
        self.assertIn("h2: 3 slots, 2 GPUs", run.err)
        self.assertNotIn("h1:", run.err)
        self.assertFalse(os.path.exists(f"{self.lab.shared}/started"))
        script = 'echo "<${CUDA_VISIBLE_DEVICES-unset}> ${HVD_GPU-none}"'
        for options, seen in ((["--oversubscribe"], ["<unset> 0", "<unset> 1", "<unset> none"]),
                              (["--gpus-per-rank", "0"], ["<> none"] * 3)):
            run = self.launch("-H", "h2:3", *options, "sh", "-c", script)
            self.assertEqual(sorted(line for _, line in lines_of(run.out)), sorted(seen), str(run))
        self.assert_code(self.launch("-H", "h2:2", "true"), 0)

    def test_slots_are_asked_of_a_host_that_gives_none(self):
        cores = len(os.sched_getaffinity(0))
        self.lab.output("h2", "sh", "-c", TWO_GPUS)
        self.addCleanup(self.lab.output, "h2", "sh", "-c", "umount -R /dev; rm -rf /run/mount")
        run = self.launch("-H", "h1:auto,h2:auto", "hostname")
        self.assert_code(run, 0)
        self.assertEqual(sorted(line for _, line in lines_of(run.out)), ["h1"] * cores + ["h2"] * 2)
        plan = self.launch("-H", "h1:auto", "--dry-run", "hostname")
        self.assertEqual(len(plan.out.splitlines()), 1 + cores, str(plan))
        self.assert_code(self.launch("-H", "h1:auto,h9:auto", "--start-timeout", "3", "true"), 69)

    def test_j6_the_local_rank_is_the_plan_s_and_not_a_matter_of_names(self):
        script = "hostname rank$HVD_RANK; echo $(hostname) $LOCAL_RANK $HVD_LOCAL_SIZE"
        run = self.launch("-H", "h1:2,h2:2", "unshare", "--uts", "sh", "-c", script)
        self.assertEqual(sorted(lines_of(run.out)), [
            (0, "rank0 0 2"), (1, "rank1 1 2"), (2, "rank2 0 2"), (3, "rank3 1 2")], str(run))


if __name__ == "__main__":
    main()
