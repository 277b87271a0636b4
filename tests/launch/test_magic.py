"""%%torchrun: a cell as a file on every rank, in a real kernel; and its options, which are those of lab.torchrun."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import IPython
import nbformat
import pytest
from launching import as_typed, dumped, jsons, plain, script, see
from nbclient import NotebookClient

import ddp_lab as lab
from ddp_lab.launch import cluster, magic

# ---- options; nothing is run


@pytest.fixture
def given(monkeypatch):
    """What %%torchrun hands to the launcher: call it with a first line."""
    taken = {}
    names = list(inspect.signature(magic.launch).parameters)

    def launch(*args, **options):
        taken.update(zip(names, args, strict=False), **options)
        return "the run"

    monkeypatch.setattr(magic, "launch", launch)
    monkeypatch.setattr(cluster, "why_not", lambda: "")
    shell = SimpleNamespace(user_ns={})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)

    def call(line, cell="print('hello')\n"):
        taken["returned"] = magic.torchrun_cell(line, cell)
        return taken | {"variables": shell.user_ns}

    return call


OPTIONS = {  # keyword of lab.torchrun: (the magic's option, its value)
    "nproc": ("--nproc 4", 4),
    "timeout": ("--timeout 1.5", 1.5),
    "stall": ("--stall none", None),
    "show": ("--show 0,2", [0, 2]),
    "expect": ("--expect 'loss is nan'", "loss is nan"),
    "env": ("--env A=1 --env B='x = y'", {"A": "1", "B": "x = y"}),
    "warm": ("--cold", False),
    "check": ("--no-check", False),
    "count": ("--count", True),
    "nodes": ("--nodes 3", 3),
    "link": ("--nodes 2 --link 1gbit", "1gbit"),
    "delay": ("--nodes 2 --delay 20ms", "20ms"),
    "trace": ("--trace", True),
}


@pytest.mark.parametrize("keyword", OPTIONS)
def test_an_option_arrives_as_the_keyword(given, keyword):
    line, value = OPTIONS[keyword]
    assert given(line)[keyword] == value and type(given(line)[keyword]) is type(value)


def test_where_hosts_cannot_be_emulated_a_cell_on_hosts_is_skipped_by_name(given, monkeypatch, capsys):
    monkeypatch.setattr(cluster, "why_not", lambda: "no namespaces")
    taken = given("--nodes 2 --name hooks.py --result slow")
    assert capsys.readouterr().out.startswith("skipped: hooks.py needs emulated hosts")
    assert taken["variables"] == {"slow": None} and "nodes" not in taken
    assert given("--nodes 1")["variables"] == {"slow": None, "run": "the run"}


def test_each_keyword_of_lab_torchrun_has_an_option_and_the_same_default(given):
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(lab.torchrun).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert set(keywords) == set(OPTIONS), "a keyword without an option, or without a line in this test"
    plain_call = given("")
    assert {name: plain_call[name] for name in keywords} == keywords


@pytest.mark.parametrize(
    "line, args",
    [("", []), ("-- --epochs 2", ["--epochs", "2"]), ("--nproc 2 -- 'a b' -- $x", ["a b", "--", "$x"]), ("--", [])],
)
def test_what_follows_two_dashes_is_the_scripts(given, line, args):
    assert given(line)["args"] == args


def test_the_cell_arrives_as_it_stands_under_the_name_that_was_given(given):
    cell = "import torch\n\nprint('größe')  # %%torchrun\n"
    taken = given("--name my-train_2.py", cell)
    assert (taken["cell"], taken["name"]) == (cell, "my-train_2.py")


def test_the_run_is_bound_and_the_cell_returns_nothing(given):
    taken = given("--result second")
    assert taken["variables"] == {"second": "the run"} and taken["returned"] is None


@pytest.mark.parametrize(
    "line, cell, said",
    [
        (f"--name {'a' * 300}.py", "print(1)", "--name aaaaaaaaaaaaaaaaaaaa... is longer than 255 bytes"),
        (f"--name {'ö' * 127}.py", "print(1)", "is longer than 255 bytes"),
        ("", "x = 1\ny = '\ud800'\n", r"line 3 of the cell has '\ud800', half of a character"),
        ("--result lab", "print(1)", "--result lab would replace the module lab. Write another name"),
    ],
)
def test_what_cannot_be_saved_or_bound_is_refused_before_anything_is_made(given, line, cell, said):
    IPython.get_ipython().user_ns["lab"] = lab
    with pytest.raises(lab.InputError) as error:
        given(line, cell)
    assert said in str(error.value) and IPython.get_ipython().user_ns == {"lab": lab}
    assert given(f"--name {'a' * 252}.py --result labs")["name"] == f"{'a' * 252}.py"


def test_the_help_names_every_option_and_gives_an_example():
    text = magic.torchrun_cell.__doc__
    for option, _ in OPTIONS.values():
        assert option.split()[0] in text
    assert "--name" in text and "--result" in text and "    %%torchrun --nproc 4" in text


# ---- in a kernel


class Watching(NotebookClient):
    """Writes a file once a cell has shown a text."""

    watched: tuple[str, Path] | None = None

    def process_message(self, msg, cell, cell_index):
        done = super().process_message(msg, cell, cell_index)
        text, path = self.watched or ("", None)
        if path and any(text in output.get("text", "") for output in cell.outputs):
            path.touch()
        return done


class Cell:
    """What a cell has shown."""

    def __init__(self, cell):
        self.outputs = cell.outputs
        self.text = plain("".join(o.text for o in cell.outputs if o.output_type == "stream"))
        self.lines = self.text.splitlines()
        self.error = next((o for o in cell.outputs if o.output_type == "error"), None)
        self.data = [o.data for o in cell.outputs if o.output_type in ("execute_result", "display_data")]


LIVE = """
import os, sys, time
from pathlib import Path
from ddp_lab import worker

