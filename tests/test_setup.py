"""The two commands: how they set the course up, where they refuse to, and how the tests are run.

A stand-in for pip, inside a real virtual environment, keeps these tests short; those marked slow do it all.
"""

import ast
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"


def load(name):
    """A module of scripts/, under a name of its own: `test` is one of Python's packages."""
    spec = importlib.util.spec_from_file_location(f"ddp_lab_scripts_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(SCRIPTS))
try:
    import _python
    import _setup
    lab, test = load("lab"), load("test")
finally:
    sys.path.remove(str(SCRIPTS))

# Stands in for pip: notes how it was called, then does as $FAKE_PIP says: [[a word of the call, what happens]].
FAKE_PIP = """
import json, os, sys, time
from pathlib import Path

site = Path(__file__).parent.parent
with open(site / "calls", "a") as f:
    f.write(json.dumps(sys.argv[1:]) + "\\n")
for word, what in json.loads(os.environ.get("FAKE_PIP", "[]")):
    if any(word in a for a in sys.argv):
        if what == "wait":
            print("Installing collected packages: torch", flush=True)
            print("pid", os.getpid(), flush=True)
            limit = time.monotonic() + 60
            while not (site / "go").exists() and time.monotonic() < limit:
                time.sleep(0.05)
            break
        sys.exit(what)
for a in sys.argv:
    if a.startswith(("torch>", "torchvision>")):
        (site / (a.split(">")[0] + "-2.14.1.dist-info")).mkdir(exist_ok=True)
"""
NO_NETWORK = ("WARNING: Retrying after connection broken by 'NewConnectionError(...: [Errno -2] Name or service "
              "not known)'\nERROR: No matching distribution found for torch")


def fake_venv(folder, marked=True):
    """A virtual environment whose pip is the stand-in."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    package = next(folder.glob("lib/python*/site-packages")) / "pip"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_PIP)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A checkout of its own for _setup, with room on the disk, no GPU and no CPU index."""
    return checkout(tmp_path / "course", monkeypatch)


def checkout(root, monkeypatch):
    root.mkdir()
    shutil.copy(ROOT / "pyproject.toml", root)
    monkeypatch.setattr(_setup, "ROOT", root)
    monkeypatch.setattr(_setup, "VENV", root / ".venv")
    monkeypatch.setattr(_setup, "make_venv", lambda: (root / ".venv").exists() or fake_venv(root / ".venv"))
    monkeypatch.setattr(_setup, "has_driver", lambda: False)
    monkeypatch.setattr(_setup, "answers", lambda url: False)
    monkeypatch.setattr(_setup.sys, "platform", "linux")
    room(monkeypatch, 100)
    monkeypatch.delenv("FAKE_PIP", raising=False)
    return root


def room(monkeypatch, gigabytes):
    monkeypatch.setattr(_setup.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, gigabytes * 1e9))


def fail(monkeypatch, word, said):
    """Makes the stand-in for pip fail, saying this, when called with this word."""
    monkeypatch.setenv("FAKE_PIP", json.dumps([[word, said]]))


def calls(course):
    """How pip was called in the `.venv` that is there now, each call's words in one string."""
    noted = next(course.glob(".venv/lib/python*/site-packages")) / "calls"
    return [" ".join(json.loads(line)) for line in noted.read_text().splitlines()] if noted.exists() else []


def stopped(*arguments, **options):
    """The (line, exit code) with which prepare stops."""
    with pytest.raises(_setup.Stop) as end:
        _setup.prepare(*arguments, **options)
    assert "\n" not in str(end.value)
    return str(end.value), end.value.code


# ---- the machine

def test_a_python_out_of_range_is_named_with_the_range_and_a_better_one(tmp_path):
    for version in (3, 9), (3, 15):
        line = _python.complaint(version, "linux", [str(tmp_path)])
        assert "3.10 to 3.14" in line and f"is Python {version[0]}.{version[1]}" in line
    (tmp_path / "python3.12").touch(0o755)
    assert "python3.12 here" in _python.complaint((3, 8), "linux", ["/nowhere", str(tmp_path)])


