#!/usr/bin/env python3
"""Sets the course up in .venv, then runs its tests: ruff, unit tests, all notebooks, a real browser.

    python3 scripts/test.py                 everything but what is long by nature
    python3 scripts/test.py --fast          without the browser
    python3 scripts/test.py --slow          with what is long by nature
    python3 scripts/test.py -n 0            one test after the other
    python3 scripts/test.py tests/test_setup.py -k port --junitxml report.xml

What is not known here goes on to pytest. Tests that are left out or skipped are listed at the end; with
CI=true in the environment a skip fails unless the test needs a GPU or stands in tests/allowed_skips.txt.

Exit code: 0 fine, 1 a step or test failed, 2 bad usage or a machine that will not do, 130 interrupted.
"""

import _python  # noqa: F401, I001  first: it stops with a line under a Python that cannot read the rest
import argparse
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import _setup
from _setup import ROOT, Stop, say

SIDE_BY_SIDE = 2
"""Processes that run tests. Each starts runs of two ranks and more, so that more would be in each other's way."""

PYTEST = {0: 0, 4: 2}  # pytest's exit codes that do not mean "something failed"; 4: it did not know an option

# Run by the environment's Python: ends the processes that have the mark in their environment, prints each.
SURVIVORS = """
import sys, time, psutil

def marked(mark):
    for process in psutil.process_iter():
        try:
            if process.status() != "zombie" and process.environ().get("DDP_LAB_MARK") == mark:
                yield process
        except psutil.Error:
            pass

limit = time.monotonic() + 3  # what a run may take to end
while (left := list(marked(sys.argv[1]))) and time.monotonic() < limit:
    time.sleep(0.1)
for process in left:
    try:
        print(process.pid, " ".join(process.cmdline())[:200])
        process.kill()
    except psutil.Error:
        pass
"""


def arguments(argv=None):
    """(this command's options, what goes on to pytest)"""
    text = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=text[0], epilog="\n\n".join(text[2:]), allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="test.py [-h] [--fast] [--slow] [anything that pytest knows]")
    parser.add_argument("--fast", action="store_true", help="leave the browser tests out")
    parser.add_argument("--slow", action="store_true", help="add the tests that are long by nature")
    parser.add_argument("-m", dest="marker", metavar="EXPR", help="pytest's, within what the others allow")
    return parser.parse_known_args(argv)


def selects(rest):
    """Whether pytest's arguments name files or folders of tests; if not, it is given all of them.

    Stop for a file of tests that is not there: as "no file is named" it would start all of them.
    """
    takes_value = {"-k", "-p", "-o", "-c", "-W", "-r", "-n", "--junitxml", "--ignore", "--deselect"}
    words = [word for before, word in zip(["", *rest], rest, strict=False) if before not in takes_value]
    found = False
    for word in words:
        path = Path(word.split("::")[0])
        is_file = path.suffix in (".py", ".ipynb")
        if word.startswith("-") or not (is_file or path.is_dir()):
            continue
        if not path.exists():
            raise Stop(f"there is no {path} in {Path.cwd()}. Name a file of tests as it is found from here.", 2)
        found = True
    return found


def pytest_command(options, rest):
    """The one call of pytest."""
    wanted = [f"({options.marker})"] if options.marker else []
    wanted += [] if options.slow else ["not slow"]
    wanted += ["not browser"] if options.fast else []
    tests, side_by_side = [], []
    if not selects(rest):
        tests = [str(ROOT / "tests"), str(ROOT / "notebooks")]
        # The tests wait half of their time, for limits and ends; a file's tests stay together, as does what they share.
        side_by_side = ["-n", str(SIDE_BY_SIDE), "--dist", "loadfile", "--no-loadscope-reorder"]
    return [str(_setup.python()), "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}",
            "--nbmake", "-m", " and ".join(wanted), *side_by_side, *rest, *tests]


def survivors(mark):
    """Lines, one for each process of the tests that still lived; it does not any more."""
    done = subprocess.run([_setup.python(), "-c", SURVIVORS, mark], capture_output=True, text=True)
    return done.stdout.splitlines() + done.stderr.splitlines()[-1:]


def run():
    options, rest = arguments()
    _setup.prepare(extras=["test"])
    ruff = subprocess.run([_setup.python(), "-m", "ruff", "check", "--quiet", ROOT]).returncode
    say("ruff: failed" if ruff else "ruff: fine")
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="ddp-lab-tests-") as home:
        env = {**_setup.environment(), "DDP_LAB_MARK": mark, "DDP_LAB_HOME": f"{home}/runs",
               "DDP_LAB_LEDGER": f"{home}/ledger.jsonl"}
        with subprocess.Popen(pytest_command(options, rest), env=env) as pytest:
            try:
                code = pytest.wait()
            except KeyboardInterrupt:  # pytest has it too, from the terminal, and ends by itself
                pytest.send_signal(2)
                pytest.wait(30)
                raise
            finally:
                left = survivors(mark)
                if left:
                    say("\n    ".join(["\nprocesses of the tests that still lived, now ended:", *left]))
    return max(PYTEST.get(code, 1), bool(ruff or left))


if __name__ == "__main__":
    sys.exit(_setup.main(run))
