"""can_run: a run that needs GPUs is skipped in a line with its name, and noted as skipped, or it is run."""

import json

import numpy
import pytest

import ddp_lab as lab
from ddp_lab import gpus
from ddp_lab.launch import cluster


@pytest.fixture
def ledger(monkeypatch, tmp_path):
    monkeypatch.setenv("DDP_LAB_LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


def with_gpus(monkeypatch, number):
    monkeypatch.setattr(gpus, "count", lambda env=None: number)


@pytest.mark.parametrize("here, said", [(0, "none is visible"), (1, "1 is visible"), (2, "2 are visible")])
def test_each_run_without_its_gpus_is_skipped_by_name_and_noted(monkeypatch, capsys, ledger, here, said):
    with_gpus(monkeypatch, here)
    assert lab.can_run("a", "b", gpus=3) is False
    assert capsys.readouterr().out == "".join(f"skipped: {name} needs 3 GPUs, and {said} here\n" for name in "ab")
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [(event["event"], event["script"]) for event in events] == [("skip", "a"), ("skip", "b")]
    assert {event["why"] for event in events} == {f"needs 3 GPUs, and {said} here"}


def test_one_gpu_is_one(monkeypatch, capsys):
    with_gpus(monkeypatch, 0)
    assert not lab.can_run("a", gpus=1)
    assert capsys.readouterr().out == "skipped: a needs 1 GPU, and none is visible here\n"


def test_with_its_gpus_nothing_is_said(monkeypatch, capsys, ledger):
    with_gpus(monkeypatch, 2)
    assert lab.can_run("a", gpus=2) is True
    assert lab.can_run("a", gpus=numpy.int64(2)) is True
    assert capsys.readouterr().out == "" and not ledger.exists()


@pytest.mark.parametrize("names, number", [((), 1), (("",), 1), ((3,), 1), (("a",), 0), (("a",), True), (("a",), "1")])
def test_what_cannot_be_asked_is_refused(names, number):
    for need, what in {"gpus": "GPUs", "nodes": "emulated hosts"}.items():
        with pytest.raises(lab.InputError, match=f"can_run|give the number of {what}"):
            lab.can_run(*names, **{need: number})


def test_it_is_told_what_the_runs_need():
    with pytest.raises(lab.InputError, match="gpus=2, or nodes=2"):
        lab.can_run("a")


@pytest.mark.parametrize("why", ["", "emulated hosts need Linux"])
def test_each_run_without_its_hosts_is_skipped_by_name_and_noted(monkeypatch, capsys, ledger, why):
    monkeypatch.setattr(cluster, "why_not", lambda: why)
    assert lab.can_run("a", "b", nodes=2) is (why == "")
    assert lab.can_run("a", nodes=1) is True
    said = "needs emulated hosts, and this machine has none (why: `lab.machine(full=True)`)"
    assert capsys.readouterr().out == ("".join(f"skipped: {name} {said}\n" for name in "ab") if why else "")
    events = [json.loads(line) for line in ledger.read_text().splitlines()] if why else []
    assert [(event["script"], event["why"]) for event in events] == [(name, said) for name in "ab" if why]
