"""The guard of a rank: a signal that comes while it forks reaches the child."""

import signal
import subprocess
import sys

import pytest

FORKS = """
import os, signal, sys, time
from pathlib import Path
from ddp_lab.launch import guard

number = getattr(signal, sys.argv[2])
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), number))  # as from one who stops the child's session
code, stopped = guard.run_guarded(lambda: time.sleep(60), Path(sys.argv[1]), os.getppid())
print(code, stopped)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_that_comes_before_the_child_has_shed_the_guards_handlers_ends_it(tmp_path, name):
    ended = subprocess.run([sys.executable, "-c", FORKS, tmp_path, name], capture_output=True, text=True, timeout=30)
    assert (ended.stdout.split(), ended.stderr) == ([str(-getattr(signal, name)), "False"], "")