def test_pythons_in_range_are_taken_and_windows_is_sent_to_wsl():
    assert [_python.complaint((3, minor), "linux", []) for minor in range(10, 15)] == [None] * 5
    assert "WSL" in _python.complaint((3, 12), "win32", [])


@pytest.mark.parametrize("script", ["lab.py", "test.py", "_python.py"])
def test_an_old_python_can_read_the_commands_far_enough_to_refuse(script):
    ast.parse((SCRIPTS / script).read_text(), feature_version=(3, 7))
    if script != "_python.py":
        tree = ast.parse((SCRIPTS / script).read_text())
        first = next(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        assert first.names[0].name == "_python"


def test_no_room_on_the_disk_stops_before_anything_is_made(course, monkeypatch):
    room(monkeypatch, 2)
    line, code = stopped()
    assert code == 2 and "no room" in line and "2.0 GB free" in line
    assert not (course / ".venv").exists()


def test_cpu_wheels_need_less_room(course, monkeypatch):
    room(monkeypatch, 2)
    monkeypatch.setattr(_setup, "answers", lambda url: True)
    _setup.prepare()


def test_a_disk_that_fills_up_is_said_so(course, monkeypatch):
    fail(monkeypatch, "torch>", "ERROR: Could not install packages: [Errno 28] No space left on device")
    line, code = stopped()
    assert code == 2 and "no room left" in line


def test_no_network_is_one_line_that_says_so(course, monkeypatch):
    fail(monkeypatch, "torch>", NO_NETWORK)
    line, code = stopped()
    assert code == 1 and line.startswith("no network") and ".venv/setup.log" in line


def test_a_package_that_the_index_lacks_is_named(course, monkeypatch):
    fail(monkeypatch, "torch>", "ERROR: No matching distribution found for torch<2.15,>=2.14.1")
    line, code = stopped()
    assert code == 1 and "has no torch<2.15,>=2.14.1 for Python" in line


def test_any_other_failure_shows_pips_error(course, monkeypatch):
    fail(monkeypatch, "torch>", "some noise\nERROR: the wheel is corrupt")
    assert stopped()[0].startswith("[3/4] torch and torchvision failed: the wheel is corrupt")


def test_a_path_with_a_colon_is_refused(tmp_path, monkeypatch):
    checkout(tmp_path / "a:b", monkeypatch)
    line, code = stopped()
    assert code == 2 and "':'" in line


def test_a_path_with_spaces_works_with_a_note(tmp_path, monkeypatch, capsys):
    root = checkout(tmp_path / "my 'own' course", monkeypatch)
    _setup.prepare()
    assert "spaces" in capsys.readouterr().out
    before = calls(root)
    _setup.prepare()
    assert calls(root) == before, "not seen as finished the second time"


def test_a_folder_that_is_no_environment_is_not_touched(course):
    (course / ".venv").mkdir()
    (course / ".venv" / "thesis.txt").write_text("mine")
    line, code = stopped()
    assert code == 2 and "no virtual environment" in line
    with pytest.raises(_setup.Stop):
        _setup.clean()
    assert (course / ".venv" / "thesis.txt").exists()


# ---- which torch

def test_a_driver_means_the_default_index(monkeypatch):
    monkeypatch.setattr(_setup, "has_driver", lambda: True)
    monkeypatch.setattr(_setup, "answers", lambda url: pytest.fail("asked an index that is not wanted"))
    monkeypatch.setattr(_setup.sys, "platform", "linux")
    index, why = _setup.choose_index(None)
    assert index is None and "NVIDIA driver found" in why


@pytest.mark.parametrize("there", [True, False])
def test_without_a_driver_the_cpu_index_is_taken_if_it_answers(course, monkeypatch, there):
    monkeypatch.setattr(_setup, "answers", lambda url: there)
    index, why = _setup.choose_index(None)
    assert index == (_setup.CPU_INDEX if there else None)
    assert "no NVIDIA driver" in why and ("does not answer" in why) is not there


def test_the_index_asked_for_is_taken(course):
    assert _setup.choose_index("https://example.org/whl")[0] == "https://example.org/whl"


def test_macs_take_the_default_index(course, monkeypatch):
    monkeypatch.setattr(_setup.sys, "platform", "darwin")
    monkeypatch.setattr(_setup, "answers", lambda url: True)
    assert _setup.choose_index(None)[0] is None


def test_a_silent_index_is_given_up_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        assert not _setup.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/", seconds=0.3)
        assert time.monotonic() - began < 2


def test_a_name_that_is_looked_up_for_ever_is_given_up_in_time(monkeypatch):
    over = threading.Event()

    def look_up(*_, **__):
        over.wait()
        raise socket.gaierror("given up")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    began = time.monotonic()
    try:
        assert not _setup.answers("http://index.example/", seconds=0.3)
        assert time.monotonic() - began < 2
    finally:
        over.set()


def test_torch_and_torchvision_both_come_from_the_index_and_the_rest_does_not(course, monkeypatch):
    monkeypatch.setattr(_setup, "answers", lambda url: True)
    _setup.prepare()
    there = [call for call in calls(course) if _setup.CPU_INDEX in call]
    assert len(there) == 1 and "torch>=" in there[0] and "torchvision>=" in there[0]
    assert "--editable" in calls(course)[-1] and "--index-url" not in calls(course)[-1]


def test_when_the_cpu_index_fails_the_default_one_is_taken(course, monkeypatch, capsys):
    monkeypatch.setattr(_setup, "answers", lambda url: True)
    fail(monkeypatch, _setup.CPU_INDEX, "ERROR: 403")
    _setup.prepare()
    assert "taking torch from the default index" in capsys.readouterr().out
    assert _setup.read_stamp()["torch_index"] is None


def test_when_the_index_asked_for_fails_so_does_the_command(course, monkeypatch):
    fail(monkeypatch, "https://example.org", "ERROR: 403")
    assert stopped(torch_index="https://example.org")[1] == 1


def test_a_torch_from_another_index_than_the_one_asked_for_is_replaced(course, capsys):
    _setup.prepare(torch_index="https://example.org/a")
    _setup.prepare()
    assert len(calls(course)) == 3, "no wish is no reason to run anything"
    _setup.prepare(torch_index="https://example.org/b")
    assert "another index" in capsys.readouterr().out
    assert len(calls(course)) == 3, "not made from the beginning"


# ---- again, after an interruption, after changes

def test_a_second_call_runs_nothing(course, capsys):
    _setup.prepare()
    before = calls(course)
    capsys.readouterr()
    _setup.prepare()
    assert calls(course) == before and capsys.readouterr().out == ""


def test_the_tests_add_to_the_environment_and_the_course_keeps_what_they_added(course):
    _setup.prepare()
    _setup.prepare(extras=["test"])
    assert calls(course)[-1].endswith("[test]")
    before = calls(course)
    _setup.prepare()
    assert calls(course) == before


def test_new_dependencies_are_added_to_what_is_there(course):
    _setup.prepare()
    before = calls(course)
    project = course / "pyproject.toml"
    project.write_text(project.read_text().replace("dependencies = [\n", 'dependencies = [\n    "rich",\n'))
    _setup.prepare()
    assert len(calls(course)) == 2 * len(before)


def test_a_changed_setting_of_a_tool_changes_nothing(course):
    _setup.prepare()
    before = calls(course)
    project = course / "pyproject.toml"
    project.write_text(project.read_text().replace("line-length = 110", "line-length = 100"))
    _setup.prepare()
    assert calls(course) == before


def test_an_environment_made_by_hand_is_completed(course, capsys):
    fake_venv(course / ".venv")
    _setup.prepare()
    assert "completing" in capsys.readouterr().out and len(calls(course)) == 3


def stale(course, how):
    """Makes the finished `.venv` of no use in one of the ways that happen."""
    venv = course / ".venv"
    if how == "its Python is gone":
        (venv / "bin" / "python").unlink()
        (venv / "bin" / "python").symlink_to("/nowhere/python3")
    elif how == "its Python does not run":
        (venv / "bin" / "python").unlink()
        (venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
        (venv / "bin" / "python").chmod(0o755)
    elif how == "another folder":
        other = course.parent / "moved"
        shutil.copytree(venv, other, symlinks=True)
        shutil.rmtree(venv)
        activate = other / "bin" / "activate"
        activate.write_text(activate.read_text().replace(str(course), "/home/before/course"))
        other.rename(venv)
    elif how == "made by Python 3.9":
        config = venv / "pyvenv.cfg"
        lines = config.read_text().splitlines()
        config.write_text("\n".join("version = 3.9.1" if x.startswith("version") else x for x in lines))
    elif how == "it has no pip":
        shutil.rmtree(next(venv.glob("lib/python*/site-packages/pip")))
    elif how == "interrupted":
        (venv / "half-made").touch()
    elif how == "empty":
        shutil.rmtree(venv)
        venv.mkdir()
    elif how == "a link":
        shutil.rmtree(venv)
        venv.symlink_to("/nowhere/.venv")


@pytest.mark.parametrize("how", ["its Python is gone", "its Python does not run", "another folder", "interrupted",
                                 "made by Python 3.9", "it has no pip", "empty", "a link"])
def test_a_stale_environment_is_made_again_and_one_line_says_why(course, capsys, how):
    _setup.prepare()
    (course / ".venv" / "old").touch()
    stale(course, how)
    capsys.readouterr()
    _setup.prepare()
    told = [line for line in capsys.readouterr().out.splitlines() if "again" in line]
    assert len(told) == 1 and how in told[0]
    assert not (course / ".venv" / "old").exists() and len(calls(course)) == 3


def test_a_failed_step_leaves_no_finished_environment(course, monkeypatch):
    fail(monkeypatch, "--editable", "ERROR: no")
    stopped()
    monkeypatch.delenv("FAKE_PIP")
    _setup.prepare()
    assert calls(course)[-1].endswith(str(course))
    assert _setup.read_stamp()


# _setup as a command of its own, for a checkout whose `.venv` has the stand-in for pip.
COMMAND = textwrap.dedent("""
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    import _setup
    _setup.ROOT, _setup.VENV = Path(sys.argv[2]), Path(sys.argv[2]) / ".venv"
    _setup.choose_index = lambda wanted: (None, "")
    _setup.check_room = lambda kind: None
    sys.exit(_setup.main(_setup.prepare))
""")


def start(course, **env):
    return subprocess.Popen([sys.executable, "-c", COMMAND, SCRIPTS, course], env={**os.environ, **env},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds=20):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come about in time"
        time.sleep(0.05)


def pip_pid(course):
    """The process that is installing in course; None while there is none."""
    log = course / ".venv" / "setup.log"
    said = log.read_text().split() if log.exists() else []
    return int(said[said.index("pid") + 1]) if "pid" in said[:-1] else None


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_pip_and_the_next_call_makes_it_good(course, capsys, sign):
    fake_venv(course / ".venv")
    command = start(course, FAKE_PIP=json.dumps([["torch>", "wait"]]))
    wait_for(lambda: pip_pid(course))
    pip = psutil.Process(pip_pid(course))
    command.send_signal(sign)
    _, errors = command.communicate(timeout=20)
    assert command.returncode == 130
    assert errors.strip().startswith("interrupted") and len(errors.strip().splitlines()) == 1
    wait_for(lambda: not pip.is_running(), 3)

    _setup.prepare()
    assert "its making was interrupted): making it again" in capsys.readouterr().out
    assert len(calls(course)) == 3 and _setup.read_stamp()


def test_two_set_ups_in_one_folder_take_turns(course):
    fake_venv(course / ".venv")
    first = start(course, FAKE_PIP=json.dumps([["torch>", "wait"]]))
    wait_for(lambda: pip_pid(course))
    second = start(course)
    assert "waiting" in second.stdout.readline()
    assert second.poll() is None
    (_setup.site_packages() / "go").touch()
    assert second.communicate(timeout=20)[0] == "" and second.returncode == 0
    assert first.wait(20) == 0
    first.communicate()
    assert len(calls(course)) == 3, "the second did it again"


def test_a_set_up_waits_for_a_pip_that_outlived_its_command(course):
    fake_venv(course / ".venv")
    first = start(course, FAKE_PIP=json.dumps([["torch>", "wait"]]))
    wait_for(lambda: pip_pid(course))
    pip = psutil.Process(pip_pid(course))
    first.kill()
    first.communicate()
    try:
        assert pip.is_running()
        second = start(course)
        assert "waiting" in second.stdout.readline()
    finally:
        second.kill()
        pip.kill()
    second.communicate()


def test_foreseen_ends_have_their_exit_code_and_no_traceback(capsys):
    def end(code):
        raise _setup.Stop("one line", code)

    def interrupt():
        raise KeyboardInterrupt

    assert [_setup.main(lambda c=code: end(c)) for code in (1, 2)] == [1, 2]
    assert capsys.readouterr().err == "one line\none line\n"
    assert _setup.main(interrupt) == 130
    assert _setup.main(lambda: 0) == 0


def test_clean_removes_the_environment_and_not_what_a_link_leads_to(course, tmp_path, capsys):
    _setup.prepare()
    _setup.clean()
    assert not (course / ".venv").exists()
    _setup.clean()
    assert "nothing to remove" in capsys.readouterr().out

    fake_venv(tmp_path / "elsewhere")
    (course / ".venv").symlink_to(tmp_path / "elsewhere")
    _setup.clean()
    assert not os.path.lexists(course / ".venv") and (tmp_path / "elsewhere" / "pyvenv.cfg").exists()


def test_the_environments_kernel_and_programs_come_first(monkeypatch):
    monkeypatch.setenv("JUPYTER_PATH", "/home/me/jupyter")
    monkeypatch.setenv("PYTHONPATH", "/home/me/modules")
    env = _setup.environment()
    assert env["JUPYTER_PATH"].split(os.pathsep) == [str(_setup.VENV / "share/jupyter"), "/home/me/jupyter"]
    assert env["PATH"].split(os.pathsep)[0] == str(_setup.VENV / "bin")
    assert "PYTHONPATH" not in env


# ---- what is shown meanwhile

def test_pips_lines_become_a_stage(course):
    line = _setup.Line("a step", out=open(os.devnull, "w"))
    assert line.read("Collecting numpy>=1.26") == "looking for numpy>=1.26"
    assert line.read("Downloading torch-2.14.1-cp311-x86_64.whl (554.6 MB)") == "downloading torch (554.6 MB)"
    assert line.read("Progress 120000000 of 554600000") == "downloading torch, 120 of 555 MB"
    fake_venv(course / ".venv")
    line.read("Installing collected packages: numpy, jupyterlab_server, torch")
    (_setup.site_packages() / "numpy-2.0.dist-info").mkdir()
    assert line.read("") == "installing jupyterlab_server, 2 of 3 to go"


def test_off_a_terminal_a_step_is_plain_lines_now_and_then(capsys):
    line = _setup.Line("a step", every=0)
    line.show("Collecting numpy")
    line.close()
    out = capsys.readouterr().out
    assert "\r" not in out and "\x1b" not in out and "looking for numpy" in out


# ---- lab.py

def test_a_taken_port_is_refused_and_the_default_moves_on():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(_setup.Stop, match=f"port {port} is taken") as end:
            lab.choose_port(port)
        assert end.value.code == 2
    assert lab.choose_port(port) == port
    assert lab.choose_port(None) >= 8888


@pytest.mark.parametrize("argv", [["--port", "two"], ["--port", "0"], ["--port", "70000"], ["--prot", "1"],
                                  ["--torch-index", "cpu"], ["notebook.ipynb"]])
def test_bad_usage_of_lab_is_exit_code_2(argv, capsys):
    with pytest.raises(SystemExit) as end:
        lab.arguments(argv)
    assert end.value.code == 2
    assert argv[-1] in capsys.readouterr().err


def test_over_ssh_the_tunnel_is_shown():
    assert lab.tunnel(8890, "10.0.0.2 50000 192.0.2.7 22").startswith("ssh -N -L 8890:127.0.0.1:8890 ")
    assert lab.tunnel(8890, "10.0.0.2 50000 192.0.2.7 22").endswith("@192.0.2.7")
    assert lab.tunnel(8890, None) is None


def test_jupyterlab_is_told_not_to_ask_about_news(monkeypatch, tmp_path):
    monkeypatch.setattr(_setup, "VENV", tmp_path)
    _setup.ask_nothing()
    overrides = json.loads((tmp_path / "share/jupyter/lab/settings/overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


@pytest.mark.parametrize("report, code", [(0, 0), (2, 2), (1, 2), (-9, 2)])
def test_check_ends_with_2_on_an_unfit_machine(monkeypatch, report, code):
    monkeypatch.setattr(_setup, "prepare", lambda **_: None)
    monkeypatch.setattr(lab, "arguments", lambda: lab.argparse.Namespace(clean=False, check=True, torch_index=None))
    monkeypatch.setattr(lab.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], report))
    assert lab.run() == code


def test_jupyterlab_opens_the_first_notebook_on_loopback_alone():
    command = lab.jupyter(8890, browser=False)
    assert command[1:3] == ["-m", "jupyterlab"]
    assert {"--ServerApp.ip=127.0.0.1", "--ServerApp.port=8890", "--no-browser",
            "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb"} <= set(command)
    assert "--no-browser" not in lab.jupyter(8890, browser=True)


# ---- test.py, and the tests' own manners (conftest.py)

def pytest_words(*argv):
    return test.pytest_command(*test.arguments(list(argv)))[2:]


def test_everything_but_slow_runs_by_default():
    words = pytest_words()
    assert words[-2:] == [str(ROOT / "tests"), str(ROOT / "notebooks")]
    assert "--nbmake" in words and words[words.index("-m", 1) + 1] == "not slow"


@pytest.mark.parametrize("argv, expression", [
    (["--fast"], "not slow and not browser"), (["--slow"], ""), (["--fast", "--slow"], "not browser"),
    (["-m", "gpu or browser"], "(gpu or browser) and not slow")])
def test_markers_are_combined(argv, expression):
    words = pytest_words(*argv)
    assert words[words.index("-m", 1) + 1] == expression


@pytest.mark.parametrize("word", ["tests/test_nope.py", "tests/test_nope.py::test_it", "notebooks/99_nope.ipynb"])
def test_a_file_that_is_not_there_is_told_and_does_not_start_all(word, tmp_path, monkeypatch):
    with pytest.raises(test._setup.Stop, match="there is no .*nope") as stop:
        pytest_words(word)
    assert stop.value.code == 2
    monkeypatch.chdir(tmp_path)  # from another folder the files are elsewhere
    with pytest.raises(test._setup.Stop, match=f"in {tmp_path}"):
        pytest_words("tests/test_setup.py")
    assert "tests/test_nope.py" in pytest_words("--ignore", "tests/test_nope.py")


def test_what_it_does_not_know_goes_on_to_pytest(tmp_path, monkeypatch):
    (tmp_path / "report.xml").touch()
    (tmp_path / "port").mkdir()
    monkeypatch.chdir(tmp_path)
    argv = ["-k", "port", "--junitxml", "report.xml", "-x"]
    assert pytest_words(*argv)[-7:] == [*argv, str(ROOT / "tests"), str(ROOT / "notebooks")]


def test_one_after_the_other_can_be_had():
    words = pytest_words("-n", "0")
    assert [words[i + 1] for i, word in enumerate(words) if word == "-n"][-1] == "0"  # pytest takes the last


def test_named_tests_alone_are_run():
    assert pytest_words(f"{__file__}::test_named_tests_alone_are_run", "-x")[-2:] == [
        f"{__file__}::test_named_tests_alone_are_run", "-x"]
    assert "-n" not in pytest_words(__file__)


def test_a_process_that_a_test_left_is_named_and_ended(monkeypatch):
    monkeypatch.setattr(_setup, "python", lambda: sys.executable)
    marks = secrets.token_hex(), secrets.token_hex()  # of this run of this test and of another
    left, other = (subprocess.Popen(["sleep", "60"], env={**os.environ, "DDP_LAB_MARK": mark}) for mark in marks)
    try:
        assert test.survivors(marks[0]) == [f"{left.pid} sleep 60"]
        assert left.wait(5) == -signal.SIGKILL
        assert other.poll() is None
        assert test.survivors(marks[0]) == []
    finally:
        for process in left, other:
            process.kill()
            process.wait()


MANNERS = """
import pytest

def test_plain(): pass

def test_skips(): pytest.skip("chromium is missing")

@pytest.mark.gpu
def test_gpu(): pytest.skip("one GPU wanted")

@pytest.mark.xfail
def test_known(): assert False

@pytest.mark.slow
def test_long(): pass
"""


def manners(tmp_path, *options, ci="true", allowed=""):
    """Runs the tests above under this conftest.py; (exit code, output's lines)."""
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "hollow.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "allowed_skips.txt").write_text(allowed)
    (tmp_path / "tests" / "test_some.py").write_text(MANNERS)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests", *options]
    env = {**os.environ, "CI": ci, "DDP_LAB_LEDGER": str(tmp_path / "ledger.jsonl")}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    return done.returncode, (done.stdout or done.stderr).splitlines()


def test_ci_forbids_a_skip_and_names_it_above_pytests_own_last_line(tmp_path):
    code, lines = manners(tmp_path)
    assert code == 1
    where = next(i for i, line in enumerate(lines) if "CI does not allow" in line)
    assert list(filter(None, lines[where + 1:-1])) == ["tests/test_some.py::test_skips"]
    assert "1 passed, 2 skipped, 1 deselected, 1 xfailed" in lines[-1]


def test_ci_allows_skips_of_gpu_tests_and_those_listed_with_a_reason(tmp_path):
    assert manners(tmp_path, allowed="tests/*::test_skips: no browser in that image\n")[0] == 0


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "side by side"])
def test_a_notebook_that_has_passed_hollow_fails_the_session(tmp_path, options):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    for name, runs in {"07_it.ipynb": 2, "08_it.ipynb": 0}.items():
        notebook.metadata = {"ddp_lab": {"runs": runs}, "kernelspec": {"name": "python3", "display_name": "Python 3"}}
        nbformat.write(notebook, tmp_path / name)
    code, lines = manners(tmp_path, "--nbmake", "07_it.ipynb", "08_it.ipynb", "-m", "not slow", *options, ci="")
    assert code == 1
    where = next(i for i, line in enumerate(lines) if "have passed hollow" in line)
    assert lines[where + 1] == "07_it.ipynb: 0 runs were started, its metadata says 2"
    assert not any("08_it.ipynb: " in line for line in lines)
    where = next(i for i, line in enumerate(lines) if "left out (slow)" in line)
    assert lines[where + 1] == "tests/test_some.py::test_long"
    where = next(i for i, line in enumerate(lines) if "chromium is missing" in line)
    assert lines[where + 1] == "tests/test_some.py::test_skips"


