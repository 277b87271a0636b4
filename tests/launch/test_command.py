"""lab.command and lab.commands: any other command, shown, timed, ended and told as a run of torchrun is."""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from launching import script, see

import ddp_lab as lab


def python(code, *args, **options):
    return see(lab.command, "python", "-c", code, *args, **options)


def test_a_command_gives_a_run_with_one_entry():
    code = (
        "import sys; from ddp_lab import worker; print('out'); print('err', file=sys.stderr); worker.log(step=1, x=0.5)"
    )
    seen = python(code)
    assert seen.error is None and seen.run.ok
    (only,) = seen.run.ranks
    assert (only.stdout, only.stderr, only.exitcode) == ("out\n", "err\n", 0)
    assert only.records == [{"step": 1, "x": 0.5}]
    assert seen.run.frame().values.tolist() == [[0, 1, "x", 0.5]]
    assert seen.lines == [f"$ {seen.run.command}", "out", "err", f"{seen.run.seconds:.1f} s"]
    assert seen.run.command == f"python -c {shlex.quote(code)}"


def test_python_is_that_of_this_kernel():
    seen = python("import sys; print(sys.prefix)")
    assert seen.run.ranks[0].stdout.strip() == sys.prefix


def test_it_runs_here_with_these_settings_and_no_stale_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("MASTER_PORT", "1")
    code = "import os; print(os.getcwd()); print(os.environ['A'], 'RANK' in os.environ, 'MASTER_PORT' in os.environ)"
    seen = python(code, env={"A": "x y"})
    assert seen.run.ranks[0].stdout.splitlines() == [os.path.realpath(tmp_path), "x y False False"]
    assert seen.run.command.startswith("A='x y' python -c")


def test_its_stdin_is_empty():
    assert python("import sys; print(repr(sys.stdin.read()))").run.ranks[0].stdout == "''\n"


def test_an_exit_code_is_a_command_error_with_the_end_of_stderr():
    seen = python("import sys; print('all went wrong', file=sys.stderr); sys.exit(3)")
    assert type(seen.error) is lab.CommandError and isinstance(seen.error, lab.RankError)
    assert str(seen.error) == "python ended with exit code 3. The end of its stderr:\n\nall went wrong"
    assert seen.error.run.ranks[0].exitcode == 3 and seen.error.rank == 0


def test_a_signal_is_told_in_words():
    seen = python("import os; os.kill(os.getpid(), 9)")
    assert str(seen.error) == "python was killed (SIGKILL), often for memory, and said nothing on stderr."
    assert seen.error.run.ranks[0].exitcode == -9


def test_an_expectation_is_sought_in_the_end_of_stderr():
    seen = python("raise OSError('Address already in use')", expect="Address already in use")
    assert seen.run is not None and not seen.run.ok and "failed as expected" in seen.text
    assert type(python("raise OSError('no')", expect="Address").error) is lab.CommandError
    assert type(python("print('Address')", expect="Address").error) is lab.ExpectationError


def test_check_false_returns_what_failed():
    seen = python("raise SystemExit(4)", check=False)
    assert seen.run is not None and type(seen.run.error) is lab.CommandError


@pytest.mark.parametrize("show, shown", [("all", True), ("none", False), (0, True)])
def test_show_chooses_what_is_seen_and_all_is_kept(show, shown):
    seen = python("print('hel' + 'lo')", show=show)
    assert ("hello" in seen.lines) is shown and seen.run.ranks[0].stdout == "hello\n"


def test_a_command_that_cannot_start_says_so(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    seen = see(lab.command, str(broken))
    assert type(seen.error) is lab.CommandError and "No such file" in str(seen.error)
    assert seen.error.run.ranks[0].exitcode == 127


def test_an_interrupt_ends_it_and_claims_nothing_about_where_it_stood():
    code = f"import os, time; os.kill({os.getpid()}, {signal.SIGINT}); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt) as stop:
        lab.command("python", "-c", code, show="none")
    assert str(stop.value).endswith("s; nothing of the run is left.") and "\n" not in str(stop.value)
    assert stop.value.run.ranks[0].exitcode == -signal.SIGTERM and not stop.value.run.ok


def test_a_path_may_be_a_path(tmp_path):
    seen = see(lab.command, Path(sys.executable), script(tmp_path, "print('hello')"))
    assert seen.run.ranks[0].stdout == "hello\n"


def test_what_a_command_leaves_behind_is_ended_with_it():
    code = (
        "import subprocess, sys\n"
        "sleep = 'import time; time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', sleep], start_new_session=True)\n"
        "print(child.pid)"
    )
    seen = python(code)
    assert seen.error is None and seen.seconds < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.run.ranks[0].stdout), 0)


def test_several_commands_run_at_once_and_come_back_as_a_list(tmp_path):
    meet = script(tmp_path, """
        import sys, time
        from pathlib import Path
        me, other = Path(sys.argv[1]), Path(sys.argv[2])
        me.touch()
        limit = time.time() + 60
        while not other.exists():
            assert time.time() < limit, "the other command was not started"
            time.sleep(0.02)
        print("met", other.name)
    """)  # fmt: skip
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    seen = see(lab.commands, [["python", meet, a, b], ["python", meet, b, a]])
    assert seen.error is None and isinstance(seen.run, list)
    assert [run.ranks[0].stdout for run in seen.run] == ["met b\n", "met a\n"]
    assert "[command 0] met b" in seen.lines and "[command 1] met a" in seen.lines
    assert seen.lines[:2] == [f"$ {run.command}" for run in seen.run]
    assert seen.lines[-1].startswith("2 commands · ")


def test_of_several_commands_the_failure_of_one_is_raised_when_all_have_ended():
    seen = see(lab.commands, [["python", "-c", "print('well')"], ["python", "-c", "raise SystemExit(3)"]])
    assert type(seen.error) is lab.CommandError and seen.error.run.ranks[0].exitcode == 3
    both = see(lab.commands, [["python", "-c", "print('well')"], ["python", "-c", "raise SystemExit(3)"]], check=False)
    assert [run.ok for run in both.run] == [True, False]


def test_a_raw_torchrun_runs_as_typed(tmp_path):
    # In one write: under a raw torchrun the ranks share one stream, and print() writes a newline by itself.
    path = script(tmp_path, "import os\nos.write(1, 'rank {RANK} of {WORLD_SIZE}\\n'.format(**os.environ).encode())\n")
    seen = see(lab.command, "torchrun", "--standalone", "--nproc-per-node", "2", path)
    assert seen.error is None, seen.error
    assert sorted(seen.run.ranks[0].stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
