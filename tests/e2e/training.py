"""What the tests that train the digits share."""

import os
import re
import time

from harness import TRAIN, Trained, committed_steps, wait_for

STEPS = 120
EVERY = 20


def program(steps=STEPS, every=EVERY, step_ms=0):
    return [TRAIN, "--steps", str(steps), "--checkpoint-every", str(every), "--step-ms", str(step_ms)]


def assert_same_result(test, run, reference, disturbed=True, redone_at_most=EVERY):
    """The launch ended well, with the weights of the undisturbed one, and lost little work."""
    test.assert_code(run, 0)
    trained = Trained(run)
    test.assertEqual(trained.sha256, reference.sha256, str(run))
    test.assertEqual(trained.accuracy, reference.accuracy)
    test.assertEqual(trained.steps, reference.steps)
    if disturbed:
        test.assertGreater(trained.resumed_at, 0, str(run))
        test.assertEqual(trained.resumed_at % EVERY, 0)
        test.assertLessEqual(trained.redone, redone_at_most, str(run))
    else:
        test.assertEqual((trained.resumed_at, trained.redone), (0, 0))
    return trained


def wait_for_checkpoints(run, folder, count=2, seconds=60):
    """Waits until so many steps have been committed in a folder that this process can see, a few
    steps past the last of them."""
    def enough():
        if not run.running:
            raise AssertionError(f"ended before {count} checkpoints\n{run}")
        steps = committed_steps(folder)
        return steps and steps[-1] >= count * EVERY and steps

    return wait_for(enough, seconds, lambda: f"{count} checkpoints in {folder}\n{run}")


def attempts_told(run):
    return re.findall(r"attempt (\d+)", run.err)
