"""However a run ends, and whatever its ranks are at, no process of it is left after 3 seconds."""

import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
import psutil
import pytest
from kernels import LIMIT, MARK, READY, Emptying, command_line, end, kernel, marked, roles, stands_in
from launching import ASLEEP, plain
from waiting import wait_for

import ddp_lab as lab
from ddp_lab.launch import cluster, warm

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

# How the run is started: options, and the hosts that it is on. "hosts" are emulated.
STARTS = {
    "warm": ("warm=True", 0),
    "cold": ("warm=False", 0),
    "hosts": ("warm=True, nodes=2, nproc=1", 2),
    "cold hosts": ("warm=False, nodes=2, nproc=1", 2),
}

# Each way and each state once, warm; of these some cold, which are the ways of learners, and some on hosts; the rest is
# slow.
QUICK = {
    ("interrupt", "deadlock"),
    ("shutdown", "asleep"),
    ("restart", "ignores SIGTERM"),
    ("kernel killed", "loader workers"),
    ("agent killed", "deadlock"),
    ("both killed", "ignores SIGTERM"),
}

QUICK_WAYS = {
    "cold": ("interrupt", "kernel killed"),
    "hosts": tuple(WAYS),
    "cold hosts": ("agent killed",),
}

MATRIX = [
    pytest.param(
        start,
        way,
        state,
        id=f"{start}-{way}-{state}",
        marks=() if (way, state) in QUICK and (start == "warm" or way in QUICK_WAYS[start]) else pytest.mark.slow,
    )
    for start in STARTS
    for way in WAYS
    for state in STATES
]


def test_the_quick_cases_cover_every_way_and_every_state():
    assert {way for way, _ in QUICK} == set(WAYS) and {state for _, state in QUICK} == set(STATES)


def empties(children, way, record_property):
    """Do `way`, and assert that no child is left in time, and that none comes back."""
    emptying = Emptying(children)
    emptying.begin()
    way()
    left = emptying.end()
    record_property("seconds_until_empty", emptying.seconds)
    print(f"empty after {emptying.seconds and round(emptying.seconds, 2)} s")
    assert not left, f"left after {LIMIT} s:\n" + "\n".join(left)
    assert not children()


@pytest.mark.parametrize(("start", "way", "state"), MATRIX)
def test_no_process_is_left(start, way, state, tmp_path, record_property):
    script, functions, workers = STATES[state]
    options, hosts = STARTS[start]
    if hosts and (why := cluster.why_not()):
        pytest.skip(why)
    (tmp_path / "script.py").write_text(script)
    alive = Counter(agent=1, guard=2, rank=2) + Counter(worker=workers, host=hosts)
    with kernel(tmp_path) as it:
        it.run("import ddp_lab as lab")
        cell = it.send(f"lab.torchrun('script.py', timeout=None, stall=None, {options})")
        wait_for(lambda: it.counts() == alive, READY, f"{alive} live")
        for rank, function in enumerate(functions):
            wait_for(lambda: it.stands_in(rank, function), READY, f"rank {rank} stands in {function}", every=0.2)  # noqa: B023
        (agent,) = it.roles()["agent"]

        empties(it.children, lambda: WAYS[way](it, agent), record_property)

        if way == "interrupt":
            name, shown, _ = it.finish(cell)
            assert name == "Interrupted"
            for rank, function in enumerate(functions):
                (line,) = [line for line in plain(shown).splitlines() if line.startswith(f"{rank}  ")]
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


DAEMON = """
import os, sys, time
from pathlib import Path

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
while not Path("go").exists():
    time.sleep(0.02)
print("ended by itself")
"""


