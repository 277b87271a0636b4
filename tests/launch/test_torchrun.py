"""lab.torchrun: real runs. What is shown, what is kept, and what a script finds on its rank."""

import io
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from launching import as_typed, dumped, jsons, leave, line_of, plain, raised, run_in, script, see

import ddp_lab as lab
from ddp_lab import gpus, limits
from ddp_lab.launch import failures, outcome, torchrun
from ddp_lab.launch.output import HEAD, LONGEST, TAIL

STALE = {
    "RANK": "7",
    "WORLD_SIZE": "9",
    "MASTER_ADDR": "10.255.255.1",
    "MASTER_PORT": "1",
    "PET_NPROC_PER_NODE": "3",
    "TORCHELASTIC_RUN_ID": "stale",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "FORCE_COLOR": "1",
    "OMP_NUM_THREADS": "77",
    "KEPT": "yes",
}

LIVELY = r"""
import ctypes, os, sys, time
from pathlib import Path

from ddp_lab import worker

rank = int(os.environ["RANK"])
print("first")  # seen by the caller, who then writes the file that we wait for: or the output is not live
seen, limit = Path(sys.argv[1]), time.time() + 60
while not seen.exists():
    assert time.time() < limit, "nobody has seen the first line"
    time.sleep(0.02)

sys.stdout.buffer.write(b"caf\xe9 is no UTF-8\n")
print("gr\u00f6\u00dfe \U0001f600")
for percent in range(0, 101, 20):
    print(f"\r{percent}%", end="")
print()
print("\x1b[31mred\x1b[0m")
os.system("echo from a shell")
ctypes.CDLL(None).printf(b"from C\n")
print("to stderr", file=sys.stderr)
print("no newline at the end", end="")

worker.log(step=3, loss=0.5, name="gr\u00f6\u00dfe")
worker.log(
    argv=sys.argv, name=__name__, file=__file__, cwd=os.getcwd(), path0=sys.path[0],
    environment={k: v for k, v in os.environ.items()}, spec=__spec__ is None, modules="torch" in sys.modules,
)
worker.save("rank", {"rank": rank})
worker.progress(1, 2)
worker.progress(2, 2, loss=0.25)
"""


class Signalling(io.StringIO):
    """An output that writes a file once it has been shown a text."""

    def __init__(self, text, path):
        super().__init__()
        self._text, self._path = text, path

    def write(self, text):
        done = super().write(text)
        if self._text in self.getvalue():
            self._path.touch()
        return done


