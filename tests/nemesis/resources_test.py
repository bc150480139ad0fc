"""Ports, descriptors and processes that run out, clocks that jump, hosts that take no files or are of another kind: N25, N26, N39."""

import contextlib
import os
import re
import shutil
import subprocess
import time

from nemesis import BUILD, HOSTS, RANKS, SPARE, STEPS, NemesisCase, is_alive, kill, main, needs_lab, plain_build_only, wait_for

SHIM = f"{BUILD}/tests/nemesis/libnemesis_shim.so"

# Takes this many MiB.
EATER = "import sys; held = bytearray(1) * (int(sys.argv[1]) << 20)"
LITTLE_MEMORY = 32 << 20

HOG = """
import os, sys, time
def limit(n):
    with open("/proc/sys/kernel/pid_max", "w") as f:
        f.write(str(n))
limit(301)
pids = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        pids.append(pid)
except OSError:
    print("full", flush=True)
sys.stdin.read()
limit(4194304)
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


@needs_lab
class ResourcesTest(NemesisCase):
    def on_login(self, host, line):
        """The shell of every login of a host begins with this line."""
        path = f"{self.lab.state}/hosts/{host}/root/.bashrc"
        with open(path, "w") as f:
            f.write(line + "\n")
        self.addCleanup(self.lab.output, host, "rm", "-f", "/root/.bashrc")

    def kill_one(self, run):
        before, rank = self.now(), self.random.randrange(RANKS)
        kill(run.workers()[rank].pid)
        self.assert_runs_again(before, run, time.monotonic())

    def ports(self, host, first, last):
        path = "/proc/sys/net/ipv4/ip_local_port_range"
        self.addCleanup(self.lab.output, host, "sh", "-c", f"echo 32768 60999 >{path}")
        self.lab.output(host, "sh", "-c", f"echo {first} {last} >{path}")

    def test_n25_few_ports_are_enough_and_none_is_told(self):
        host = self.random.choice(HOSTS)
        self.ports(host, 50000, 50023)
        run = self.train()
        self.at(run, "step")
        self.kill_one(run)
        self.assert_invariants(run, attempts=2)
        self.fresh()
        # No port at all: others hold them.
        self.ports(host, 51000, 51001)
        taker = self.lab.popen(host, "python3", "-c", "import socket, time\n"
                               "held = [socket.create_server(('', p)) for p in (51000, 51001)]\ntime.sleep(1000)")
        wait_for(lambda: "0.0.0.0:51001" in self.lab.output(host, "ss", "-ltn"), 10, "the ports to be taken")
        run = self.train("--start-timeout", "10", spares=()).wait(60)
        taker.kill()
        taker.wait()
        self.assertIn(run.code, (69, 70), str(run))
        self.assertRegex(run.err, rf"{host}.*(Address already in use|[Cc]annot assign requested address)")
        self.assert_nothing_left()

    def test_n25_few_descriptors_are_enough(self):
        self.on_login(self.random.choice(HOSTS), "ulimit -n 64")
        run = self.train(wrap=["prlimit", "--nofile=64:64"])
        self.at(run, "step")
        self.kill_one(run)
        self.assert_invariants(run, attempts=2)

    def test_n25_no_process_can_be_started(self):
        host = self.random.choice(HOSTS)
        run = self.train()
        self.at(run, "step")
        # All numbers of processes of the host are taken, until its input ends.
        hog = self.lab.popen(host, "python3", "-c", HOG, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(hog.stdout.readline(), b"full\n")
        try:
            kill(run.workers()[2 * HOSTS.index(host) + self.random.randrange(2)].pid)
            run.wait_for_text("cannot start a process: Resource temporarily unavailable")
            self.a_while(1)
        finally:
            hog.stdin.close()
            hog.wait()
            hog.stdout.close()
        self.assert_invariants(run, attempts=range(3, 6))

    @contextlib.contextmanager
    def little_memory(self, host):
        """All that logs in to the host shares LITTLE_MEMORY; gives the folder of its group."""
        try:
            with open("/proc/self/cgroup") as f:
                own = re.search(r":memory:(.*)", f.read())[1].rstrip("/")
            group = f"/sys/fs/cgroup/memory{own}/hvd-{os.path.basename(self.lab.state)}-{host}"
            os.mkdir(group)
        except (TypeError, OSError) as error:
            self.skipTest(f"no memory group can be made: {error}")
        try:
            with open(f"{group}/memory.limit_in_bytes", "w") as f:
                f.write(str(LITTLE_MEMORY))
            with open(f"{group}/cgroup.procs", "w") as f:
                f.write(str(self.lab.listener(host).pid))
            yield group
        finally:
            kill(self.lab.listener(host).pid)
            wait_for(lambda: self.emptied(group), 10, "the group to be empty")
            self.lab.start_sshd(host)

    @staticmethod
    def emptied(group):
        with contextlib.suppress(OSError):
            os.rmdir(group)
        return not os.path.exists(group)

    @plain_build_only("the sanitizers' memory is more than the limit")
    def test_n25_a_rank_that_needs_more_memory_than_its_group_has(self):
        host = self.random.choice(HOSTS)
        with self.little_memory(host):
            run = self.train("--max-restarts", "1", spares=(), program=["python3", "-c", EATER, "100"]).wait(60)
            self.assertIn(run.code, (70, 137), str(run))
            self.assertRegex(run.err, rf"rank \d on {host} was killed by SIGKILL")
            self.assert_nothing_left()

    @plain_build_only("the sanitizers' memory is more than the limit")
    def test_n25_memory_that_runs_out_while_it_trains(self):
        host = self.random.choice(HOSTS)
        with self.little_memory(host):
            run = self.train(program=self.program(3 * STEPS))
            self.at(run, "step")
            before = self.now()
            # Who dies first is not left to the kernel: a rank, the agent, its keeper or the session.
            victim = self.random.choice([p for p in self.lab.processes(host) if p.name != "bash"])
            with open(f"/proc/{victim.pid}/oom_score_adj", "w") as f:
                f.write("1000")
            self.lab.popen("head", "ssh", host, f"exec python3 -c '{EATER}' 1000").wait(20)
            self.tell(f"{victim} ran out of memory")
            self.assertFalse(is_alive(victim.pid))
            self.assert_runs_again(before, run, time.monotonic(), within=5)
            self.assert_invariants(run, attempts=range(2, 6), steps=3 * STEPS)

    @plain_build_only("the sanitizers' library must come first")
    def test_n26_clocks_jump_and_no_two_agree(self):
        # Of one host, time since its boot is another one than the others'; of the rest, the time of day
        # jumps while the job runs.
        far, *jumping = self.random.sample(HOSTS, 3)
        kill(self.lab.listener(far).pid)
        self.addCleanup(self.lab.start_sshd, far)
        self.lab.output(far, "sh", "-c", "unshare -T --fork --monotonic 8000000 --boottime 9000000 /usr/sbin/sshd -f "
                                         f"{self.lab.state}/sshd_config -E /root/sshd.log </dev/null >/dev/null 2>&1")
        self.addCleanup(lambda: kill(self.lab.listener(far).pid))
        for host in jumping:
            self.on_login(host, f"export LD_PRELOAD={SHIM}")
        run = self.train(env={"LD_PRELOAD": SHIM})
        self.at(run, "step")
        offsets = [3600, -3600, 7200, -86400 * 365]
        self.random.shuffle(offsets)
        for host, offset in zip([*jumping, "head"], offsets):
            self.jump(host, offset)
            self.assert_goes_on(run)
        self.kill_one(run)
        for host in [*jumping, "head"]:
            self.jump(host, 0)
        self.assert_invariants(run, attempts=2)

    def jump(self, host, seconds):
        folder = f"{self.lab.shared}/break"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/clock.{host}", "w") as f:
            f.write(f"{seconds}\n")

    def test_n39_a_host_with_a_home_that_takes_nothing_and_tmp_without_execution(self):
        host = self.random.choice(HOSTS)
        # For the login that is: what the lab itself put there stays.
        self.lab.output(host, "sh", "-c", "mkdir -p /root/.cache /tmp/t /run/u; mount -t tmpfs -o ro none "
                                          "/root/.cache; mount -t tmpfs -o noexec none /tmp/t")
        self.on_login(host, "export TMPDIR=/tmp/t XDG_RUNTIME_DIR=/run/u")
        self.addCleanup(self.lab.output, host, "sh", "-c", "umount /root/.cache /tmp/t; rm -rf /run/u /tmp/t "
                                                          "/run/mount; true")
        run = self.train()
        self.at(run, "step")
        self.kill_one(run)
        self.assert_code(run.wait(), 0)
        pushed = self.lab.output(host, "find", "/tmp/t", "/run/u", "-name", "hvdlaunch", "-type", "f")
        self.assertRegex(pushed, "^/run/u/")
        self.lab.output(host, "sh", "-c", "umount /root/.cache /tmp/t; rm -rf /run/u /tmp/t /run/mount /root/.bashrc")
        self.assert_invariants(run, attempts=2)

    def refused(self, host, line, reason):
        """A host that says this at the login holds no ranks: a spare does, or the job is not begun."""
        self.on_login(host, line)
        run = self.train(spares=()).wait(30)
        self.assertIn(run.code, (69, 70), str(run))
        self.assertRegex(run.err, reason)
        self.assert_nothing_left()
        self.fresh()
        run = self.train()
        self.assert_code(run.wait(), 0)
        self.assertRegex(run.err, rf"(?s){reason}.*the spare {SPARE} takes the ranks of {host}")
        os.remove(f"{self.lab.state}/hosts/{host}/root/.bashrc")
        self.assert_invariants(run)
        self.fresh()

    def test_n39_an_agent_of_another_build_is_refused_with_both_builds_named(self):
        host = self.random.choice(HOSTS)
        self.refused(host, "echo hvdlaunch-agent-ready 0123abcd; exit",
                     rf"{host} started an agent of another build \(0123abcd\) than this one \([0-9a-f]+\)")

    def test_n39_a_host_of_another_kind_is_refused(self):
        host = self.random.choice(HOSTS)
        tools = f"{self.lab.shared}/tools"
        os.mkdir(tools)
        self.addCleanup(shutil.rmtree, tools)
        for name, answer in (("uname", "riscv64"), ("getconf", "glibc 2.17")):
            with open(f"{tools}/{name}", "w") as f:
                f.write(f"#!/bin/sh\necho {answer}\n")
            os.chmod(f"{tools}/{name}", 0o755)
        # Nothing of an earlier job is there to run.
        line = "export PATH=/srv/lab/tools:$PATH XDG_CACHE_HOME=/tmp/none"
        self.refused(host, line, rf"cannot run on {host}, which is riscv64")
        os.remove(f"{tools}/uname")
        self.refused(host, line, rf"needs the C library glibc [0-9.]+ or newer, and {host} has glibc 2.17")


if __name__ == "__main__":
    main()
