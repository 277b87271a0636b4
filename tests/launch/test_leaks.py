"""Many runs in one process leave nothing in it, and no more in its folders than is kept on purpose."""

import getpass
import json
import os
import secrets
import subprocess
import sys

import pytest
from kernels import MARK, marked

from ddp_lab.launch import folders

FIRST = 6
"""Runs before the first look: by then everything is imported and every cache is filled."""

ARENA = 2**20
"""Bytes by which Python's allocator grows: the least that resident memory can grow by in one step."""

# Starts runs as a kernel does and reports on itself after FIRST of them and after all. Every third run fails and
# every third is stopped by a clock, as the paths of failure leak first. The rank needs no torch; torchrun does.
RUNS = """
import gc, json, sys, time
import psutil
import ddp_lab as lab
from ddp_lab.launch import folders

first, kept, kinds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
folders.KEPT = kept
me = psutil.Process()

def state():
    gc.collect()
    (server,) = me.children(recursive=True)
    limit = time.monotonic() + 30
    while server.status() != psutil.STATUS_SLEEPING:  # it puts its memory in order without a pause, and then waits
        assert time.monotonic() < limit, "the server never waits"
        time.sleep(0.01)
    return {"memory": me.memory_info().rss, "objects": len(gc.get_objects()), "descriptors": me.num_fds(),
            "threads": me.num_threads(), "server": server.pid, "descriptors of the server": server.num_fds(),
            "threads of the server": server.num_threads(), "memory of the server": server.memory_info().rss}

reports = []
for i, kind in enumerate(kinds):
    how = {"check": False, "show": "none", "timeout": 0.5 if i % 3 == 2 and kind == "command" else 60}
    if kind == "command":
        run = lab.command("python", "script.py", str(i % 3), **how)
    else:
        run = lab.torchrun("script.py", str(i % 2), warm=kind == "warm", **how)
    assert run.ok == ((i % 3 if kind == "command" else i % 2) == 0), run.error
    if i + 1 in (first, len(kinds)):
        reports.append(state())
print("\\n" + json.dumps(reports), flush=True)
sys.stdin.read()  # stay, to be looked at from outside
"""

SCRIPT = """
import sys, time

print("here")
time.sleep(600 if sys.argv[1] == "2" else 0)
sys.exit(int(sys.argv[1]))
"""


# Commands and torchrun share all but the agent's work, and a cold torchrun takes seconds. Each is among the FIRST.
FEW = ["command"] * 3 + ["warm"] * 2 + ["cold"] + ["command"] * 6 + ["warm"] * 6 + ["cold", "command"]


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        pytest.param(FEW, 8, id="20"),
        pytest.param(["warm"] * 200, folders.KEPT, id="200 warm", marks=pytest.mark.slow),
        pytest.param(["warm"] + ["cold"] * 199, folders.KEPT, id="200 cold", marks=pytest.mark.slow),
    ],
)
def test_runs_leave_nothing_behind(kinds, kept, tmp_path):
    for folder in ("home", "temporary"):
        (tmp_path / folder).mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "runs.py").write_text(RUNS)
    mark = secrets.token_hex(8)
    env = {**os.environ, MARK: mark, "DDP_LAB_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    env.pop("DDP_LAB_LEDGER", None)
    command = [sys.executable, "runs.py", str(FIRST), str(kept), *kinds]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=-1, stdout=-1, text=True) as process:
        try:
            report = next(line for line in process.stdout if line.startswith("[{"))
            assert set(marked(mark)) == {process.pid, json.loads(report)[-1]["server"]}
        finally:
            process.stdin.close()
    assert process.returncode == 0
    before, after = json.loads(report)
    print(before, after)

    for what in ("server", "descriptors", "threads", "descriptors of the server", "threads of the server"):
        assert after[what] == before[what], what
    # An object that a run leaves would be there once per run; a few come and go by themselves.
    assert after["objects"] - before["objects"] < (len(kinds) - FIRST) / 2
    # One growth of the allocator by chance, and one of malloc: less than 10 kB per run in the slow case.
    assert after["memory"] - before["memory"] < 2 * ARENA
    assert after["memory of the server"] - before["memory of the server"] < 2 * ARENA
    assert not marked(mark)  # the server has ended with its kernel

    (shelf,) = (tmp_path / "home").iterdir()
    assert sorted(int(folder.name) for folder in shelf.iterdir()) == list(range(1, len(kinds) + 1))[-kept:]
    left = {path.name for path in (tmp_path / "temporary").iterdir()}
    assert left <= {f"torchinductor_{getpass.getuser()}"}  # torch's own, made when it is loaded, and empty
