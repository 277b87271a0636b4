"""failures: the first cause among what all ranks left, told once, in the learner's own lines."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launching import as_rank, leave, line_of, raised, run_in, script

import ddp_lab as lab
from ddp_lab.launch import failures, outcome
from ddp_lab.launch.job import Expiry

TORCH = str(Path(torch.__file__).parent)
CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2203."
SOURCE = """\
import torch

def step(x):
    if x > 3:
        raise ValueError("loss is nan")  # here

for x in range(9):
    step(x)  # called here
"""


@pytest.fixture
def train(tmp_path):
    return script(tmp_path, SOURCE)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def failed_in(train, kind="ValueError", message="loss is nan"):
    """An error with the learner's two frames and one of torch's inside."""
    return raised(
        kind,
        message,
        (train, line_of(train, "called here"), "<module>"),
        (train, line_of(train, "# here"), "step"),
        (f"{TORCH}/nn/modules/module.py", 1780, "_call_impl"),
    )


def judge(folder, ranks, code=1, expiry=None, kind=lab.RankError):
    """The error that the launcher raises for such a folder."""
    job = SimpleNamespace(expiry=expiry, ranks=range(ranks), code=code)
    (folder / "agent.log").write_text("the launcher's own words\n")
    return outcome.judge(run_in(folder, ranks), job, kind)


# ---- which rank is the cause


def test_the_first_to_fail_is_the_cause(folder, train):
    for rank, when in ((0, 30), (1, 10), (2, 20)):
        leave(folder, rank, 1, failed_in(train, message=f"of rank {rank}"), when=when)
    error = judge(folder, 3)
    assert error.rank == 1 and "of rank 1" in str(error)


@pytest.mark.parametrize(
    "echo",
    [
        CLOSED,
        "Broken pipe",
        "Timed out waiting 6000ms for recv operation to complete",
        "Rank 1 failed to pass monitoredBarrier in 5000 ms",
        "NCCL error: remote process exited or there was a network error, ncclRemoteError",
    ],
)
def test_what_follows_from_another_rank_is_never_the_cause_however_early_it_comes(folder, train, echo):
    leave(folder, 0, 1, failed_in(train, "RuntimeError", echo), when=10)
    leave(folder, 1, 1, failed_in(train), when=20)
    error = judge(folder, 2)
    assert error.rank == 1
    (line,) = [line for line in str(error).splitlines() if line.startswith("rank 0:")]
    assert line.endswith("(follows from the above).") and echo not in line


def test_a_rank_that_was_stopped_is_not_the_cause(folder, train):
    leave(folder, 0, -signal.SIGTERM, stopped=True, when=5)
    leave(folder, 1, 1, failed_in(train), when=20)
    error = judge(folder, 2)
    assert error.rank == 1 and "; rank 0 was stopped with it" in str(error).splitlines()[0]


def test_several_stopped_ranks_are_named_together(folder, train):
    leave(folder, 1, 1, failed_in(train))
    for rank in (0, 2, 3):
        leave(folder, rank, -signal.SIGTERM, stopped=True)
    assert "; ranks 0, 2, 3 were stopped with it" in str(judge(folder, 4)).splitlines()[0]


def test_where_all_are_echoes_the_first_is_told_and_who_had_left(folder, train):
    leave(folder, 0, 0, when=1)
    leave(folder, 1, 1, failed_in(train, "RuntimeError", CLOSED), when=2)
    error = judge(folder, 2)
    assert error.rank == 1
    assert "rank 0: had ended by itself, without an error." in str(error)
    assert "rank 0 made fewer collectives" in str(error)


def test_two_ranks_with_the_same_error_are_one_report_and_a_line(folder, train):
    for rank in (0, 1):
        leave(folder, rank, 1, failed_in(train), when=10 + rank)
    text = str(judge(folder, 2))
    assert text.count("raise ValueError") == 1 and "rank 1: ValueError: loss is nan" in text.splitlines()


def test_ranks_that_ended_well_are_no_failure(folder):
    leave(folder, 0, 0)
    leave(folder, 1, 0)
    assert judge(folder, 2, code=0) is None
    assert failures.root_cause([failures.read(folder, rank) for rank in range(2)]) is None


# ---- the report


def test_the_report_shows_the_learners_lines_and_nobody_elses(folder, train):
    leave(folder, 1, 1, failed_in(train))
    leave(folder, 0, -signal.SIGTERM, stopped=True)
    error = judge(folder, 2)
    assert str(error).splitlines() == [
        "rank 1 failed in train.py, line 5 (step); rank 0 was stopped with it",
        "",
        "  train.py:8 in <module>: step(x)  # called here",
        "       3 | def step(x):",
        "       4 |     if x > 3:",
        '  →    5 |         raise ValueError("loss is nan")  # here',
        "",
        "ValueError: loss is nan",
        "",
        "Whole logs: lab.last_run().ranks[1].stderr",
    ]
    assert (error.rank, error.file, error.line) == (1, train, 5) and type(error.line) is int
    assert error.run.name == "train.py"


def test_a_message_of_several_lines_in_any_script_is_kept(folder, train):
    leave(folder, 0, 1, failed_in(train, message="größer\n  als 😀\n\nende"))
    assert "ValueError: größer\n  als 😀\n\nende" in str(judge(folder, 1))


def test_an_endless_message_is_cut(folder, train):
    leave(folder, 0, 1, failed_in(train, message="x" * 1_000_000))
    text = str(judge(folder, 1))
    assert len(text) < 30_000 and "1,000,012 characters" in text and "last_run().ranks[0].stderr" in text


def test_an_error_without_a_message_is_its_type(folder, train):
    leave(folder, 0, 1, failed_in(train, "KeyError", ""))
    assert "\nKeyError\n" in str(judge(folder, 1))


def test_a_deep_recursion_shows_its_last_calls(folder, train):
    frames = [(train, 8, "<module>")] + [(train, 5, "step")] * 900
    leave(folder, 0, 1, raised("RecursionError", "maximum recursion depth exceeded", *frames))
    assert len(str(judge(folder, 1)).splitlines()) < 20


def test_a_file_that_is_gone_leaves_the_line_number(folder):
    leave(folder, 0, 1, raised("ValueError", "no", ("/nowhere/train.py", 14, "main")))
    error = judge(folder, 1)
    assert "train.py, line 14 (main)" in str(error) and error.line == 14


def test_sys_exit_is_told_as_such(folder, train):
    leave(folder, 0, 3, raised("SystemExit", "3", (train, 8, "<module>")))
    assert "SystemExit: 3" in str(judge(folder, 1))


@pytest.mark.parametrize(
    "code, words",
    [
        (-signal.SIGKILL, "was killed (SIGKILL), often for memory"),
        (-signal.SIGSEGV, "crashed in native code (SIGSEGV)"),
        (-signal.SIGABRT, "was aborted by native code (SIGABRT)"),
        (-signal.SIGTERM, "was told to stop (SIGTERM)"),
        (-signal.SIGBUS, "was ended by signal 7 (SIGBUS)"),
        (-40, "was ended by signal 40"),
        (5, "ended with exit code 5 and no exception"),
    ],
)
def test_an_end_without_an_exception_is_told_in_words(folder, code, words):
    leave(folder, 0, 0)
    leave(folder, 1, code)
    error = judge(folder, 2)
    assert str(error).splitlines()[0].startswith(f"rank 1 {words}")
    assert (error.file, error.line) == (None, None)


def test_a_crash_in_native_code_has_the_line_of_python(folder, train):
    crash = (
        "Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n"
        f'  File "{TORCH}/nn/modules/module.py", line 9 in _call_impl\n'
        f'  File "{train}", line 5 in step\n  File "{train}", line 8 in <module>\n'
    )
    leave(folder, 0, -signal.SIGSEGV, crash=crash)
    error = judge(folder, 1)
    assert str(error).splitlines()[0] == "rank 0 crashed in native code (SIGSEGV) in train.py, line 5"
    assert error.line == 5 and "→    5 |" in str(error)


def test_a_launcher_that_ended_before_any_rank_says_so_in_its_own_words(folder):
    leave(folder, 0, None)
    error = judge(folder, 1)
    assert type(error) is lab.LaunchError and "the launcher's own words" in str(error)


def test_a_launcher_that_was_killed_is_not_blamed_on_a_rank(folder):
    leave(folder, 0, -9)
    error = judge(folder, 1, code=-9)
    assert type(error) is lab.LaunchError and "its launcher was killed from outside (signal 9)" in str(error)


@pytest.mark.parametrize("content", ["", "{", "\0\0", "[1"])
def test_files_that_a_full_disk_has_cut_do_not_stop_the_report(folder, content):
    leave(folder, 0, 1)
    for name in ("error.json", "exit.json"):
        (folder / "rank0" / name).write_text(content)
    leave(folder, 1, -9)
    assert judge(folder, 2).rank == 1


def test_a_folder_that_was_removed_is_one_clear_line(folder):
    job = SimpleNamespace(expiry=None, ranks=range(1), code=0)
    error = outcome.judge(run_in(folder, 1), job, lab.RankError)
    assert type(error) is lab.InputError and str(folder) in str(error) and "Run it again" in str(error)


# ---- as ranks really end

ENDS = {
    "an exception": ("raise ValueError('no')  # here", 1, "failed in train.py, line {}", "ValueError: no"),
    "a missing module": (
        "import no_such_module  # here",
        1,
        "failed in train.py, line {}",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "a syntax error": ("print('a'  # here", 1, "failed in train.py, line {}", "SyntaxError: '(' was never closed"),
    "sys.exit with a code": ("import sys; sys.exit(3)  # here", 3, "failed in train.py, line {}", "SystemExit: 3"),
    "sys.exit with a text": ("import sys; sys.exit('no data')  # here", 1, "failed in", "SystemExit: no data"),
    "os._exit": ("import os; os._exit(5)", 5, "ended with exit code 5 and no exception", ""),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", -9, "was killed (SIGKILL), often for memory", ""),
    "SIGSEGV": (
        "import ctypes; ctypes.string_at(0)  # here",
        -11,
        "crashed in native code (SIGSEGV) in train.py, line {}",
        "→",
    ),
    "abort": ("import os; os.abort()  # here", -6, "was aborted by native code (SIGABRT) in train.py, line {}", "→"),
    "an error in a library": (
        "import json; json.loads('{')  # here",
        1,
        "failed in train.py, line {}",
        "JSONDecodeError",
    ),
    "an interrupt": ("raise KeyboardInterrupt  # here", 130, "failed in train.py, line {}", "KeyboardInterrupt"),
    "an error of ours": (
        "from ddp_lab import worker; worker.log(a=object())  # here",
        1,
        "failed in train.py, line {}",
        "TypeError: worker.log: a cannot be stored",
    ),
}


@pytest.mark.parametrize("source, code, head, what", ENDS.values(), ids=ENDS)
def test_each_way_to_end_is_told_with_the_learners_line(tmp_path, folder, start, source, code, head, what):
    path = script(tmp_path, f"x = 1\n\n{source}\n")
    as_rank(folder, path, start)
    error = judge(folder, 1)
    has_line = "# here" in source
    assert error.run.ranks[0].exitcode == code
    assert str(error).startswith("rank 0 " + head.format(3 if has_line else None)) and what in str(error)
    assert (error.file, error.line) == ((path, 3) if has_line else (None, None))
    for foreign in ("rank.py", "json/decoder.py", "worker.py", "Traceback", "guard.py"):
        assert foreign not in str(error)


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit()", "import sys; sys.exit(0)", "raise SystemExit"])
def test_a_script_that_ends_well_is_no_failure(tmp_path, folder, start, ending):
    as_rank(folder, script(tmp_path, f"print('all done')\n{ending}\n"), start)
    assert judge(folder, 1, code=0) is None


LEAVES_ALL_IN_BUFFERS = """
import atexit, ctypes, pathlib, threading, time
here = pathlib.Path(__file__).parent
text, data = open(here / "text", "w"), open(here / "data", "wb")
text.write("of Python"), data.write(b"of Python")
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fputs(b"of C", ctypes.c_void_p(libc.fopen(bytes(here / "c"), b"w")))
atexit.register(print, "exit handler")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
print("end")
"""


def test_a_rank_ends_as_python_does_with_nothing_left_in_a_buffer(tmp_path, folder, start):
    as_rank(folder, script(tmp_path, LEAVES_ALL_IN_BUFFERS), start)
    assert judge(folder, 1, code=0) is None
    assert run_in(folder, 1).ranks[0].stdout == "end\nthread\nexit handler\n"
    assert [(tmp_path / name).read_text() for name in ("c", "text", "data")] == ["of C", "of Python", "of Python"]


CHAIN = """\
def load(path):
    return {}[path]  # first

