"""However a run ends, and whatever its ranks are at, no process of it is left after 3 seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
import psutil
import pytest
from kernels import LIMIT, MARK, READY, Emptying, end, kernel, marked, roles
from waiting import wait_for

import ddp_lab as lab
from ddp_lab.launch import processes

ASLEEP = """
import time

def nap():
    time.sleep(600)

nap()
"""

STUBBORN = """
import signal, time

def nap():
    time.sleep(600)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
nap()
"""

DEADLOCK = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
else:
    dist.recv(torch.ones(1), src=0)
"""

WORKERS = """
import time
from torch.utils.data import DataLoader

def nap():
    time.sleep(600)

batches = iter(DataLoader(range(1000), num_workers=2))
next(batches)
nap()
"""

# What the ranks are at: the script, the function in which each rank stands then, workers in all.
STATES = {
    "asleep": (ASLEEP, ("nap", "nap"), 0),
    "deadlock": (DEADLOCK, ("all_reduce", "recv"), 0),
    "ignores SIGTERM": (STUBBORN, ("nap", "nap"), 0),
    "loader workers": (WORKERS, ("nap", "nap"), 4),
}


def kill(process):
    os.kill(process.pid, signal.SIGKILL)


# How the run is ended, given its kernel and its agent.
WAYS = {
    "interrupt": lambda kernel, agent: kernel.interrupt(),
    "shutdown": lambda kernel, agent: kernel.shutdown(),
    "restart": lambda kernel, agent: kernel.restart(),
    "kernel killed": lambda kernel, agent: kernel.kill(),
    "agent killed": lambda kernel, agent: kill(agent),
    "both killed": lambda kernel, agent: (kill(agent), kernel.kill()),
}

# Each way and each state once; the rest is slow.
QUICK = {
    ("interrupt", "deadlock"),
    ("shutdown", "asleep"),
    ("restart", "ignores SIGTERM"),
    ("kernel killed", "loader workers"),
    ("agent killed", "deadlock"),
    ("both killed", "ignores SIGTERM"),
}

MATRIX = [
    pytest.param(way, state, id=f"{way}-{state}", marks=() if (way, state) in QUICK else pytest.mark.slow)
    for way in WAYS
    for state in STATES
]


def test_the_quick_cases_cover_every_way_and_every_state():
    assert {way for way, _ in QUICK} == set(WAYS) and {state for _, state in QUICK} == set(STATES)


def empties(children, way, record_property):
    """Do `way`, and assert that no child is left in time."""
    emptying = Emptying(children)
    emptying.begin()
    way()
    left = emptying.end()
    record_property("seconds_until_empty", emptying.seconds)
    print(f"empty after {emptying.seconds and round(emptying.seconds, 2)} s")
    assert not left, f"left after {LIMIT} s:\n" + "\n".join(left)


@pytest.mark.parametrize(("way", "state"), MATRIX)
def test_no_process_is_left(way, state, tmp_path, record_property):
    script, functions, workers = STATES[state]
    (tmp_path / "script.py").write_text(script)
    alive = Counter(agent=1, guard=2, rank=2) + Counter(worker=workers)
    with kernel(tmp_path) as it:
        cell = it.send("import ddp_lab as lab; lab.torchrun('script.py', timeout=None, stall=None)")
        wait_for(lambda: it.counts() == alive, READY, f"{alive} live")
        for rank, function in enumerate(functions):
            wait_for(lambda: it.stands_in(rank, function), READY, f"rank {rank} stands in {function}", every=0.2)  # noqa: B023
        (agent,) = it.roles()["agent"]

        empties(it.children, lambda: WAYS[way](it, agent), record_property)

        if way == "interrupt":
            name, shown, _ = it.finish(cell)
            assert name == "Interrupted"
            for rank, function in enumerate(functions):
                (line,) = [line for line in shown.splitlines() if line.startswith(f"{rank}  ")]
                assert function in line and "script.py:" in line
        if way == "agent killed":
            assert it.finish(cell)[0] is not None
        if way in ("interrupt", "agent killed"):
            assert it.run("print(6 * 7)") == "42\n"


def test_the_same_check_catches_a_torchrun_started_by_plain_popen(tmp_path):
    (tmp_path / "script.py").write_text(ASLEEP)
    with kernel(tmp_path) as it:
        it.run(
            "import subprocess, sys\n"
            "command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2',\n"
            "           '--no-python', sys.executable, 'script.py']\n"
            "process = subprocess.Popen(command, start_new_session=True)\n"
            "print(process.pid)"
        )
        wait_for(lambda: len(it.children()) == 3, READY, "torchrun and two ranks live")
        started = [(p.pid, p.create_time()) for p in it.children().values()]
        try:
            emptying = Emptying(it.children)
            emptying.begin()
            it.restart()
            assert len(emptying.end()) == 3
        finally:
            end(started)
