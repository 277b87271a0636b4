"""What cannot be used is refused at once: one line that names the value and the cure, and nothing is started."""

import importlib.util
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import IPython
import pytest
from launching import script, see

import ddp_lab as lab
from ddp_lab import limits
from ddp_lab.launch import folders, magic, torchrun

QUICK = 2.0
"""Seconds in which a wrong call must be answered."""


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A working directory with a script, and a home for runs in which none appears."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / "home"))
    script(tmp_path, "print('hello')", "train.py")
    yield tmp_path
    assert not list(tmp_path.glob("home/*/*")), "a wrong call has begun a run"


def refused(call, *says):
    """Assert that `call` is refused quickly, in one line which holds each of `says`."""
    began = time.monotonic()
    with pytest.raises(lab.InputError) as error:
        call()
    assert time.monotonic() - began < QUICK
    text = str(error.value)
    assert "\n" not in text
    for part in says:
        assert part in text
    assert error.value._render_traceback_() == [f"InputError: {text}"]


def refuses(*says, script="train.py", **options):
    refused(lambda: lab.torchrun(script, **options), *says)


# ---- the script


def test_a_missing_script_is_answered_with_the_nearest_names(there):
    refuses("trian.py", "Did you mean train.py?", script="trian.py")


def test_in_another_folder_the_nearest_names_have_that_folder(there):
    (there / "sub").mkdir()
    (there / "sub" / "model.py").write_text("")
    refuses("Did you mean sub/model.py?", script="sub/modell.py")


@pytest.mark.parametrize("name", ["nothing_like_it_at_all.py", "no/folder/train.py"])
def test_a_missing_script_with_no_near_name_says_where_was_looked(there, name):
    refuses(name, str(there), script=name)


def test_the_name_of_a_lab_has_no_suffix(there):
    refuses("'hello', without .py", script="hello.py")
    refuses("'faults/killed_by_signal', without .py", script="faults/killed_by_signal.py")


def test_a_tilde_is_the_home_folder(there, monkeypatch):
    monkeypatch.setenv("HOME", str(there))
    refuses(f"Did you mean {there}/train.py?", script="~/trian.py")


@pytest.mark.parametrize("name", ["folder", "folder.py"])
def test_a_folder_is_no_script(there, name):
    (there / name).mkdir()
    refuses(f"{name} is a folder", "Name the script", script=name)


def test_a_file_that_is_not_python_is_refused_by_its_name(there):
    (there / "notes.txt").write_text("hello")
    refuses("notes.txt", ".py", script="notes.txt")


def test_a_binary_file_is_not_python(there):
    (there / "data.py").write_bytes(b"\x7fELF\0\0")
    refuses("data.py is not Python", script="data.py")


@pytest.mark.parametrize("name, near", [("hallo", "hello"), ("faults/killed_by_signl", "faults/killed_by_signal")])
def test_an_unknown_lab_is_answered_with_the_nearest_names(there, name, near):
    refuses(name, near, script=name)


@pytest.mark.parametrize("thing", [None, 3, ["train.py"], b"train.py"])
def test_a_script_must_be_a_path_or_a_name(there, thing):
    refuses(repr(thing), type(thing).__name__, script=thing)


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name_at_all_is_refused(there, name):
    refuses("lab", script=name)


# ---- numbers and texts


@pytest.mark.parametrize("nproc", [0, -1, 65, 1000])
def test_nproc_is_1_to_64(there, nproc):
    refuses(f"nproc={nproc}", "1 to 64", nproc=nproc)


@pytest.mark.parametrize("nproc", ["two", "2", 2.0, True, None])
def test_nproc_is_a_whole_number(there, nproc):
    refuses(f"nproc={nproc!r}", "Write nproc=2", nproc=nproc)


def test_nproc_is_at_most_what_free_memory_carries(there, monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: (4 * limits.RANK_MEMORY, 64 * limits.RANK_MEMORY))
    refuses("nproc=32", "memory", "about 4 ranks", nproc=32)
    torchrun.check_nproc(4)


def test_one_rank_is_possible_however_little_memory_is_free(monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: (1, 64 * limits.RANK_MEMORY))
    torchrun.check_nproc(1)


@pytest.mark.parametrize("clock", ["timeout", "stall"])
@pytest.mark.parametrize("value", [-1, 0, float("nan"), "ten", True, [1]])
def test_a_clock_is_a_number_of_seconds_above_0_or_none(there, clock, value):
    refuses(f"{clock}={value!r}", "None means no limit", **{clock: value})