@pytest.mark.parametrize("way", ["its normal end", "interrupt", "agent killed", "kernel killed"])
def test_a_command_leaves_no_daemon(way, tmp_path, record_property):
    (tmp_path / "script.py").write_text(DAEMON)
    ways = WAYS | {"its normal end": lambda kernel, agent: (tmp_path / "go").touch()}
    with kernel(tmp_path) as it:
        cell = it.send("import ddp_lab as lab; lab.command('python', 'script.py', timeout=None, stall=None)")
        # The agent, its guard, the command, and the grandchild in a session of its own, which the guard has adopted.
        wait_for(lambda: it.counts() == Counter(agent=1, guard=1, rank=2), READY, "the command and its daemon live")
        assert "sleep" in {p.name() for p in it.roles()["rank"]}
        (agent,) = it.roles()["agent"]

        empties(it.children, lambda: ways[way](it, agent), record_property)

        if way != "kernel killed":
            name, _, printed = it.finish(cell)
            assert (name is None) == (way == "its normal end")
            assert printed.count("ended by itself") == (way == "its normal end")
            assert it.run("print(6 * 7)") == "42\n"


FORKING = """
import multiprocessing, threading, time, ddp_lab as lab
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
threading.Thread(target=lambda: (time.sleep(1), child.start())).start()
lab.command("sleep", "600", timeout=None, stall=None)
"""


@pytest.mark.parametrize("way", ["interrupt", "kernel killed"])
def test_a_child_that_the_kernel_has_forked_does_not_keep_a_run_alive(way, tmp_path, record_property):
    with kernel(tmp_path) as it:
        it.send(FORKING)
        wait_for(lambda: it.counts() == Counter(agent=1, guard=1, rank=1), READY, "the command lives")
        # It holds the kernel's end of the lifeline too.
        wait_for(lambda: len(marked(it.mark)) == 5, READY, "the kernel has forked")
        (agent,) = it.roles()["agent"]
        empties(it.children, lambda: WAYS[way](it, agent), record_property)


def test_more_presses_of_the_stop_button_do_no_harm(tmp_path, record_property):
    (tmp_path / "script.py").write_text("print('here I am', flush=True)\n" + STUBBORN)
    with kernel(tmp_path) as it:
        cell = it.send("import ddp_lab as lab; lab.command('python', 'script.py', timeout=None, stall=None)")
        wait_for(lambda: it.counts() == Counter(agent=1, guard=1, rank=1), READY, "the command lives")
        wait_for(lambda: (it.folder() / "rank0/stdout.log").read_text() == "here I am\n", READY, "it has printed")

        def press():
            began = time.monotonic()
            while it.children() and time.monotonic() - began < LIMIT:
                it.interrupt()
                time.sleep(0.01)

        empties(it.children, press, record_property)
        name, _, printed = it.finish(cell)
        assert name in ("Interrupted", "KeyboardInterrupt")
        assert printed.count("here I am") == 1
        assert it.run("print(6 * 7)") == "42\n"


def test_an_interrupt_before_the_watch_begins_starts_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path))
    monkeypatch.setenv(MARK, "early")
    monkeypatch.setattr(importlib.import_module("ddp_lab.launch.command"), "Screen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.command("sleep", "600")
    assert not marked("early")


def test_a_guard_whose_parent_was_killed_before_it_looked_ends_its_rank(tmp_path):
    (tmp_path / "rank0").mkdir()
    (tmp_path / "script.py").write_text(ASLEEP)
    gone = subprocess.Popen(["true"])
    gone.wait()
    env = {**os.environ, "RANK": "0", "DDP_LAB_RUN_DIR": str(tmp_path), "DDP_LAB_AGENT": str(gone.pid), MARK: "late"}
    rank = Path(lab.__file__).parent / "launch" / "rank.py"
    guard = subprocess.Popen([sys.executable, str(rank), str(tmp_path / "script.py")], env=env)
    try:
        assert guard.wait(READY) == -signal.SIGKILL
        assert json.loads((tmp_path / "rank0/guard.json").read_text())["guard"][0] == guard.pid  # it did start
        assert not marked("late")
    finally:
        end([(p.pid, p.create_time()) for p in marked("late").values()])


FORKS_AND_ENDS = """
import os, time

if os.fork() == 0:
    os.setsid()
    print("I live on as", os.getpid(), flush=True)
    time.sleep(600)
time.sleep(0.5)
"""


def test_a_rank_that_forks_and_ends_has_ended_well_and_its_child_is_gone(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(FORKS_AND_ENDS)
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path))
    monkeypatch.setenv(MARK, "forks")
    run = lab.torchrun(tmp_path / "script.py", show="none", stall=None)
    assert run.ok and [rank.exitcode for rank in run.ranks] == [0, 0]
    children = [int(rank.stdout.split()[-1]) for rank in run.ranks]
    assert len(set(children)) == 2  # they did live
    assert not any(map(psutil.pid_exists, children))
    assert set(marked("forks")) <= {warm._server.pid}  # it stays for the next run


