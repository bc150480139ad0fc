"""The lab keeps its own promises: power off is silent, a cut can be healed, down leaves nothing."""

import os
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Lab, main, needs_lab, wait_for

# Connects to HOST 7000, says "connected", then reports whatever the connection brings.
PEER = """
import socket, sys
s = socket.create_connection((sys.argv[1], 7000), timeout=10)
s.settimeout(None)
print("connected", flush=True)
try:
    print("heard", s.recv(1), flush=True)
except OSError as e:
    print("heard", e, flush=True)
"""
SERVER = """
import socket
s = socket.create_server(("", 7000))
print("listening", flush=True)
kept = []
while True:
    kept.append(s.accept())
"""


def line_of(process):
    return process.stdout.readline().decode().strip()


@needs_lab
class LabTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lab = Lab(2)

    @classmethod
    def tearDownClass(cls):
        cls.lab.down()

    def start(self, host, *argv):
        process = self.lab.popen(host, *argv, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def connect(self):
        """An idle TCP connection from head to h1; the process at head's end of it."""
        server = self.start("h1", "/usr/bin/python3", "-c", SERVER)
        self.assertEqual(line_of(server), "listening")
        peer = self.start("head", "/usr/bin/python3", "-c", PEER, "h1")
        self.assertEqual(line_of(peer), "connected")
        os.set_blocking(peer.stdout.fileno(), False)
        return peer

    def heard(self, peer):
        return peer.stdout.read()

    def test_every_host_is_its_own(self):
        names = {self.lab.output(h, "hostname").strip() for h in ("head", "h1", "h2")}
        self.assertEqual(names, {"head", "h1", "h2"})
        boots = {self.lab.output(h, "cat", "/proc/sys/kernel/random/boot_id") for h in ("h1", "h2")}
        self.assertEqual(len(boots), 2)

    def test_commands_stand_on_their_host(self):
        self.lab.output("h1", "touch", "/root/on-h1")
        process = self.lab.popen("h1", "ls", cwd="/root", stdout=subprocess.PIPE)
        self.assertIn(b"on-h1", process.communicate(timeout=10)[0])

    def test_ssh_reaches_every_host_without_a_question(self):
        for host in ("h1", "h2"):
            text = self.lab.output("head", "ssh", "-o", "BatchMode=yes", host, "hostname")
            self.assertEqual(text.strip(), host)

    def test_an_idle_peer_hears_nothing_of_a_power_off(self):
        peer = self.connect()
        self.lab("kill", "h1")
        self.addCleanup(self.lab, "boot", "h1")
        time.sleep(2)  # silence is the promise: there is no condition to wait for
        self.assertIsNone(self.heard(peer))
        self.assertIsNone(peer.poll())

    def test_an_idle_peer_hears_of_a_crash_at_once(self):
        peer = self.connect()
        self.lab("crash", "h1")
        self.addCleanup(self.lab, "boot", "h1")
        self.assertIn(b"heard", wait_for(lambda: self.heard(peer), 5, "the peer to hear of the end"))

    def test_a_cut_host_is_silent_and_can_be_healed(self):
        peer = self.connect()
        self.lab("cut", "h1")
        self.assertNotEqual(self.ping(), 0)
        self.assertIsNone(self.heard(peer))
        self.lab("heal", "h1")
        wait_for(lambda: self.ping() == 0, 10, "h1 to be reachable again")

    def ping(self):
        probe = ["timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/h1/22"]
        return self.lab.popen("head", *probe, stderr=subprocess.DEVNULL).wait()

    def test_a_booted_host_is_another_boot(self):
        before = self.lab.output("h2", "cat", "/proc/sys/kernel/random/boot_id")
        self.lab("kill", "h2")
        self.lab("boot", "h2")
        after = self.lab.output("h2", "cat", "/proc/sys/kernel/random/boot_id")
        self.assertNotEqual(before, after)
        ssh = self.lab.output("head", "ssh", "-o", "BatchMode=yes", "h2", "hostname")
        self.assertEqual(ssh.strip(), "h2")

    def test_rate_slows_a_link(self):
        self.lab("rate", "h2", "8")
        started = time.monotonic()
        self.lab.output("head", "ssh", "h2", "head -c 2000000 /dev/zero", text=False)
        self.assertGreater(time.monotonic() - started, 1.0)
        self.lab("kill", "h2")
        self.lab("boot", "h2")


@needs_lab
class LabDownTest(unittest.TestCase):
    def test_down_leaves_nothing_and_may_be_repeated(self):
        lab = Lab(2)
        pids = [int(line.split()[1]) for line in lab("ls").splitlines()]
        lab("kill", "h2")
        lab("down")
        self.assertFalse(os.path.exists(lab.state))
        spaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
        self.assertEqual([s for s in spaces if s.startswith(lab.name + "-")], [])
        self.assertEqual([p for p in pids if os.path.exists(f"/proc/{p}")], [])
        lab("down")

    def test_sweep_takes_down_a_lab_whose_owner_is_gone(self):
        owner = subprocess.Popen(["sleep", "1000"])
        lab = Lab(1, owner=owner.pid)
        self.addCleanup(lab.down)
        lab("sweep")
        self.assertTrue(os.path.exists(lab.state))
        owner.kill()
        owner.wait()
        lab("sweep")
        self.assertFalse(os.path.exists(lab.state))


if __name__ == "__main__":
    main()