def test_outside_ci_skips_pass_and_are_named_with_their_reason(tmp_path):
    code, lines = manners(tmp_path, ci="")
    assert code == 0
    where = next(i for i, line in enumerate(lines) if "chromium is missing" in line)
    assert lines[where + 1] == "tests/test_some.py::test_skips"
    where = next(i for i, line in enumerate(lines) if "left out (slow)" in line)
    assert lines[where + 1] == "tests/test_some.py::test_long"


def test_an_allowed_skip_without_a_reason_is_an_error(tmp_path):
    code, lines = manners(tmp_path, allowed="tests/test_some.py::test_skips\n")
    assert code == pytest.ExitCode.USAGE_ERROR and any("no reason" in line for line in lines)


# ---- the whole way, for real

@pytest.fixture
def clone(request, tmp_path):
    """A fresh clone of what is committed, in a folder of the parametrised name; gone afterwards (5.5 GB)."""
    folder = tmp_path / getattr(request, "param", "clone")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    yield folder
    shutil.rmtree(folder)


def run_lab(clone, *argv, **options):
    began = time.monotonic()
    done = subprocess.run(["python3", clone / "scripts/lab.py", *argv], text=True, capture_output=True,
                          timeout=900, **options)
    print(done.stdout, done.stderr, f"{time.monotonic() - began:.1f} s", sep="\n")
    return done, time.monotonic() - began


