"""checks: whatever the answer is, one line and a verdict; never an exception."""

import json
import re

import nbformat
import pytest
from answering import NOTEBOOKS, hint, squares

import ddp_lab as lab
from ddp_lab import checks
from ddp_lab.errors import InputError


class Hostile:
    """An answer whose every attribute fails."""

    def __getattr__(self, name):
        raise ZeroDivisionError("boom")


ANYTHING = [None, ..., 14, "14", float("nan"), [], {}, {"mine": 1}, object, lambda: 0, Hostile(), ([],), b"x"]


@pytest.mark.parametrize("name", sorted(checks.EXERCISES))
@pytest.mark.parametrize("answer", ANYTHING, ids=[str(i) for i in range(len(ANYTHING))])
def test_whatever_the_answer_is_the_learner_gets_a_hint(name, answer):
    text = hint(name, answer)
    told = ("`answer`", ", answer)", ", device_0)", '"run": answer}', '"launch": old}', "`stuck`")  # as it is called
    told += ("your function", "mask", "Each node needs one")
    assert any(word in text for word in told)
    assert " a int" not in text and " a object" not in text


def test_each_exercise_of_a_notebook_has_its_check_and_the_other_way():
    notebooks = [nbformat.read(path, as_version=4) for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))]
    lines = [line for notebook in notebooks for cell in notebook.cells for line in cell.source.splitlines()]
    headings = [re.match(r"#+ Exercise (\d\d\.\d):", line) for line in lines]
    assert [heading[1] for heading in headings if heading] == sorted(checks.EXERCISES)


def test_every_check_says_what_the_answer_should_be():
    assert all(check.__doc__.startswith("The answer is ") for check in checks.EXERCISES.values())
    modules = {name: check.__module__ for name, check in checks.EXERCISES.items()}
    assert all(module.startswith(f"ddp_lab.checks.notebook{name[:2]}") for name, module in modules.items())


@pytest.mark.parametrize("name", ["0.1", "00.9", "", None, 0.1])
def test_an_unknown_exercise_is_an_error_that_lists_the_known(name):
    with pytest.raises(InputError, match="00.1, 00.2"):
        lab.check(name, 1)


def test_one_line_is_printed_and_the_verdict_says_the_same(capsys):
    verdict = lab.check("00.1", squares())
    assert (verdict.exercise, verdict.done, verdict.hint) == ("00.1", True, "")
    assert capsys.readouterr().out == "done: 3 ranks added 1, 4 and 9, and the total is 14 on each.\n"
    verdict = lab.check("00.1", None)
    assert capsys.readouterr().out == f"not yet: {verdict.hint}\n"


def test_the_ledger_has_each_check(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_LAB_LEDGER", str(tmp_path / "ledger"))
    lab.check("00.1", squares())
    lab.check("00.2", None)
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [(e["event"], e["exercise"], e["done"]) for e in lines] == [
        ("check", "00.1", True),
        ("check", "00.2", False),
    ]
