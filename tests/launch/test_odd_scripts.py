"""Scripts that do what scripts should not: what a learner is told is still true, and nothing is lost or left."""

import json
import os
import signal
import sys
import threading

import pytest
from launching import as_rank, run_in, script, see

import ddp_lab as lab
from ddp_lab.launch import job as job_module
from ddp_lab.launch import stacks
from ddp_lab.launch.job import Interrupted, follow
from ddp_lab.launch.output import Progress, Screen


def error_of(tmp_path, text, start):
    """What the only rank of a script has written of its error."""
    folder = tmp_path / "run"
    as_rank(folder, script(tmp_path, text), start)
    path = folder / "rank0" / "error.json"
    error = json.loads(path.read_text()) if path.exists() else None
    return error, json.loads((folder / "rank0" / "exit.json").read_text())["code"], run_in(folder, 1).ranks[0]


def test_notes_and_the_errors_of_a_group_are_part_of_the_message(tmp_path, start):
    error, code, _ = error_of(
        tmp_path,
        """
        class Group(Exception):  # as ExceptionGroup, which Python has from 3.11 on
            exceptions = [ValueError("lr is negative"), OSError("no disk")]

        error = Group("2 sub-exceptions")
        error.__notes__ = ["in epoch 3"]
        raise error
        """,
        start,
    )
    assert code == 1
    assert error["message"].splitlines() == [
        "2 sub-exceptions",
        "in epoch 3",
        "  ValueError: lr is negative",
        "  OSError: no disk",
    ]


@pytest.mark.parametrize(
    "text, kind",
    [
        ("import sys; sys.excepthook = None; raise ValueError('no')", "ValueError"),
        ("import sys; sys.excepthook = lambda *_: 1 / 0; raise ValueError('no')", "ValueError"),
        ("keep = []\nwhile True: keep.append(open('/dev/null'))", "OSError"),
        ("class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd", "Odd"),
        ("import sys; sys.stderr.close(); sys.exit('bad')", "SystemExit"),
    ],
    ids=["no hook", "a hook that fails", "no descriptor left", "no text", "no stderr"],
)
def test_an_error_is_reported_whatever_the_script_has_spoilt(tmp_path, text, kind, start):
    error, code, rank = error_of(tmp_path, text, start)
    assert (error["type"], code) == (kind, 1)
    assert "ddp_lab" not in rank.stderr


def test_an_error_in_a_forked_child_is_printed_and_is_not_the_ranks(tmp_path, start):
    error, code, rank = error_of(tmp_path, "import os\nif os.fork() == 0: raise ValueError('no')\nos.wait()", start)
    assert (error, code) == (None, 0)
    assert rank.stderr.count("ValueError: no") == 1


def test_shared_memory_that_a_script_leaves_is_removed(tmp_path, start):
    error, code, rank = error_of(
        tmp_path,
        """
        from multiprocessing.shared_memory import SharedMemory
        print(SharedMemory(create=True, size=100).name)
        raise ValueError("no")
        """,
        start,
    )
    assert error["type"] == "ValueError" and not os.path.exists(f"/dev/shm/{rank.stdout.strip()}")


def test_a_rank_must_not_start_a_run(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("DDP_LAB_RANK_DIR", str(tmp_path))
    with pytest.raises(lab.InputError, match="a rank must not start a run"):
        lab.torchrun("hello")


def test_a_rank_that_becomes_another_program_and_computes_is_not_disturbed(tmp_path, start):
    busy = "import time; end = time.monotonic() + 6\nwhile time.monotonic() < end: pass\nprint('through')"
    path = script(tmp_path, f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {busy!r}])")
    seen = see(lab.torchrun, path, nproc=1, stall=2, timeout=90)
    assert seen.error is None and "[rank 0] through" in seen.lines, seen.error


def test_a_launcher_without_torch_says_so_without_frames(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch is broken')")
    seen = see(lab.torchrun, script(tmp_path, "pass"), nproc=1, env={"PYTHONPATH": f"{tmp_path}"}, warm=False)
    assert type(seen.error) is lab.LaunchError and "ImportError: libtorch is broken" in str(seen.error)
    assert "File" not in str(seen.error)


def test_a_rank_whose_end_waits_for_a_thread_is_told_as_that():
    frames = [(threading.__file__, 1, "_shutdown"), (stacks._OURS + "launch/rank.py", 2, "leave")]
    spot = stacks.place([{"file": f, "line": n, "function": name} for f, n, name in frames], None)
    assert (spot["file"], spot["line"]) == (None, None) and "waits for a thread" in spot["function"]


class StoppedWhileInterrupted(job_module.Job):
    """A job that never gives a sign of life; the stop button is pressed while its clock stops it."""

    def __init__(self):
        self.expiry = self.code = None
        self.ranks, self.running = range(0), True

    def start(self):
        pass

    def wait(self, seconds):
        pass

    running = code = None

    def expire(self, reason, limit):
        os.kill(os.getpid(), signal.SIGINT)
        self.expiry = job_module.Expiry(reason, limit, [])

    def stop(self):
        self.running = False


def test_an_interrupt_while_a_clock_stops_a_run_is_not_lost():
    job = StoppedWhileInterrupted()
    with pytest.raises(Interrupted):
        follow([job], Screen({}, str, None), Progress([]), timeout=0.01, stall=None)
    assert not issubclass(Interrupted, Exception)  # `except Exception` in a loop must not swallow the button


def test_no_python_is_needed_to_know_whether_a_signal_is_handled():
    from ddp_lab.launch import processes

    assert processes.handles(processes.identity(), signal.SIGINT)  # Python's own handler
    assert not processes.handles(processes.identity(), signal.SIGUSR2) or sys.platform != "linux"
