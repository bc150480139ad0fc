"""What must hold of a job whatever was done to it, told from what it leaves behind: the files of
train_digits --samples, the launcher's histories, the checkpoint folder.

    I1  it ran again within a bound             nemesis.py, while it runs
    I2  one attempt only ever commits a step    Histories
    I3  each sample once per epoch              Samples
    I4  the same state on all ranks             Samples, Histories
    I5  nothing is left                         harness.py, and drafts of checkpoints here
    I6  the newest acknowledged checkpoint loads        Histories; nemesis.py resumes it
    I7  the log names the true cause and rank   the case
    I8  exit code and attempts as documented    the case
"""

import glob
import json
import os
import re

IMAGES = 1408
STEPS_PER_EPOCH = 11


class Broken(AssertionError):
    """An invariant does not hold."""


def require(condition, text):
    if not condition:
        raise Broken(text)


class Samples:
    """The files rank-NNNN of a folder: a line for each step that the rank has done. An attempt is
    known by its job and number, since a resumed job may count from 1 again."""

    def __init__(self, folder, ranks):
        self.folder, self.ranks = folder, ranks

    def _path(self, rank):
        return os.path.join(self.folder, f"rank-{rank:04}")

    def newest(self, rank=0):
        """(attempt, step) of the rank's last step, or None before its first."""
        try:
            with open(self._path(rank), "rb") as f:
                f.seek(max(0, os.path.getsize(f.name) - 4096))
                lines = f.read().decode().split("\n")[:-1]
        except FileNotFoundError:
            return None
        # Of the first line only the end may be there.
        words = next((w for w in map(str.split, reversed(lines)) if len(w) == 4 and w[2] != "end"), None)
        return words and ((words[0], words[1]), int(words[2]))

    def _lines(self, rank):
        with open(self._path(rank)) as f:
            for line in f:
                job, attempt, what, detail = line.split()
                yield (job, attempt), what, detail

    def _history(self, rank):
        """What this rank did last of each step: {step: (attempt, images)}, and its last sha256."""
        history, seen, last, sha256 = {}, [], None, None
        for attempt, what, detail in self._lines(rank):
            if not seen or seen[-1] != attempt:
                require(attempt not in seen, f"I2: rank {rank} went on in {attempt} after {seen[-1:]} had begun")
                seen.append(attempt)
                last = None
            if what == "end":
                sha256 = detail
                continue
            step = int(what)
            require(last is None or step == last + 1, f"I3: rank {rank} did step {step} after {last} in {attempt}")
            last = step
            history[step] = (attempt, detail)
        return history, sha256

    def check(self, steps, sha256):
        """I3 and I4, of a job that ended well after so many steps, a whole number of epochs."""
        histories = []
        for rank in range(self.ranks):
            history, end = self._history(rank)
            wrong = sorted(set(history) ^ set(range(steps)))
            require(not wrong, f"I3: of {steps} steps rank {rank} did not do or should not have done {wrong[:9]}")
            require(end == sha256, f"I4: rank {rank} ended with the state {end}, not {sha256}")
            histories.append(history)
        for first in range(0, steps, STEPS_PER_EPOCH):
            used = []
            for step in range(first, first + STEPS_PER_EPOCH):
                attempts = {history[step][0] for history in histories}
                require(len(attempts) == 1, f"I3: step {step} is of {sorted(attempts)}")
                for history in histories:
                    used += history[step][1].split(",")
            require(len(used) == IMAGES and len(set(used)) == IMAGES and
                    set(used) == {str(i) for i in range(IMAGES)},
                    f"I3: the epoch of step {first} used {len(used)} images, {len(set(used))} different ones")


class Histories:
    """events.jsonl of all launches of a home, in order."""

    def __init__(self, home):
        self.folders = sorted(glob.glob(f"{home}/.local/state/hvdlaunch/jobs/*/"), key=os.path.getmtime)
        self.events = [(os.path.basename(os.path.dirname(folder)), event)
                       for folder in self.folders for event in self._events(folder)]

    @staticmethod
    def _events(folder):
        try:
            with open(os.path.join(folder, "events.jsonl")) as f:
                for line in f:
                    if line.endswith("\n"):  # a launcher that was killed may leave half a line
                        yield json.loads(line)
        except FileNotFoundError:
            pass

    def refused(self):
        """Steps whose save failed: their drafts stay until the next attempt or run."""
        said = (re.match(r"the checkpoint of step (\d+) was not saved", event.get("text", ""))
                for _, event in self.events)
        return {int(found[1]) for found in said if found}

    def check(self):
        """I2 and I6: what was acknowledged is what the next attempt goes on from, so that no step is
        committed twice; but for checkpoints that are said to be damaged. Returns the newest
        acknowledged step, or None; I4 on the way: all ranks loaded the same."""
        acknowledged, loaded = [], {}
        for job, event in self.events:
            text = event.get("text", "")
            damaged = re.search(r"checkpoint step-(\d+) (?:is skipped|is set aside|cannot be used)", text)
            if damaged:
                acknowledged = [step for step in acknowledged if step != int(damaged[1])]
            message = event.get("message")
            if message == "save-result" and event["error"] == "":
                step = event["step"]
                # Each host that holds ranks is told.
                require(not acknowledged or step >= acknowledged[-1],
                        f"I2: step {step} was committed after {acknowledged}")
                if step not in acknowledged:
                    acknowledged.append(step)
            elif message == "start-attempt":
                start = event["resume_step"]
                newest = acknowledged[-1] if acknowledged else 0
                # A commit may be done, and not told any more.
                require(start >= newest, f"I6: {event['attempt']} of {job} went on from {start}, behind {newest}")
            elif message == "state-loaded" and not event["error"]:
                key = (job, event["attempt"])
                digest = loaded.setdefault(key, event["digest"])
                require(digest == event["digest"], f"I4: the ranks of {key} loaded different states")
        return acknowledged[-1] if acknowledged else None


def check_no_drafts(folder, refused=()):
    """I5: after a good end no half of a checkpoint is there, but of saves that failed."""
    left = [name for name in os.listdir(folder) if not re.fullmatch(r"step-\d+|job\.toml", name)]
    drafts = [re.fullmatch(r"step-(\d+)\.tmp-\d+", name) for name in left]
    left = [name for name, draft in zip(left, drafts) if not draft or int(draft[1]) not in refused]
    require(not left, f"I5: {folder} holds {left}")