@pytest.fixture(scope="module")
def lively(tmp_path_factory, start):
    """One run of two ranks with all that a script may print, one GPU present, stale settings, arguments."""
    folder = tmp_path_factory.mktemp("own scripts")
    path = script(folder, LIVELY, "lively script.py")
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho '0, GPU-1, Fake GPU, 1000'\n")
    smi.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in STALE.items():
            patch.setenv(name, value)
        patch.setenv("PATH", f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.chdir(folder)
        gpus._installed.cache_clear()
        out = Signalling("first", folder / "seen")
        arguments = (str(folder / "seen"), "two words", "--x=$HOME")
        yield see(lab.torchrun, path, *arguments, env={"GREETING": "it's me"}, out=out), folder
    gpus._installed.cache_clear()


def test_a_line_is_shown_while_the_run_goes_on(lively):
    seen, _ = lively
    assert seen.error is None, seen.error
    assert seen.run.ok and 0 < seen.run.seconds <= seen.seconds


def test_the_plain_command_stands_above_the_output(lively):
    seen, folder = lively
    assert seen.lines[0] == f"$ {seen.run.command}"
    assert seen.run.command == (
        "GREETING='it'\"'\"'s me' CUDA_VISIBLE_DEVICES='' torchrun --standalone --nproc-per-node 2 "
        f"'lively script.py' {folder}/seen 'two words' '--x=$HOME'"
    ).replace(f"{folder}/seen", shlex.quote(f"{folder}/seen"))


def test_fewer_gpus_than_ranks_means_the_cpu_and_a_line_says_so(lively):
    seen, _ = lively
    assert seen.lines[1] == "2 ranks, but 1 GPU here: the run is on the CPU, with gloo"
    for rank in seen.run.ranks:
        assert rank.records[1]["environment"]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_quiet_line_ends_it(lively):
    seen, _ = lively
    assert re.fullmatch(r"2 ranks · \d+\.\d s", seen.lines[-1])


@pytest.mark.parametrize("rank", [0, 1])
def test_all_that_a_rank_prints_is_shown_in_whole_lines_with_its_rank(lively, rank):
    seen, _ = lively
    mine = [line.removeprefix(f"[rank {rank}] ") for line in seen.lines if line.startswith(f"[rank {rank}] ")]
    assert sorted(plain(line) for line in mine) == sorted(
        ["first", "caf\ufffd is no UTF-8", "größe 😀", "100%", "red", "from a shell", "from C", "to stderr"]
        + ["no newline at the end"]
    )  # fmt: skip
    assert "\x1b[31mred\x1b[0m\x1b[0m" in mine


def test_nothing_else_is_printed_but_the_bar(lively):
    seen, _ = lively
    rest = [line for line in seen.lines[2:-1] if not line.startswith(("[rank 0] ", "[rank 1] "))]
    assert len(rest) == 1 and rest[0].startswith("loss 0.25 ▕████████████████████▏")


@pytest.mark.parametrize("rank", [0, 1])
def test_files_keep_everything_as_it_was_written(lively, rank):
    seen, _ = lively
    one = seen.run.ranks[rank]
    assert one.stdout == (
        "first\ncaf\ufffd is no UTF-8\ngröße 😀\n\r0%\r20%\r40%\r60%\r80%\r100%\n\x1b[31mred\x1b[0m\nfrom a shell\n"
        "from C\nno newline at the end"
    )
    assert one.stderr == "to stderr\n" and one.exitcode == 0


def test_records_and_saved_objects_are_what_was_given(lively):
    seen, _ = lively
    for rank, one in enumerate(seen.run.ranks):
        assert one.records[0] == {"step": 3, "loss": 0.5, "name": "größe"}
        assert dict(one.saved) == {"rank": {"rank": rank}}
    frame = seen.run.frame()
    assert frame[(frame["rank"] == 1) & (frame["name"] == "loss")].value.tolist() == [0.5]


def test_a_script_finds_what_plain_torchrun_would_give_it(lively, start):
    seen, folder = lively
    here = os.path.realpath(folder)
    for rank, one in enumerate(seen.run.ranks):
        found = one.records[1]
        assert found["argv"] == [str(folder / "lively script.py"), str(folder / "seen"), "two words", "--x=$HOME"]
        assert (found["name"], found["file"]) == ("__main__", str(folder / "lively script.py"))
        assert (found["cwd"], found["path0"], found["spec"]) == (here, here, True)
        assert found["modules"] is (start == "warm")  # torch, before the script asked for it
        env = found["environment"]
        assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert env["MASTER_ADDR"] == "127.0.0.1" and env["MASTER_PORT"] != STALE["MASTER_PORT"]
        assert env["TORCHELASTIC_RUN_ID"] != "stale"
        assert env["GREETING"] == "it's me" and env["KEPT"] == "yes"
        assert env["MPLBACKEND"] == "Agg"
        assert env["OMP_NUM_THREADS"] == str(max(1, limits.cores() // 2))
        assert not {"PET_NPROC_PER_NODE", "FORCE_COLOR", "DDP_LAB_RUN_DIR", "DDP_LAB_AGENT"} & set(env)


def test_the_kernels_own_environment_is_left_alone(lively):
    assert {name: os.environ[name] for name in STALE} == STALE


# ---- much output


FLOOD = """
import sys
for n in range(100_000):
    print("line", n)
print("x" * 2_000_000)
sys.stderr.write("y" * 2_000_000)
print("the end")
"""


@pytest.fixture(scope="module")
def flood(tmp_path_factory, start):
    return see(lab.torchrun, script(tmp_path_factory.mktemp("flood"), FLOOD), nproc=1)


def test_a_flood_is_shown_by_its_head_and_tail_and_kept_whole(flood):
    assert flood.error is None, flood.error
    assert len(flood.text) < (HEAD + TAIL) * 100 + 4 * LONGEST and len(flood.lines) < HEAD + TAIL + 10
    assert flood.lines[1:4] == ["[rank 0] line 0", "[rank 0] line 1", "[rank 0] line 2"]
    assert "[rank 0] the end" in flood.lines and "[rank 0] line 99999" in flood.lines
    assert "more lines here, whole in run.ranks[r].stdout" in flood.text
    assert flood.text.count("(2,000,000 characters, whole in run.ranks[0]") == 2
    stdout = flood.run.ranks[0].stdout
    assert stdout.count("\n") == 100_002 and "x" * 2_000_000 in stdout
    assert len(flood.run.ranks[0].stderr) == 2_000_000


# ---- failing runs


ONE_FAILS = """
import os
import torch
import torch.distributed as dist

def loss_of(step):
    if step == 3 and dist.get_rank() == 1:
        raise ValueError("loss is nan\\nat step 3")  # here
    return torch.ones(1)

dist.init_process_group()
print("rank", dist.get_rank(), "began")
for step in range(9):
    dist.all_reduce(loss_of(step))
"""


@pytest.fixture(scope="module")
def one_fails(tmp_path_factory, start):
    path = script(tmp_path_factory.mktemp("one_fails"), ONE_FAILS)
    return see(lab.torchrun, path, show=1), path


def test_a_failed_rank_raises_one_error_that_says_where(one_fails):
    seen, path = one_fails
    error = seen.error
    assert type(error) is lab.RankError and isinstance(error, RuntimeError)
    assert (error.rank, error.file, error.line) == (1, path, line_of(path, "# here"))
    assert error.run.ranks[1].exitcode == 1 and not error.run.ok and error.run.error is error
    assert f"rank 1 failed in train.py, line {error.line} (loss_of)" in str(error).splitlines()[0]
    assert "ValueError: loss is nan\nat step 3" in str(error)


def test_the_other_ranks_end_is_at_most_a_line(one_fails):
    text = str(one_fails[0].error)
    echo = [line for line in text.splitlines() if re.match("rank 0: .* \\(follows from the above\\)", line)]
    assert len(echo) == 1 or "rank 0 was stopped with it" in text.splitlines()[0]


def test_no_traceback_is_shown_twice(one_fails):
    seen, _ = one_fails
    assert "Traceback" not in seen.text and "loss is nan" not in seen.text
    assert str(seen.error).count("raise ValueError") == 1 and "Traceback" not in str(seen.error)
    assert seen.error.run.ranks[1].stderr.count("Traceback (most recent call last)") == 1


def test_only_the_rank_that_was_asked_for_is_shown(one_fails):
    seen, _ = one_fails
    assert "[rank 1] rank 1 began" in seen.lines and "[rank 0]" not in seen.text
    assert "rank 0 began" in seen.error.run.ranks[0].stdout


def test_neither_torchruns_banner_nor_our_frames_are_shown(one_fails):
    seen, _ = one_fails
    for foreign in ("ChildFailedError", "elastic", "rank.py", "agent.py", "guard.py"):
        assert foreign not in seen.text + str(seen.error)


LEAVES_EARLY = """
import torch
import torch.distributed as dist
dist.init_process_group()
for step in range(3 - dist.get_rank()):
    dist.all_reduce(torch.ones(1))  # here
"""


def test_a_rank_that_leaves_early_is_named_though_the_other_one_failed(tmp_path, start):
    path = script(tmp_path, LEAVES_EARLY)
    seen = see(lab.torchrun, path)
    assert (seen.error.rank, seen.error.line) == (0, line_of(path, "# here"))
    assert "rank 1: had ended by itself, without an error." in str(seen.error)
    assert "rank 1 made fewer collectives" in str(seen.error)


def test_a_killed_rank_is_told_in_words_and_who_was_stopped_with_it(tmp_path, start):
    source = "import os, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 9)\ntime.sleep(600)\n"
    seen = see(lab.torchrun, script(tmp_path, source), check=False)
    assert str(seen.error).splitlines()[0] == (
        "rank 1 was killed (SIGKILL), often for memory; rank 0 was stopped with it"
    )
    assert [rank.exitcode for rank in seen.run.ranks] == [-15, -9]


STOPS_WELL = """
import os, signal, sys, time
from pathlib import Path
ready = Path(__file__).with_name("ready")
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as one that saves a last checkpoint
    ready.touch()
    time.sleep(60)
while not ready.exists():
    time.sleep(0.01)
raise ValueError("no data")
"""


def test_a_rank_that_ends_well_when_it_is_stopped_holds_nobody_up(tmp_path, start):
    seen = see(lab.torchrun, script(tmp_path, STOPS_WELL), timeout=20)
    assert type(seen.error) is lab.RankError and seen.error.rank == 1
    assert [rank.exitcode for rank in seen.run.ranks] == [0, 1]


def test_when_all_ranks_fail_alike_there_is_one_report(tmp_path, start):
    seen = see(lab.torchrun, script(tmp_path, "raise ValueError('no data')\n"), expect="ValueError: no data")
    assert seen.run is not None and not seen.run.ok and type(seen.run.error) is lab.RankError
    assert "failed as expected, with 'ValueError: no data'" in seen.text
    assert seen.text.count("raise ValueError") == 1 and "Traceback" not in seen.text


# ---- the command that is shown


def test_the_shown_command_of_a_lab_does_the_same_in_a_shell(tmp_path):
    seen = see(lab.torchrun, "hello", nproc=2, show="none")
    assert [line for line in seen.lines if line.startswith("[rank")] == []
    assert jsons(as_typed(seen.lines[0].removeprefix("$ "), tmp_path)) == dumped(seen.run)
    assert len(dumped(seen.run)) == 2


REPORTS = """
import os, sys
from ddp_lab import worker
worker.log(rank=int(os.environ["RANK"]), size=os.environ["WORLD_SIZE"], argv=sys.argv, name=__name__, file=__file__)
worker.log(folder=sys.path[0], cwd=os.getcwd(), setting=os.environ["SETTING"], spec=str(__spec__))
"""


def test_the_shown_command_of_a_script_does_the_same_in_a_shell(tmp_path, start, monkeypatch):
    (tmp_path / "my work").mkdir()
    script(tmp_path / "my work", REPORTS, "it's mine.py")
    monkeypatch.chdir(tmp_path)
    seen = see(
        lab.torchrun, "my work/it's mine.py", "a b", "--", "$x", "-h", "ü", nproc=3, env={"SETTING": "a 'b' \"c\" $d"}
    )
    assert seen.error is None, seen.error
    assert jsons(as_typed(seen.lines[0].removeprefix("$ "), tmp_path)) == dumped(seen.run)
    assert len(dumped(seen.run)) == 6


# ---- how the command is written


@pytest.mark.parametrize(
    "path, shown",
    [
        ("/here/sub/train.py", "sub/train.py"),
        ("/here/train.py", "train.py"),
        ("/home/me/.cache/run/0001/cell.py", "~/.cache/run/0001/cell.py"),
        ("/home/me/my runs/cell.py", "~/'my runs/cell.py'"),
        ("/elsewhere/deep/train.py", "/elsewhere/deep/train.py"),
    ],
)
def test_a_path_is_written_as_short_as_can_be(monkeypatch, path, shown):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    assert torchrun.shown_command({}, ["torchrun"], [path], []) == f"torchrun {shown}"


def test_settings_stand_in_front_and_everything_is_quoted_for_a_shell():
    command = torchrun.shown_command({"A": "x y", "B": ""}, ["torchrun"], ["-m", "lab"], ["*", "$x"])
    assert command == "A='x y' B='' torchrun -m lab '*' '$x'"


# ---- expect and check, for all that a run may come to; no run is needed for it


FAILED = "ValueError: loss is nan"


@pytest.fixture
def deliver(tmp_path):
    """Deliver a run that has come to `error`, as lab.torchrun does."""

    def call(kind, expect=None, check=True):
        leave(tmp_path / "run", 0, 1, raised("ValueError", "loss is nan", ("/me/train.py", 3, "main")))
        run = run_in(tmp_path / "run", 1)
        errors = {
            "ok": None,
            "failed": failures.RankError(f"rank 0 failed in train.py, line 3 (main)\n\n{FAILED}", run, 0),
            "hang": failures.HangError("no sign of life for 5 s. rank 0 train.py:3 all_reduce", run),
        }
        run.error = errors[kind]
        return see(lambda: outcome.deliver([run], expect, check, 1) or run)

    return call


@pytest.mark.parametrize(
    "kind, expect, check, raises, says",
    [
        ("ok", None, True, None, ""),
        ("failed", None, True, "RankError", ""),
        ("hang", None, True, "HangError", ""),
        ("failed", None, False, None, FAILED),
        ("hang", None, False, None, "all_reduce"),
        ("failed", "loss is nan", True, None, "failed as expected"),
        ("failed", "ValueError", True, None, "failed as expected"),
        ("hang", "all_reduce", True, None, "failed as expected"),
        ("hang", "HangError", True, None, "failed as expected"),
        ("ok", "nan", True, "ExpectationError", ""),
        ("ok", "nan", False, "ExpectationError", ""),
        ("failed", "CUDA", True, "RankError", ""),
        ("hang", "CUDA", True, "HangError", ""),
        ("failed", "main", True, "RankError", ""),  # sought in type and message, not in the lines of code
        ("failed", "CUDA", False, None, FAILED),
    ],
)
def test_what_is_raised_and_what_is_said(deliver, kind, expect, check, raises, says):
    seen = deliver(kind, expect, check)
    if raises is None:
        assert seen.run is not None and says in seen.text
        assert bool(seen.text) == bool(says)
    else:
        assert type(seen.error).__name__ == raises and seen.text == ""
        assert seen.error.run is not None


def test_an_expectation_that_was_not_met_is_an_assertion(deliver):
    error = deliver("ok", "nan").error
    assert isinstance(error, AssertionError) and "'nan'" in str(error) and "ended well" in str(error)


@pytest.mark.parametrize(
    "kind, expect, outcome", [("ok", None, "ok"), ("failed", None, "failed"), ("hang", None, "hang"),
                              ("failed", "nan", "expected"), ("hang", "all_reduce", "expected")]
)  # fmt: skip
def test_the_ledger_gets_a_line_for_each_run(deliver, tmp_path, monkeypatch, kind, expect, outcome):
    monkeypatch.setenv("DDP_LAB_LEDGER", str(tmp_path / "ledger"))
    deliver(kind, expect)
    (line,) = map(json.loads, (tmp_path / "ledger").read_text().splitlines())
    assert line == {
        "event": "run",
        "notebook": "test_torchrun",
        "script": "train.py",
        "nproc": 1,
        "ranks": 0,
        "outcome": outcome,
    }


# ---- long by nature


HEALTHY = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(8, 8))  # a global, in cycles: the interpreter's end would meet it
for step in range(3):
    model(torch.ones(4, 8)).sum().backward()
print("done")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_no_healthy_run_is_lost_at_the_interpreters_end(tmp_path):
    """In a plain process torch 2.14 aborts some of these, the more the busier the machine is."""
    path = script(tmp_path, HEALTHY)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(limits.cores())]
    try:
        for _ in range(50):
            run = see(lab.torchrun, path, timeout=300, stall=120, warm=False).run
            assert run.ok, run.error
            assert [(rank.stdout, rank.exitcode) for rank in run.ranks] == [("done\n", 0)] * 2
    finally:
        for process in busy:
            process.kill()
            process.wait()