print("first")
limit = time.time() + 60
while not Path(sys.argv[1]).exists():
    assert time.time() < limit, "nobody has seen the first line"
    time.sleep(0.02)
for percent in range(0, 101, 50):
    print(f"\\r{percent}%", end="")
print()
print("gr\\u00f6\\u00dfe", file=sys.stderr)
worker.log(rank=int(os.environ["RANK"]), argv=sys.argv, name=Path(__file__).name)
worker.progress(1, 1, loss=0.25)
"""
FAILS = "def f():\n    raise ValueError('loss is nan')  # here\n\nf()\n"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The cells of one notebook, run in one kernel; those that fail do so on purpose."""
    folder = tmp_path_factory.mktemp("my notebooks")
    script(folder, "print('unused')", "train.py")
    sources = {
        "import": "import ddp_lab as lab",
        "live": f"%%torchrun --name live.py -- '{folder}/seen' 'a b'\n{LIVE}",
        "view": "run",
        "kept": "print(run.ok, run.command, run.dir, sep='\\n')",
        "fails": f"%%torchrun --nproc 1 --name fails.py --result failed\n{FAILS}",
        "failed": "print(failed.ok, failed.error.line, failed.ranks[0].exitcode)",
        "syntax": "%%torchrun --nproc 1 --name broken.py\nprint('fine')\nprint('never closed'\n",
        "as expected": "lab.command('python', '-c', 'raise OSError(\"in use\")', expect='in use')",
        "wrong option": "%%torchrun --nporc 2\nprint(1)",
        "wrong script": "lab.torchrun('trian.py')",
        "empty": "%%torchrun\n# to be written",
        "help": (
            "get_ipython().run_line_magic('pinfo', '%%torchrun')  # as `%%torchrun?` does\n"
            "print(get_ipython().payload_manager.read_payload()[-1]['data']['text/plain'])"
        ),
        "modules": "import sys; print('torch' in sys.modules)",
    }
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in sources.values()])
    client = Watching(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}})
    client.watched = ("first", folder / "seen")
    client.execute()
    return {name: Cell(cell) for name, cell in zip(sources, notebook.cells, strict=True)} | {"folder": folder}


def test_a_line_is_in_the_cell_while_the_run_goes_on(cells):
    assert cells["import"].outputs == [] and cells["live"].error is None, cells["live"].error


