"""run.py [--seed S] [N15 ...]: the catalogue of faults, all of it or these numbers. Prints the seed;
what fails says how to run it again."""

import argparse
import glob
import os
import re
import subprocess
import sys
import time

# Numbers whose tests are named for something else that they show.
ALSO = {"n31": "k1"}

HERE = os.path.dirname(os.path.realpath(__file__))


def main():
    parser = argparse.ArgumentParser(prog="./dev test nemesis")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("numbers", nargs="*", metavar="N15")
    options = parser.parse_args()
    for number in options.numbers:
        if not re.fullmatch(r"[nN]\d+", number):
            parser.error(f"'{number}' is no number of the catalogue, such as N15")
    print(f"nemesis: seed {options.seed}", flush=True)
    environment = dict(os.environ, HVD_NEMESIS_SEED=str(options.seed), SAVES_ALL="1", PYTHONDONTWRITEBYTECODE="1")
    wanted = [f"test_{ALSO.get(number.lower(), number.lower())}_" for number in options.numbers]
    failed, found, started = [], set(), time.monotonic()
    for path in sorted(glob.glob(f"{HERE}/*_test.py")):
        with open(path) as f:
            tests = re.findall(r"def (test_[a-z]\d+_)", f.read())
        if wanted and not set(wanted) & set(tests):
            continue
        found |= set(tests)
        patterns = [word for name in wanted if name in tests for word in ("-k", f"*.{name}*")]
        code = subprocess.run([sys.executable, path, *patterns], env=environment).returncode
        if code not in (0, 77):
            failed.append(os.path.basename(path))
    unknown = [number for number, name in zip(options.numbers, wanted) if name not in found]
    if unknown:
        sys.exit(f"nemesis: the catalogue has no {', '.join(unknown)}")
    print(f"nemesis: seed {options.seed}, {time.monotonic() - started:.0f} s: "
          + (f"failed in {', '.join(failed)}" if failed else "all invariants held"), flush=True)
    sys.exit(bool(failed))


main()