@pytest.mark.parametrize("show", ["some", "0", 2, -1, [0, 5], None, True, [True], 1.0, ["0"]])
def test_show_is_all_none_or_ranks_of_this_run(there, show):
    refuses(f"show={show!r}", show=show)


@pytest.mark.parametrize("arg, cure", [(3, "'3'"), (0.1, "'0.1'"), (None, "'None'"), (Path("x"), "'x'")])
def test_arguments_are_texts(there, arg, cure):
    refused(lambda: lab.torchrun("train.py", "--epochs", arg), repr(arg), f"Write {cure}")


def test_an_argument_with_a_nul_cannot_be_passed_on(there):
    refused(lambda: lab.torchrun("train.py", "a\0b"), "NUL")


@pytest.mark.parametrize(
    "env, says",
    [({"A": 1}, "Write '1'"), ({"a b": "1"}, "'a b'"), ({"A": "x\0"}, "A"), ("A=1", "dict"), ({3: "x"}, "3")],
)
def test_env_is_a_dict_of_names_and_texts(there, env, says):
    refuses("env", says, env=env)


@pytest.mark.parametrize("expect", [3, ["nan"], ValueError, ""])
def test_expect_is_a_text(there, expect):
    refuses(f"expect={expect!r}", expect=expect)


@pytest.mark.parametrize("warm", ["yes", 1, "cold"])
def test_warm_is_yes_or_no_or_left_open(there, warm):
    refuses(f"warm={warm!r}", "True, False", warm=warm)


def test_without_torch_the_cure_is_named(there, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a))
    refuses("torch is not installed", sys.executable, "scripts/lab.py")


def test_a_working_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    refused(lambda: lab.torchrun("train.py"), "working directory", "os.chdir")
    os.chdir(tmp_path)  # for monkeypatch, which asks where it is


# ---- commands


