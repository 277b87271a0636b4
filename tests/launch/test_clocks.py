"""The two clocks: `stall` sees who is alive and who is stuck, `timeout` ends what takes too long, None is no limit."""

import contextlib
import io
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from launching import line_of, script, see

import ddp_lab as lab
from ddp_lab.launch import job, traffic

STALL = 2.0
"""Seconds of `stall` in these runs. What is to count as alive goes on for more than twice as long."""

BUSY = """
def compute(seconds):
    import time
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))
"""

ALIVE = {
    "computes": BUSY + "compute(5)",
    "has a child that computes": BUSY + "import os\nif os.fork() == 0:\n    compute(5)\nelse:\n    os.wait()",
    "reads a file": """
import sys, time
with open(sys.executable, "rb", buffering=0) as file:
    for _ in range(25):
        file.read(100)
        time.sleep(0.2)
""",
    "writes a file": """
import tempfile, time
with tempfile.TemporaryFile(buffering=0) as file:
    for _ in range(25):
        file.write(b"x")
        time.sleep(0.2)
""",
    "downloads into memory": """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    total = 0
    while piece := server.recv(10_000):
        total += len(piece)
assert total == 100_000
""",
    "logs": """
import time
from ddp_lab import worker
for step in range(6):
    worker.log(step=step)
    time.sleep(0.8)
""",
    "reports progress": """
import time
from ddp_lab import worker
for step in range(6):
    worker.progress(step + 1, 6)
    time.sleep(0.8)
""",
    "prints": """
import time
for step in range(6):
    print(step, flush=True)
    time.sleep(0.8)
""",
}

ASLEEP = "import time\ntime.sleep(600)"
CHATTY = "import time\nwhile True:\n    print('still here', flush=True)\n    time.sleep(0.1)"
ENDED = {
    "asleep": (ASLEEP, dict(stall=STALL, timeout=60)),
    "asleep, no limit in all": (ASLEEP, dict(stall=STALL, timeout=None)),
    "asleep, no stall": (ASLEEP, dict(stall=None, timeout=3 * STALL)),
    "chatty": (CHATTY, dict(stall=STALL, timeout=2 * STALL)),
}


@contextlib.contextmanager
def slow_server():
    """A server on loopback that gives its client 100,000 bytes in 5 seconds; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve():
            client, _ = listener.accept()
            with client:
                for _ in range(25):
                    client.sendall(b"x" * 4000)
                    done.wait(0.2)

        server = threading.Thread(target=serve)
        server.start()
        yield listener.getsockname()[1]
        done.set()
        server.join()


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """How each of these commands came to its end: name -> Run. They run side by side, each with clocks of its own."""
    folder = tmp_path_factory.mktemp("clocks")

    def command(number, source, **clocks):
        path = script(folder, source, f"{number}.py")
        return lab.command("python", path, str(port), show="none", check=False, **clocks)

    with slow_server() as port, contextlib.redirect_stdout(io.StringIO()), ThreadPoolExecutor(16) as pool:
        cases = {name: (source, dict(stall=STALL, timeout=60)) for name, source in ALIVE.items()} | ENDED
        futures = {
            name: pool.submit(command, number, source, **clocks)
            for number, (name, (source, clocks)) in enumerate(cases.items())
        }
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", ALIVE)
def test_who_does_something_in_silence_is_not_stuck(ends, name):
    assert ends[name].ok, ends[name].error
    assert ends[name].seconds > 2 * STALL, "it was over too soon to tell"


def test_who_does_nothing_is(ends):
    error = ends["asleep"].error
    assert type(error) is lab.HangError and error.reason == "stall"
    assert str(error) == "no sign of life for 2 s; the run was stopped."
    assert STALL <= ends["asleep"].seconds < 5 * STALL


class Computes:
    """A job of one rank, in no collective, that computes until second 3, and reads and writes when asked."""

    running = True

    def __init__(self):
        self.cpu, self.answered = 0.0, 0

    def written(self):
        return 100 * self.answered

    def vitals(self):
        return {1: (self.cpu, 5000 * self.answered)}

    def where(self, insist):
        self.answered += 1
        return [{"collective": None}], {}


def test_an_answer_is_no_sign_of_life(monkeypatch):
    monkeypatch.setattr(traffic, "of", lambda pids: 0)
    it = Computes()
    pulse = job._Pulse([it], 0.0)
    for now in range(1, 20):
        it.cpu = min(now, 3)
        pulse.look(now, False)
        if pulse.stopped(now, 4.0):
            break
    assert it.answered and now == 3 + 4


def test_a_clock_that_is_none_is_off(ends):
    assert ends["asleep, no limit in all"].error.reason == "stall"
    assert ends["asleep, no stall"].error.reason == "timeout"
    assert ends["asleep, no stall"].seconds >= 3 * STALL


def test_what_takes_too_long_is_ended_however_lively_and_told_how_to_get_more(ends):
    error = ends["chatty"].error
    assert type(error) is lab.HangError and error.reason == "timeout"
    assert "timeout=8" in str(error) and "None for no limit" in str(error) and "sign of life" not in str(error)
    assert 2 * STALL <= ends["chatty"].seconds < 4 * STALL
    assert ends["chatty"].ranks[0].stdout.count("still here\n") > 5


def test_what_a_process_sends_and_receives_is_counted_and_nobody_elses():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with mine, other:
        before = traffic.of([os.getpid()])
        mine.sendall(b"x" * 100_000)
        left = 100_000
        while left:
            left -= len(other.recv(left))
        assert traffic.of([os.getpid()]) - before >= 100_000
        assert traffic.of([]) == traffic.of([0, -1]) == 0


# ---- ranks that wait for each other

DEADLOCK = """
import threading
import torch
import torch.distributed as dist