def test_after_the_time_limit_of_nbmake_nothing_is_left(tmp_path, record_property):
    """nbmake interrupts nothing: it raises CellTimeoutError and shuts the kernel down."""
    (tmp_path / "script.py").write_text(DEADLOCK)
    cell = nbformat.v4.new_code_cell("import ddp_lab as lab\nlab.torchrun('script.py', timeout=None, stall=None)")
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull]
    # The limit is there to expire in the deadlock: on a loaded machine the ranks may not have come so far.
    for limit in (8, 20, 50):
        metadata["execution"] = {"timeout": limit}
        nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=metadata), tmp_path / "stuck.ipynb")
        mark = secrets.token_hex(8)
        env = {**os.environ, MARK: mark, "DDP_LAB_HOME": str(tmp_path / mark)}
        env.pop("DDP_LAB_LEDGER", None)
        deadlocked = False

        def of_the_run():
            alive = marked(mark)  # noqa: B023
            return {pid: p for pid, p in alive.items() if not {"ipykernel_launcher", "pytest"} & set(command_line(p))}

        def is_deadlocked():
            alive = {role: len(of) for role, of in roles(of_the_run()).items() if of}
            return alive == {"server": 1, "agent": 1, "guard": 2, "rank": 2} and all(
                stands_in(tmp_path / mark, rank, function)  # noqa: B023
                for rank, function in enumerate(STATES["deadlock"][1])
            )

        with subprocess.Popen([*command, "--nbmake", "stuck.ipynb"], cwd=tmp_path, env=env, stdout=-1) as nbmake:
            while nbmake.poll() is None:
                deadlocked = deadlocked or is_deadlocked()
                time.sleep(0.1)
            said = nbmake.stdout.read().decode()
        empties(of_the_run, lambda: None, record_property)
        assert nbmake.returncode == 1 and "timed out while it was being executed" in said, said
        if deadlocked:
            return
    pytest.fail(f"the ranks were never seen in their deadlock within {limit} s")


# As a slow disk makes it: Python's lock is held all the while, so that no other thread of the process runs.
SLOW_TORCH = """
import ctypes, pathlib

pathlib.Path("importing").touch()
ctypes.PyDLL(None).sleep(600)
"""


@pytest.mark.parametrize("start", ["warm", "cold"])
@pytest.mark.parametrize("way", ["interrupt", "kernel killed"])
def test_what_is_still_loading_torch_is_ended(way, start, tmp_path, record_property):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(SLOW_TORCH)
    (tmp_path / "script.py").write_text(ASLEEP)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with kernel(tmp_path, PYTHONPATH=path) as it:
        cell = it.send(f"import ddp_lab as lab; lab.torchrun('script.py', timeout=None, {STARTS[start][0]})")
        wait_for((tmp_path / "importing").exists, READY, "torch is being loaded")
        assert len(it.children()) == (start == "cold") and (it.server is None) == (start == "cold")
        agent = next(iter(it.children().values()), None)
        empties(it.children, lambda: WAYS[way](it, agent), record_property)
        if way == "interrupt":
            assert it.finish(cell)[0] == "Interrupted"
            assert (it.server is None) == (start == "cold")  # it goes on loading, for the next run
