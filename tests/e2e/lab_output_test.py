"""Output and input of ranks on other hosts."""

import hashlib
import os

from harness import LabCase, lines_of, main, needs_lab

# Reads in small pieces with pauses, as a program does that works on what it reads.
SLOW_READER = ("import hashlib, os, time\n"
               "digest, size = hashlib.sha256(), 0\n"
               "while piece := os.read(0, 65536):\n"
               "    digest.update(piece); size += len(piece); time.sleep(0.001)\n"
               "print(size, digest.hexdigest())")


@needs_lab
class RemoteInputTest(LabCase):
    hosts = 1

    def test_d6_much_input_reaches_a_slow_remote_reader_exactly(self):
        data = os.urandom(50_000_000)
        with open(self.path("data"), "wb") as f:
            f.write(data)
        with open(self.path("data"), "rb") as file:
            run = self.start("-H", "h1:2", "--stdin", "1", "sh", "-c",
                             f"[ $HVD_RANK = 0 ] || exec /usr/bin/python3 -c '{SLOW_READER}'", stdin=file).wait()
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(1, f"{len(data)} {hashlib.sha256(data).hexdigest()}")])


if __name__ == "__main__":
    main()