def test_the_cell_shows_the_same_text_as_plain_python(cells, tmp_path, monkeypatch):
    monkeypatch.chdir(cells["folder"])
    path = script(tmp_path, LIVE, "live.py")
    seen = see(lab.torchrun, path, str(cells["folder"] / "seen"), "a b")

    def same(lines):  # ranks come in any order; times and where the file lies differ
        return sorted(re.sub(r"\d+\.\d s", "", re.sub(r" \S+live.py", " live.py", line)) for line in lines)

    bar = [data["text/plain"] for data in cells["live"].data if data["text/plain"]]
    assert same(cells["live"].lines + bar) == same(seen.lines)
    assert bar == ["loss 0.25 ▕████████████████████▏ 1/1"]


def test_a_run_is_shown_with_a_column_for_each_rank_and_as_plain_text(cells):
    (data,) = cells["view"].data
    assert "rank 0" in data["text/html"] and "rank 1" in data["text/html"] and "live.py" in data["text/html"]
    assert re.match(r"live.py · 2 ranks · \d+\.\d s · ok · 2 records\n", data["text/plain"])


def test_the_cell_returns_nothing(cells):
    assert all(o.output_type != "execute_result" for o in cells["live"].outputs)


def test_the_cell_is_a_real_file_and_the_shown_command_runs_it_in_a_shell(cells):
    ok, command, folder = cells["kept"].lines
    run = lab.Run(Path(folder), "live.py", command, 2, 1.0)
    assert ok == "True" and cells["live"].lines[0] == f"$ {command}"
    assert (Path(folder) / "live.py").read_text().strip() == LIVE.strip()
    records = [record for rank in run.ranks for record in rank.records]
    assert [(r["rank"], r["argv"][1:], r["name"]) for r in records] == [
        (rank, [f"{cells['folder']}/seen", "a b"], "live.py") for rank in (0, 1)
    ]
    # argv[0] is the path as it is shown; a shell expands its ~ to the same file.
    printed = as_typed(command, cells["folder"])
    assert [line.split('"argv"')[0] for line in jsons(printed)] == [r.split('"argv"')[0] for r in dumped(run)]


def test_the_result_is_bound_also_when_the_run_failed(cells):
    assert cells["fails"].error.ename == "RankError"
    assert cells["failed"].lines == [f"False {line_of_text(FAILS, '# here')} 1"]


def line_of_text(text, mark):
    (number,) = [n for n, line in enumerate(text.splitlines(), 1) if mark in line]
    return number


def test_a_failure_is_shown_once_in_the_learners_lines_alone(cells):
    shown = plain("\n".join(cells["fails"].error.traceback))
    assert shown.startswith("RankError: rank 0 failed in fails.py, line 2 (f)")
    assert shown.count("raise ValueError('loss is nan')") == 1 and "\nValueError: loss is nan\n" in shown
    assert "ValueError" not in cells["fails"].text
    for foreign in ("Traceback", "launch/", "torchrun.py", "magic.py", "rank.py"):
        assert foreign not in shown + cells["fails"].text


def test_a_syntax_error_is_shown_at_the_cells_own_line(cells):
    shown = plain("\n".join(cells["syntax"].error.traceback))
    assert "failed in broken.py, line 2" in shown and "SyntaxError: '(' was never closed" in shown
    assert "fine" not in cells["syntax"].text


def test_an_expected_failure_lets_the_cell_pass(cells):
    assert cells["as expected"].error is None and "failed as expected, with 'in use'" in cells["as expected"].text


@pytest.mark.parametrize(
    "name, says",
    [("wrong option", "Did you mean --nproc?"), ("wrong script", "Did you mean train.py?"), ("empty", "empty")],
)
def test_a_wrong_call_is_one_line_without_our_frames(cells, name, says):
    (line,) = cells[name].error.traceback
    assert plain(line).startswith("InputError: ") and says in line and "\n" not in line


def test_the_help_is_shown_by_a_question_mark(cells):
    assert "--nproc N" in cells["help"].text and "ranks (default 2)" in cells["help"].text


def test_the_kernel_never_imports_torch(cells):
    assert cells["modules"].lines == ["False"]