try:
    load("a.pt")
except KeyError as error:
    raise RuntimeError("the checkpoint cannot be used") from error  # here
"""


def test_of_a_chain_of_errors_the_last_is_told_and_what_it_came_from(tmp_path, folder, start):
    path = script(tmp_path, CHAIN)
    as_rank(folder, path, start)
    error = judge(folder, 1)
    assert "RuntimeError: the checkpoint cannot be used" in str(error) and error.line == line_of(path, "# here")
    assert f"caused by KeyError: 'a.pt' (train.py, line {line_of(path, '# first')})" in str(error).splitlines()


def test_an_error_that_was_dealt_with_is_not_told(tmp_path, folder, start):
    path = script(tmp_path, CHAIN.replace("from error", "from None"))
    as_rank(folder, path, start)
    assert "KeyError" not in str(judge(folder, 1)).replace("except KeyError", "")


def test_the_whole_traceback_is_in_stderr_as_python_writes_it(tmp_path, folder, start):
    path = script(tmp_path, CHAIN)
    as_rank(folder, path, start)
    text = judge(folder, 1).run.ranks[0].stderr
    assert text.count("Traceback (most recent call last):") == 2 and "direct cause" in text
    assert text.endswith("RuntimeError: the checkpoint cannot be used\n") and "rank.py" not in text


# ---- hangs


def spot(rank, line=21, function="evaluate", collective="all_reduce", number=7):
    return {
        "rank": rank,
        "file": "train.py",
        "line": line,
        "function": function,
        "collective": collective,
        "number": number,
        "stuck": True,
    }


def test_a_hang_is_a_table_of_where_each_rank_stood(folder):
    leave(folder, 0, None)
    where = [spot(0), spot(1, 30, "main", "barrier")]
    error = judge(folder, 2, None, Expiry("stall", 10, where, {0: "whole stack of 0"}))
    assert str(error).splitlines()[:5] == [
        "no sign of life for 10 s; the run was stopped. Where each rank stood:",
        "",
        "rank  where        in        waiting in",
        "0     train.py:21  evaluate  all_reduce (its 7th collective)",
        "1     train.py:30  main      barrier (its 7th collective)",
    ]
    assert "in different calls" in str(error) and "last_run().ranks[r].stack" in str(error)
    assert type(error) is lab.HangError and (error.reason, error.where) == ("stall", where)
    assert error.stacks == {0: "whole stack of 0"} and error.run.name == "train.py"


def test_an_expired_timeout_says_how_to_raise_it_and_never_that_there_was_no_sign_of_life(folder):
    leave(folder, 0, None)
    error = judge(folder, 1, None, Expiry("timeout", 45, [spot(0)]))
    assert "timeout=90" in str(error) and "45 s" in str(error) and "None for no limit" in str(error)
    assert "sign of life" not in str(error) and error.reason == "timeout"


@pytest.mark.parametrize(
    "where, cause",
    [
        ([spot(0), spot(1, collective=None, number=None)], "The others wait for rank 1"),
        ([spot(0, number=7), spot(1, number=8)], "not made equally many"),
    ],
)
def test_a_hang_names_the_usual_cause(where, cause):
    assert cause in failures.describe_hang("stall", 10, where)


@pytest.mark.parametrize(
    "number, text", [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"),
                     (113, "113th")]
)  # fmt: skip
def test_collectives_are_counted_as_one_speaks(number, text):
    assert f"its {text} collective" in failures.describe_hang("stall", 1, [spot(0, number=number)])


# ---- commands


def test_a_command_is_told_by_its_exit_code_and_the_end_of_its_stderr(folder):
    leave(folder, 0, 3, stderr="\n".join(f"line {n}" for n in range(100)))
    error = judge(folder, 1, 3, kind=lab.CommandError)
    assert type(error) is lab.CommandError and "ended with exit code 3" in str(error)
    assert str(error).endswith("line 99") and "line 10\n" not in str(error)


def test_a_command_that_hangs_claims_nothing_about_where_it_stands(folder):
    leave(folder, 0, None)
    error = judge(folder, 1, None, Expiry("stall", 5, []), lab.CommandError)
    assert str(error) == "no sign of life for 5 s; the run was stopped." and error.where == []


# ---- what an expectation is compared with


def test_an_expectation_is_sought_in_the_causes_type_and_message(folder, train):
    leave(folder, 0, 1, failed_in(train, "RuntimeError", CLOSED), when=1)
    leave(folder, 1, 1, failed_in(train), when=2)
    assert outcome.sought(judge(folder, 2)) == "ValueError: loss is nan"


def test_for_a_hang_it_is_sought_in_the_report_and_for_a_command_in_the_end_of_stderr(folder):
    leave(folder, 0, 3, stderr="far away" + "x" * 10_000 + "Address already in use\n")
    hang = judge(folder, 1, None, Expiry("stall", 5, [spot(0)]))
    assert "all_reduce" in outcome.sought(hang)
    text = outcome.sought(judge(folder, 1, 3, kind=lab.CommandError))
    assert "Address already in use" in text and "far away" not in text
