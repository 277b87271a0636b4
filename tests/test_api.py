"""ddp_lab: one screen of public names, quick to import, torch left to the ranks."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import ddp_lab as lab
from ddp_lab.launch import failures

HEAVY = {"torch", "pandas", "matplotlib", "IPython", "numpy", "psutil"}


def python(code):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_is_quick_and_brings_nothing_heavy():
    code = (
        "import sys, time; began = time.process_time(); import ddp_lab; seconds = time.process_time() - began;"
        f"print(seconds, sorted({HEAVY} & set(sys.modules)))"
    )
    # CPU time, and the best of three: the machine may be busy with something else.
    outs = [python(code).split(maxsplit=1) for _ in range(3)]
    assert min(float(seconds) for seconds, _ in outs) < 0.3
    assert outs[0][1] == "[]"


def test_nothing_that_a_kernel_uses_imports_torch(tmp_path):
    (tmp_path / "records.jsonl").write_text("")
    code = f"""
import sys
import ddp_lab as lab
from pathlib import Path
for name in lab.__all__:
    if name not in ("models", "data", "check"):  # models and data are the ranks' own
        getattr(lab, name)
import ddp_lab.launch.job, ddp_lab.launch.magic
folder = Path({str(tmp_path)!r})
(folder / "rank0").mkdir()
(folder / "rank0" / "records.jsonl").write_text('{{"step": 1, "loss": 0.5}}\\n')
run = lab.Run(folder, "x", "x", 1, 1.0)
assert len(run.frame()) == 1 and run.ranks[0].records
run._repr_html_(), repr(run)
print("torch" in sys.modules)
"""
    assert python(code) == "False"


@pytest.mark.parametrize("name", sorted(lab.__all__))
def test_a_public_name_is_there_and_says_what_it_is(name):
    thing = getattr(lab, name)
    assert thing.__doc__ and thing.__doc__.strip()
    assert name in dir(lab)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'torchrunn'"):
        lab.torchrunn  # noqa: B018


def test_errors_are_of_the_kinds_that_python_knows():
    assert issubclass(lab.RankError, RuntimeError)
    assert issubclass(lab.CommandError, lab.RankError)
    assert issubclass(lab.HangError, RuntimeError)
    assert issubclass(lab.ExpectationError, AssertionError)
    assert issubclass(lab.InputError, ValueError)


def test_an_error_is_shown_as_its_message_alone():
    error = failures.RankError("rank 1 failed\n\nValueError: no", rank=1)
    assert error._render_traceback_() == ["RankError: rank 1 failed", "", "ValueError: no"]


@pytest.mark.parametrize("error, note, said", [
    (AssertionError("2 != 3"), "asserted on torch A; here is torch B", "asserted on torch A; here is torch B\n"),
    (AssertionError("2 != 3"), None, ""),
    (ValueError("no"), "asserted on torch A; here is torch B", ""),
    (None, "asserted on torch A; here is torch B", ""),
])
def test_a_statement_that_fails_under_another_torch_names_both(monkeypatch, capsys, error, note, said):
    from ddp_lab import doctor

    monkeypatch.setattr(doctor, "versions_note", lambda: note)
    lab._name_versions(SimpleNamespace(error_in_exec=error))
    assert capsys.readouterr().out == said