@pytest.mark.parametrize(
    "argv, says",
    [
        (("no_such_command_here",), "no_such_command_here"),
        ((), "empty"),
        (("python", 3), "Write '3'"),
        (("/no/such/file",), "/no/such/file"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(there, argv, says):
    refused(lambda: lab.command(*argv), says)


def test_commands_are_lists_of_parts(there):
    refused(lambda: lab.commands(["python train.py"]), "'python', 'train.py'")
    refused(lambda: lab.commands([]), "no command")
    refused(lambda: lab.commands([["python", "-V"]], show=1), "show=1")


# ---- the magic


CELL = "print('hello')\n"


@pytest.fixture
def shell(there, monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(user_ns={}))


@pytest.mark.parametrize(
    "line, says",
    [
        ("--nporc 2", "Did you mean --nproc?"),
        ("--time 3", "unknown option --time"),
        ("--nproc two", "two"),
        ("--nproc", "--nproc"),
        ("--nproc 0", "nproc=0"),
        ("--timeout soon", "'soon' is not a number of seconds"),
        ("--timeout -3", "-3"),
        ("--show some", "'some' is unknown"),
        ("--show 5", "no rank 5"),
        ("--env A", "--env 'A' has no '='"),
        ("--name train", "--name 'train'"),
        ("--name ../train.py", "--name '../train.py'"),
        ("--result 2x", "--result '2x'"),
        ("--result class", "--result 'class'"),
        ("--epochs 2", "go after `--`"),
        ("train.py", "train.py"),
        ("--env 'A", "cannot be read"),
    ],
)
def test_a_wrong_first_line_of_a_cell_is_refused(shell, line, says):
    refused(lambda: magic.torchrun_cell(line, CELL), says)


@pytest.mark.parametrize("cell", ["", "\n  \n", "# a comment\n"])
def test_an_empty_cell_is_refused(shell, cell):
    refused(lambda: magic.torchrun_cell("", cell), "the cell is empty")


# ---- where runs are kept


def as_other_mounts(command, *mounts):
    """Run a command in a user and mount namespace of its own, in which `mounts` were made first."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a mount namespace")
    inner = " && ".join([*mounts, f"exec {shlex.join(command)}"])
    return subprocess.run([*unshare, "sh", "-c", inner], capture_output=True, text=True, timeout=120)


def tell(folder, code):
    """A command that runs `code` with `lab`, and prints what is raised and how long it took."""
    path = script(folder, f"""
        import time
        import ddp_lab as lab
        began = time.monotonic()
        try:
            {code}
        except Exception as error:
            print(type(error).__name__, error)
        print("seconds", time.monotonic() - began)
    """, "tell.py")  # fmt: skip
    return [sys.executable, path]


def test_a_home_for_runs_that_is_read_only_is_named_with_the_cure(there, monkeypatch):
    closed = there / "closed"
    closed.mkdir()
    monkeypatch.setenv("DDP_LAB_HOME", str(closed))
    done = as_other_mounts(
        tell(there, 'lab.torchrun("train.py")'),
        f"mount --bind {closed} {closed}",
        f"mount -o remount,bind,ro {closed}",
    )
    message, seconds = done.stdout.splitlines()
    assert message.startswith("InputError runs cannot be kept in") and str(closed) in message, done.stderr
    assert "Read-only file system" in message and "DDP_LAB_HOME" in message
    assert float(seconds.split()[1]) < QUICK


def test_a_home_without_room_is_named_with_the_cure(there, monkeypatch):
    full = there / "full"
    full.mkdir()
    monkeypatch.setenv("DDP_LAB_HOME", str(full))
    done = as_other_mounts(
        tell(there, 'lab.torchrun("train.py")'),
        f"mount -t tmpfs -o size=16k tmpfs {full}",
        f"(dd if=/dev/zero of={full}/fill bs=1k 2>/dev/null || true)",
    )
    message = done.stdout.splitlines()[0]
    assert message.startswith("InputError") and str(full) in message and "No space left" in message, done.stderr


def test_a_home_that_is_a_file_is_named_with_the_cure(there, monkeypatch):
    (there / "file").write_text("")
    monkeypatch.setenv("DDP_LAB_HOME", str(there / "file"))
    refuses("runs cannot be kept", str(there / "file"), "DDP_LAB_HOME")


def test_the_home_for_runs_is_for_this_user_only(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / "home"))
    folder = folders.create(2)
    for path in (tmp_path / "home", folder.parent, folder, folder / "rank0"):
        assert path.stat().st_mode & 0o777 == 0o700


# ---- what a rank meets on a bad disk; each is a real run


@pytest.mark.parametrize("warm", [True, False])
def test_a_working_directory_that_is_read_only_hinders_no_run(there, warm, monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setenv("DDP_LAB_HOME", str(home))
    done = as_other_mounts(
        tell(home, f'print(lab.torchrun("train.py", nproc=1, warm={warm}).ok)'),
        f"mount --bind {there} {there}",
        f"mount -o remount,bind,ro {there}",
        f"cd {there}",
    )
    assert "[rank 0] hello" in done.stdout and "True" in done.stdout.splitlines(), done.stdout + done.stderr


FILLS = {
    "records": """
        from ddp_lab import worker
        worker.log(step=1)
        for step in range(2, 10_000):
            worker.log(step=step, text="x" * 10_000)  # fills it
    """,
    "to the last byte": """
        import os, pathlib
        place = pathlib.Path(os.environ["DDP_LAB_RANK_DIR"])
        with open(place / "filler", "wb", buffering=0) as file:
            while True: file.write(bytes(4096))  # fills it
    """,
}


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("way", FILLS)
def test_a_disk_that_fills_up_is_the_error_of_the_rank_that_wrote(there, warm, way, monkeypatch):
    small = there / "small"
    small.mkdir()
    monkeypatch.setenv("DDP_LAB_HOME", str(small))
    script(there, FILLS[way])
    done = as_other_mounts(
        tell(there, f'lab.torchrun("train.py", nproc=1, warm={warm})'),
        f"mount -t tmpfs -o size=1m tmpfs {small}",
    )
    assert "RankError rank 0 failed in train.py, line 5" in done.stdout, done.stdout + done.stderr
    assert "OSError" in done.stdout and "No space left on device" in done.stdout


def test_a_folder_that_is_removed_during_the_run_is_one_clear_line(there, start, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path_factory.mktemp("home")))
    source = """
        import os, pathlib, shutil, time
        shutil.rmtree(pathlib.Path(os.environ["DDP_LAB_RANK_DIR"]).parent)
        print("gone")
    """
    seen = see(lab.torchrun, script(there, source), nproc=1)
    assert type(seen.error) is lab.InputError and "was removed" in str(seen.error), seen.error
    assert "\n" not in str(seen.error) and "is gone" in repr(seen.run)


ODD_RANKS = """
import os, sys, time
print("before", flush=True)
match os.environ["RANK"]:
    case "0": os.close(1)
    case "1": sys.stdout.close()
    case "2": os.fork() or time.sleep(600)  # goes, and leaves a child
"""


def test_ranks_that_behave_oddly_end_all_the_same(there, start, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path_factory.mktemp("home")))
    seen = see(lab.torchrun, script(there, ODD_RANKS), nproc=3)
    assert seen.error is None, seen.error
    assert [rank.stdout for rank in seen.run.ranks] == ["before\n"] * 3
    assert seen.seconds < 30, "the run waited for what a rank has left behind"