def open_lab(clone):
    """Starts JupyterLab as a user would; its kernels, as its own address tells them."""
    port = lab.choose_port(None)
    env = {**os.environ, "JUPYTER_TOKEN": "t"}
    argv = ["python3", clone / "scripts/lab.py", "--no-browser", "--port", str(port)]
    server = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    drain = threading.Thread(target=server.stdout.read, daemon=True)
    drain.start()
    kernels = {}

    def up():
        assert server.poll() is None, "JupyterLab ended"
        try:
            address = f"http://127.0.0.1:{port}/api/kernelspecs?token=t"
            with urllib.request.urlopen(address, timeout=5) as answer:
                kernels.update(json.load(answer))
        except OSError:
            return False
        return True

    try:
        began = time.monotonic()
        wait_for(up, 60)
        return kernels, time.monotonic() - began
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize("clone", ["clone", "a folder with spaces"], indirect=True)
def test_from_nothing(clone):
    done, _ = run_lab(clone, "--check")
    assert done.returncode == 0, done.stderr
    assert ("path has spaces" in done.stdout) is (" " in str(clone))

    _, seconds = run_lab(clone, "--check")
    assert seconds < 10
    kernels, seconds = open_lab(clone)
    assert seconds < 10
    assert kernels["default"] == "python3"
    assert kernels["kernelspecs"]["python3"]["resources"]["logo-svg"]
    env = {k: v for k, v in os.environ.items() if k != "JUPYTER_PATH"}  # of the environment that runs this test
    lister = [clone / ".venv/bin/python", "-m", "jupyter_client.kernelspecapp"]  # `jupyter` would look on PATH
    listed = subprocess.run([*lister, "list", "--json"], capture_output=True, text=True, check=True, env=env).stdout
    folder = json.loads(listed)["kernelspecs"]["python3"]["resource_dir"]
    assert Path(folder).is_relative_to(clone / ".venv")

    assert run_lab(clone, "--clean")[0].returncode == 0
    left = subprocess.run(["git", "status", "--porcelain", "--ignored"], cwd=clone, capture_output=True,
                          text=True, check=True).stdout.splitlines()
    assert [line for line in left if "__pycache__" not in line] == []


@pytest.mark.slow
def test_interrupted_while_packages_are_written_then_again(clone):
    first = subprocess.Popen(["python3", clone / "scripts/lab.py", "--check"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: any(clone.glob(".venv/lib/python*/site-packages/torch")), 600)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=30)
    assert first.returncode == 130 and errors.strip().splitlines()[-1].startswith("interrupted")
    assert not [p for p in psutil.process_iter() if str(clone) in " ".join(p.cmdline())]

    done, _ = run_lab(clone, "--check")
    assert done.returncode == 0, done.stderr
    assert "its making was interrupted" in done.stdout


@pytest.mark.slow
def test_without_a_network_one_line_says_so_soon(clone):
    # No settings of pip's of this machine: they may name a package index that lies on its disk.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
    began = time.monotonic()
    done = subprocess.run(["unshare", "--map-root-user", "--net", "python3", clone / "scripts/lab.py", "--check"],
                          env=env, capture_output=True, text=True, timeout=300)
    print(done.stdout, done.stderr, f"{time.monotonic() - began:.1f} s", sep="\n")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("no network")
    assert time.monotonic() - began < 60
