"""Hosts reached over SSH: the agent's way there, what is told of hosts that cannot be used, and
what a launch leaves on them."""

import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from harness import HVDLAUNCH, LabCase, kill, lines_of, main, needs_lab, wait_for

LISTEN = """
import socket, time
s = socket.create_server(("", 2022))
print("listening", flush=True)
kept = []
while True:
    kept.append(s.accept())
"""


@needs_lab
class SshTest(LabCase):
    hosts = 2

    def ssh_folder(self, host):
        return f"{self.lab.state}/hosts/{host}/root/.ssh"

    def read(self, path):
        with open(path) as f:
            return f.read()

    def write_in_place(self, path, text):
        """The file may be mounted: it must stay the same one."""
        with open(path, "w") as f:
            f.write(text)

    def write_on_head(self, name, text):
        path = f"{self.lab.state}/hosts/head/root/{name}"
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        with open(path, "w") as f:
            f.write(text)

    def key_pair(self, name):
        """Makes head's key ~/.ssh/NAME and gives its public half."""
        path = f"{self.ssh_folder('head')}/{name}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        self.addCleanup(lambda: [os.unlink(path), os.unlink(f"{path}.pub")])
        return self.read(f"{path}.pub")

    def sshd(self, host, *options):
        return self.lab.popen(host, "/usr/sbin/sshd", "-D", "-f", f"{self.lab.state}/sshd_config", *options,
                              start_new_session=True)

    def end_sshd(self, server):
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    def refused(self, spec, *words, options=(), seconds=20):
        """Code 69 within the start deadline, with the words, and nothing was started."""
        started = time.monotonic()
        run = self.launch("-H", spec, *options, "--", "touch", "/srv/lab/started")
        self.assert_code(run, 69)
        self.assert_within(started, seconds)
        for word in words:
            self.assertRegex(run.err, word)
        self.assertFalse(os.path.exists(f"{self.lab.shared}/started"))
        return run

    def test_ranks_run_where_they_are_said_to(self):
        run = self.launch("-np", "4", "-H", "h1:2,h2:2", "sh", "-c", "echo $(hostname) $HVD_HOST $HVD_LOCAL_RANK")
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [
            (0, "h1 h1 0"), (1, "h1 h1 1"), (2, "h2 h2 0"), (3, "h2 h2 1")])
        self.assertIn("2@h2: ", run.out)

    def test_a_host_file(self):
        run = self.launch("-H", self.host_file(["h2", "h1"], 1), "hostname")
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "h2"), (1, "h1")])

    def test_user_port_and_address(self):
        with open(f"{self.lab.state}/hosts/head/root/hosts.toml", "w") as f:
            f.write('[[host]]\nname = "first"\naddress = "h1"\nport = 22\nuser = "root"\n')
        run = self.launch("-H", "hosts.toml", "sh", "-c", "hostname; echo $HVD_HOST")
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(0, "h1"), (0, "first")])

    def test_workers_stand_where_the_user_stood(self):
        os.mkdir(f"{self.lab.shared}/a folder")
        run = self.launch("-np", "2", "-H", "h1:1,h2:1", "pwd", cwd="/srv/lab/a folder")
        self.assertEqual(sorted(lines_of(run.out)), [(0, "/srv/lab/a folder"), (1, "/srv/lab/a folder")])

    def test_arguments_and_environment_are_data(self):
        odd = "a'b\"c $(id) `id` \n second ; ü\\"
        run = self.launch("-np", "1", "-H", "h1:1", "-x", f"E2E_ODD={odd}", "sh", "-c",
                          '[ "$1" = "$E2E_ODD" ] && [ ${#1} -gt 20 ] && echo same', "sh", odd)
        self.assertEqual(lines_of(run.out), [(0, "same")], str(run))

    def test_a_secret_is_in_no_argument(self):
        run = self.start("-np", "2", "-H", "h1:1,h2:1", "sh", "-c", "echo up; exec sleep 100",
                         env={"E2E_SECRET": "hunter2-hunter2"})
        wait_for(lambda: run.out.count("up") == 2, 30, lambda: f"both ranks\n{run}")
        arguments = [" ".join(p.argv()) for h in self.lab.hosts for p in self.lab.processes(h)]
        self.assertEqual([a for a in arguments if "hunter2" in a], [])
        kill(run.launcher, 15)
        self.assert_code(run.wait(), 143)

    def test_the_binary_is_pushed_once(self):
        cache = f"{self.lab.state}/hosts/h1/root/.cache/hvdlaunch"
        subprocess.run(["rm", "-rf", cache], check=True)
        self.assert_code(self.launch("-np", "1", "-H", "h1:1", "true"), 0)
        pushed = [os.path.join(f, n) for f, _, names in os.walk(cache) for n in names if n == "hvdlaunch"]
        self.assertEqual(len(pushed), 1, pushed)
        with open(pushed[0], "rb") as a, open(HVDLAUNCH, "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertEqual(os.stat(cache).st_mode & 0o777, 0o700)
        before = os.stat(pushed[0])
        self.assert_code(self.launch("-np", "1", "-H", "h1:1", "true"), 0)
        after = os.stat(pushed[0])
        self.assertEqual((before.st_ino, before.st_mtime), (after.st_ino, after.st_mtime))

    def test_a_talkative_login_does_no_harm(self):
        rc = f"{self.lab.state}/hosts/h1/root/.bashrc"
        with open(rc, "w") as f:
            f.write("echo Welcome to h1; echo 'hvdlaunch is fun' >&2\n")
        self.addCleanup(os.unlink, rc)
        run = self.launch("-np", "1", "-H", "h1:1", "hostname")
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(0, "h1")])
        # Every command complains there, also those that bring the agent.
        with open(rc, "w") as f:
            f.write("export LD_PRELOAD=/no/such/library.so\n")
        shutil.rmtree(f"{self.lab.state}/hosts/h1/root/.cache/hvdlaunch")
        run = self.launch("-np", "1", "-H", "h1:1", "hostname")
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(0, "h1")])

    def test_code_and_cause_come_from_the_far_host(self):
        run = self.launch("-np", "2", "-H", "h1:1,h2:1", "sh", "-c", "[ $HVD_RANK = 0 ] || exit 9; exec sleep 99")
        self.assert_code(run, 9)
        self.assertRegex(run.err, "rank 1.*h2")

    def test_a_killed_launcher_leaves_nothing_on_the_hosts(self):
        run = self.start("-np", "2", "-H", "h1:1,h2:1", "--heartbeat-timeout", "3", "sh", "-c",
                         "trap '' TERM; (setsid sleep 1000 &); echo up; sleep 1000")
        wait_for(lambda: run.out.count("up") == 2, 30, lambda: f"both ranks\n{run}")
        kill(run.launcher)
        self.assert_nothing_left(8)

    # ---- hosts that cannot be used ----

    def test_b2_every_bad_host_is_named_within_the_deadline(self):
        self.refused("h1:1,nosuch.test:1,10.77.0.99:1", "nosuch.test", "10.77.0.99",
                     options=("--start-timeout", "3"), seconds=8)

    def test_c7_a_name_and_an_sshd_that_come_later(self):
        names = f"{self.lab.state}/hosts/head/hosts"
        before = self.replace(names, self.read(names).replace(" h2\n", " later\n"))
        self.refused("h1:1,h2:1", "the name h2 cannot be resolved", "tried again for",
                     options=("--start-timeout", "1"), seconds=6)
        run = self.start("-H", "h1:1,h2:1", "--ssh-port", "2022", "hostname")
        run.wait_for_text("still waiting: cannot reach h2: the name h2 cannot be resolved")
        run.wait_for_text("still waiting: cannot reach h1: .* port 2022: Connection refused")
        self.write_in_place(names, before)
        servers = [self.sshd(host, "-p", "2022") for host in ("h1", "h2")]
        run.wait(30)
        for server in servers:
            self.end_sshd(server)
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "h1"), (1, "h2")])

    def test_b3_every_connection_uses_the_hosts_own_port_user_and_key(self):
        self.replace(f"{self.ssh_folder('h1')}/authorized_keys", self.key_pair("odd"))
        server = self.sshd("h1", "-p", "2022", "-E", "/root/sshd-2022.log")
        self.write_on_head("hosts.toml", '[[host]]\nname = "h1"\nport = 2022\nidentity = "/root/.ssh/odd"\n')
        script = "[ $HVD_ATTEMPT = 2 ] || { kill -9 $PPID; sleep 100; }; echo again"  # the agent
        run = self.launch("-H", "hosts.toml", "--max-restarts", "2", "--checkpoint-dir", "/srv/lab/ckpt", "sh", "-c",
                          script)
        self.end_sshd(server)
        self.assert_code(run, 0)
        log = self.read(f"{self.lab.state}/hosts/h1/root/sshd-2022.log")
        self.assertEqual(log.count("Accepted publickey for root"), 2, str(run))

    def test_b4_every_reason_is_named(self):
        self.key_pair("other")
        public = self.key_pair("command")
        self.replace(f"{self.ssh_folder('h2')}/authorized_keys", f'command="/no/such/program" {public}\n')
        self.write_on_head(".ssh/config", """
Host gone
  HostName 10.77.0.99
Host closed
  HostName h1
  Port 23
Host silent
  HostName h1
  Port 2022
Host stranger
  HostName h1
  HostKeyAlias stranger
Host unwanted
  HostName h2
  IdentityFile ~/.ssh/other
Host empty
  HostName h2
  IdentityFile ~/.ssh/command
Host *
  IdentitiesOnly yes
""")
        listener = self.lab.popen("h1", "/usr/bin/python3", "-c", LISTEN, stdout=subprocess.PIPE)
        self.assertEqual(listener.stdout.readline(), b"listening\n")
        hosts = ["no-name", "gone", "closed", "silent", "stranger", "unwanted", "empty"]
        try:
            run = self.refused(",".join(f"{host}:1" for host in hosts), options=("--start-timeout", "5"), seconds=10)
        finally:
            listener.kill()
            listener.wait()
            listener.stdout.close()
        for host, reason in zip(hosts, (
                "the name no-name cannot be resolved", "No route to host|no answer", "Connection refused",
                "sent no SSH banner", "host key .* is unknown", "refuses the login of user root",
                "127|/no/such/program"), strict=True):
            lines = [line for line in run.err.splitlines() if re.search(f"\\b{host}\\b", line)]
            self.assertTrue([line for line in lines if re.search(reason, line)], f"{host}: {reason}\n{run}")

    def test_b12_any_number_of_hosts_starts_and_ends(self):
        for count in (1, 63, 64, 65, 72, 130, 200):
            hosts = ",".join(f"{address}:1" for address in self.lab.add_addresses("h1", count))
            # With fewer open files than so many connections take, as many systems give to begin with.
            run = self.start("-H", hosts, "sh", "-c", "ulimit -Sn", wrap=["prlimit", "--nofile=256:8192"])
            run.wait(60)
            self.assert_code(run, 0)
            self.assertEqual(len(lines_of(run.out)), count, str(run)[:2000])

    def test_b12_too_few_open_files_are_said_at_once(self):
        hosts = ",".join(f"{address}:1" for address in self.lab.add_addresses("h1", 100))
        run = self.start("-H", hosts, "true", wrap=["prlimit", "--nofile=256:256"]).wait(20)
        self.assert_code(run, 69)
        self.assertIn("100 hosts take 632 open files, and this process may have 256: raise the limit with ulimit -n",
                      run.err)

    def test_b10_a_rank_killed_by_a_signal_is_told_with_its_host(self):
        run = self.launch("-np", "2", "-H", "h1:1,h2:1", "sh", "-c", "[ $HVD_RANK = 0 ] || kill -SEGV $$; sleep 99")
        self.assert_code(run, 139)
        self.assertRegex(run.err, "rank 1 on h2 .*SIGSEGV")

    def test_a_name_that_is_none(self):
        self.refused("h1:1,no-such-host:1", "no-such-host", options=("--start-timeout", "2"))

    def test_a_host_nobody_has(self):
        self.refused("h1:1,10.77.0.99:1", "10.77.0.99", options=("--start-timeout", "5"))

    def test_a_cut_host(self):
        self.lab("cut", "h2")
        self.addCleanup(self.lab, "heal", "h2")
        self.refused("h1:1,h2:1", "h2", options=("--start-timeout", "3"), seconds=10)

    def test_a_closed_port(self):
        self.refused("h1:1,h2:1", "h2|h1", "refused", options=("--ssh-port", "23", "--start-timeout", "2"))

    def test_a_silent_port(self):
        server = self.lab.popen("h2", "/usr/bin/python3", "-c", LISTEN, stdout=subprocess.PIPE)
        self.assertEqual(server.stdout.readline(), b"listening\n")
        try:
            with open(f"{self.lab.state}/hosts/head/root/hosts.toml", "w") as f:
                f.write('[[host]]\nname = "h1"\n[[host]]\nname = "h2"\nport = 2022\n')
            self.refused("hosts.toml", "h2", options=("--start-timeout", "3"), seconds=10)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def test_b1_a_refused_login_is_told_and_no_client_stays(self):
        self.replace(f"{self.ssh_folder('h2')}/authorized_keys", "")
        self.refused("h1:1,h2:1", r"h2 \(10.77.\S+ port 22\) refuses the login of user root: it was offered "
                     r"/root/.ssh/id_ed25519; the server accepts publickey", seconds=10)

    def other_key(self):
        path = self.path("other")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        with open(path + ".pub") as f:
            return " ".join(f.read().split()[:2])

    def test_a_changed_host_key(self):
        known = f"{self.ssh_folder('head')}/known_hosts"
        with open(known) as f:
            lines = f.read().splitlines()
        lines = [line if not line.startswith("h2,") else line.split()[0] + " " + self.other_key()
                 for line in lines]
        self.replace(known, "\n".join(lines) + "\n")
        self.refused("h1:1,h2:1", "h2.*key.*", "changed|differ|another|other|not the")

    def test_an_unknown_host_key(self):
        known = f"{self.ssh_folder('head')}/known_hosts"
        with open(known) as f:
            lines = [line for line in f.read().splitlines() if not line.startswith("h2,")]
        self.replace(known, "\n".join(lines) + "\n")
        self.refused("h1:1,h2:1", "h2.*(key|known)")

    def test_all_bad_hosts_are_named(self):
        for host in ("h1", "h2"):
            self.replace(f"{self.ssh_folder(host)}/authorized_keys", "")
        self.refused("h1:1,h2:1", "h1", "h2")


if __name__ == "__main__":
    main()
