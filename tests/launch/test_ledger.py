"""ledger: what was run and checked, one JSON line each, from as many kernels as there are."""

import json
import threading

import pytest

from ddp_lab.launch import ledger


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_a_ledger_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.delenv("DDP_LAB_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    ledger.write("run", outcome="ok")
    assert list(tmp_path.iterdir()) == []


def test_an_event_is_one_line_with_its_notebook(monkeypatch, tmp_path):
    monkeypatch.setenv("DDP_LAB_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/notebooks/00_start_here.ipynb")
    ledger.write("run", script="hello", nproc=2, ranks=2, outcome="ok")
    ledger.write("check", exercise="00.1", done=True)
    assert lines(tmp_path / "ledger") == [
        {"event": "run", "notebook": "00_start_here", "script": "hello", "nproc": 2, "ranks": 2, "outcome": "ok"},
        {"event": "check", "notebook": "00_start_here", "exercise": "00.1", "done": True},
    ]


def test_lines_of_several_writers_stay_whole(monkeypatch, tmp_path):
    monkeypatch.setenv("DDP_LAB_LEDGER", str(tmp_path / "ledger"))
    writers = [
        threading.Thread(target=lambda: [ledger.write("run", text="x" * 500) for _ in range(50)]) for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(lines(tmp_path / "ledger")) == 200


@pytest.mark.parametrize(
    "session, name",
    [
        ("/a/b/00_start_here.ipynb", "00_start_here"),
        ("notebooks/my own notes.ipynb", "my_own_notes"),
        ("../../etc/passwd", "passwd"),
        ("größe.ipynb", "größe"),
    ],
)
def test_the_name_of_a_notebook_is_a_plain_file_name(monkeypatch, session, name):
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert ledger.notebook() == name


def test_under_pytest_it_is_the_tests_file(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert ledger.notebook() == "test_ledger"