def burn():
    while True:
        sum(range(10_000))

def evaluate():
    dist.all_reduce(torch.ones(1))  # rank 0

dist.init_process_group()
dist.all_reduce(torch.ones(1))
print("deadlock begins", flush=True)
threading.Thread(target=burn, daemon=True).start()
if dist.get_rank() == 0:
    evaluate()
else:
    dist.barrier()  # rank 1
"""


@pytest.fixture(scope="module")
def deadlock(tmp_path_factory, start):
    path = script(tmp_path_factory.mktemp("deadlock"), DEADLOCK)
    return see(lab.torchrun, path, stall=STALL, timeout=90), path


def test_ranks_that_all_sit_in_collectives_are_stuck_though_a_thread_is_busy(deadlock):
    error = deadlock[0].error
    assert type(error) is lab.HangError and error.reason == "stall", error
    assert isinstance(error, RuntimeError) and str(error).startswith("no sign of life for 2 s")


def test_the_report_says_where_each_rank_stood(deadlock):
    seen, path = deadlock
    first, second = seen.error.where
    assert {"rank": 0, "file": "train.py", "function": "evaluate", "collective": "all_reduce"}.items() <= first.items()
    assert {"rank": 1, "file": "train.py", "function": "<module>", "collective": "barrier"}.items() <= second.items()
    assert (first["line"], second["line"]) == (line_of(path, "# rank 0"), line_of(path, "# rank 1"))
    rows = str(seen.error).splitlines()
    assert f"0     train.py:{first['line']}  evaluate  all_reduce (its 2nd collective)" in rows
    assert "The ranks wait for each other in different calls." in str(seen.error)


def test_whole_stacks_are_there_on_request(deadlock):
    error = deadlock[0].error
    for rank, function in ((0, "all_reduce"), (1, "barrier")):
        assert f"in {function}\n" in error.stacks[rank] and "in burn\n" in error.stacks[rank]
        assert error.stacks[rank] in error.run.ranks[rank].stack
    assert "in burn" not in str(error)


def test_a_run_that_hung_has_what_was_printed_until_then(deadlock):
    seen, _ = deadlock
    assert "[rank 0] deadlock begins" in seen.lines and not seen.run.ok and seen.error.run is seen.run
    assert seen.run.ranks[1].stdout == "deadlock begins\n"


BACKWARD = """
import threading
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def burn():
    while True:
        sum(range(10_000))

dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
threading.Thread(target=burn, daemon=True).start()
if dist.get_rank() == 0:
    model(torch.ones(2, 4)).sum().backward()  # rank 0
dist.barrier()
"""


def test_a_rank_stuck_in_ddps_backward_is_told_with_its_collective_though_a_thread_is_busy(tmp_path, start):
    path = script(tmp_path, BACKWARD)
    seen = see(lab.torchrun, path, stall=STALL, timeout=90, expect="no sign of life")
    assert "failed as expected" in seen.text, seen.error
    spot = seen.run.error.where[0]
    assert (spot["line"], spot["collective"]) == (line_of(path, "# rank 0"), "backward (bucket all_reduce)")


SLOW_RANK = (
    BUSY
    + """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        compute(5)
        return index

dist.init_process_group()
if dist.get_rank() == 1:
    compute(5)
    list(DataLoader(Slow(), num_workers=1))  # this rank sleeps while its worker computes
dist.all_reduce(torch.ones(1))
print("all there")
"""
)


def test_ranks_that_wait_for_one_that_computes_or_loads_are_not_stuck(tmp_path, start):
    seen = see(lab.torchrun, script(tmp_path, SLOW_RANK), stall=STALL, timeout=90)
    assert seen.error is None, seen.error
    assert "[rank 0] all there" in seen.lines and seen.seconds > 10


HOLDS_THE_LOCK = """
import ctypes
ctypes.PyDLL(None).sleep(1000)  # native code that lets no thread of Python run
"""


def test_a_rank_whose_python_cannot_run_is_placed_too(tmp_path, start):
    path = script(tmp_path, HOLDS_THE_LOCK)
    seen = see(lab.torchrun, path, nproc=1, stall=STALL, timeout=90)
    assert type(seen.error) is lab.HangError, seen.error
    assert seen.error.where[0]["line"] == line_of(path, "sleep(1000)")
