"""Bad input: one clear sentence, exit code 2, nothing started."""

import os
import unittest

from harness import Case, main


class InputTest(Case):
    def refused(self, *args, words=(), program=True):
        marker = self.path("started")
        run = self.launch(*args, *(["--", "touch", marker] if program else []), timeout=20)
        self.assert_code(run, 2)
        sentences = [line for line in run.err.splitlines() if line.strip()]
        self.assertEqual(len(sentences), 1, str(run))
        self.assertEqual(run.out, "")
        for word in words:
            self.assertIn(word, run.err)
        self.assertFalse(os.path.exists(marker), "the program was started")

    def refused_file(self, text, *words, args=()):
        path = self.write("hosts.toml", text)
        self.refused("-H", path, *args, words=("hosts.toml", *words))

    def test_missing_host_file(self):
        self.refused("-H", self.path("missing.toml"), words=["missing.toml"])
        self.refused("--hostfile", self.path("missing"), words=[self.path("missing")])

    def test_directory_as_host_file(self):
        self.refused("-H", self.dir + "/", words=[self.dir])
        self.refused("--hostfile", self.dir, words=[self.dir])

    def test_pipe_as_host_file(self):
        os.mkfifo(self.path("pipe.toml"))
        self.refused("-H", self.path("pipe.toml"), words=["pipe.toml"])

    def test_a4_unknown_key(self):
        self.refused_file('[[host]]\nname = "localhost"\nslotz = 4\n', "hosts.toml:3:1", "slotz", "slots")

    def test_a4_unknown_key_of_the_job(self):
        self.refused_file('[[host]]\nname = "localhost"\n[job]\ncheckpoint-dri = "/x"\n',
                          "hosts.toml:4:1", "checkpoint-dri", "checkpoint-dir")

    def test_a5_wrong_type(self):
        self.refused_file('[[host]]\nname = "localhost"\nslots = "four"\n', "hosts.toml:3:")
        self.refused_file("[[host]]\nname = 7\n", "hosts.toml:2:")

    def test_a5_no_slots(self):
        self.refused_file('[[host]]\nname = "localhost"\nslots = 0\n', "hosts.toml:3:", "slots")

    def test_j3_more_ranks_than_slots(self):
        path = self.write("hosts.toml", '[[host]]\nname = "localhost"\nslots = 4\n')
        self.refused("-np", "9", "-H", path, words=["9", "4", "localhost"])
        self.refused("-np", "9", "-H", "localhost:4", words=["9", "4"])

    def test_a3_duplicate_host(self):
        self.refused_file('[[host]]\nname = "localhost"\n[[host]]\nname = "localhost"\n',
                          "hosts.toml:3:1", "hosts.toml:1:1", "localhost")
        self.refused("-H", "localhost:1,localhost:2", words=["localhost"])

    def test_a5_broken_toml(self):
        self.refused_file('[[host]\nname = "localhost"\n', "hosts.toml:1:")

    def test_no_host(self):
        self.refused_file("", "host")

    def test_names_that_are_none(self):
        for name in ("-oProxyCommand=x", "a;b", "a b", "$(x)", "a\\nb"):
            self.refused_file(f'[[host]]\nname = "{name}"\n', "hosts.toml:2:")

    def test_a8_unknown_option(self):
        self.refused("--frobnicate", words=["--frobnicate"])
        self.refused("--checkpoint-dri", self.dir, words=["--checkpoint-dri", "--checkpoint-dir"])

    def test_a9_abbreviated_option(self):
        self.refused("--checkpoint-d", self.dir, words=["--checkpoint-d"])

    def test_missing_program(self):
        self.refused("-np", "2", program=False)
        self.refused("-np", "2", "--", program=False)

    def test_numbers(self):
        for number in ("0", "-1", "x", "", "1.5", "0x10", "99999999999999999999"):
            self.refused("-np", number, words=["np"])

    def test_durations(self):
        for duration in ("-1", "soon", "", "5 parsecs"):
            self.refused("--heartbeat-timeout", duration, words=["heartbeat-timeout"])

    def test_option_without_its_value(self):
        self.refused("-np", program=False)

    def test_checkpoint_folder_that_is_a_file(self):
        path = self.write("file", "")
        run = self.launch("-np", "1", "--checkpoint-dir", path, "touch", self.path("started"), timeout=20)
        self.assert_code(run, 2)
        self.assertIn(path, run.err)
        self.assertFalse(os.path.exists(self.path("started")))


if __name__ == "__main__":
    main()
