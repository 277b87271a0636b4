"""The benchmark of launchers: its figures follow from what was measured, it names what it leaves out, and it runs."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "bench_launch.py"
spec = importlib.util.spec_from_file_location("ddp_lab_scripts_bench_launch", SCRIPT)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)

FOUND = {
    "torchrun": {"hello": {"fresh": [4.0, 2.0, 3.0], "later": [2.5, 2.0]}},
    "ours-warm": {"hello": {"fresh": [1.5], "later": [0.1, 0.3, 0.2, 0.9]}},
    "torchrunx": {"hello": {"fresh": [], "later": []}},
}


def test_a_summary_has_median_and_spread():
    figures = [3.0, 1.0, 2.0, 10.0]
    assert bench.summary(figures) == {"median": 2.5, "min": 1.0, "max": 10.0, "figures": figures}
    assert bench.summary([]) is None


def test_faster_is_the_median_of_torchrun_over_that_of_the_launcher_in_the_same_column():
    rows = bench.compare(FOUND)
    assert rows["torchrun"]["hello"]["fresh"]["faster"] == 1
    assert rows["ours-warm"]["hello"]["fresh"]["faster"] == 3.0 / 1.5
    assert rows["ours-warm"]["hello"]["later"]["faster"] == pytest.approx(2.25 / 0.25)
    assert rows["torchrunx"]["hello"]["later"] is None


def test_without_torchrun_there_are_no_ratios():
    rows = bench.compare({"ours-warm": FOUND["ours-warm"]})
    assert rows["ours-warm"]["hello"]["later"]["faster"] is None
    assert "–" in bench.table(rows, "hello")[-1]


def test_the_table_shows_medians_spreads_and_ratios():
    title, columns, _, *rows = bench.table(bench.compare(FOUND), "hello")
    assert title == bench.WORKS["hello"]
    assert columns.split("  ")[-1].strip() == "each later run"
    assert rows[1].split() == "ours-warm 1.500 s 1.50 – 1.50 2.0 x 0.250 s 0.10 – 0.90 9.0 x".split()
    assert rows[2].split() == ["torchrunx", "failed", "failed"]


def rank(pid, left=(), text=1):
    return {"pid": pid, "left": list(left), "hash": text}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([rank(1), rank(2)], [rank(3, text=1), rank(4, text=2)], "yes"),
        ([rank(1), rank(2)], [rank(3), rank(4)], "yes, with one hash seed"),
        ([rank(1), rank(2)], [rank(3), rank(4, ["left_by_the_kernel"])], "no: forks of the kernel"),
        ([rank(1), rank(2)], [rank(3, ["left_by_a_run"]), rank(4)], "no: state is left"),
        ([rank(1), rank(2)], [rank(3), rank(2)], "no: the same go on"),
    ],
)
def test_fresh_are_ranks_that_find_nothing_of_the_kernel_and_of_earlier_runs(first, second, words):
    assert bench.freshness(first, second) == words


class Told:
    """Stands in for a Bench: kernels that report what they are told to."""

    def __init__(self, cpu):
        self.cpu, self.asked = cpu, []

    def kernel(self, name, job, work):
        self.asked.append(work)
        rank = {"ranks": (mine := next(self.cpu[work])), "loop": mine, "calls": 0.2 * mine}
        return [{"results": [rank, rank]}, {"cpu": 4 * mine}]


def test_own_cost_is_the_median_of_the_ratios_of_pairs_that_take_turns():
    told = Told({"bare": iter([1.0, 2.0, 4.0]), "logged": iter([1.5, 2.0, 5.0])})
    cost = bench.own_cost(told, 3)
    assert cost["ranks"]["figures"] == [1.5, 1.0, 1.25]
    assert cost["ranks"]["median"] == cost["all"]["median"] == 1.25
    assert cost["calls"]["median"] == pytest.approx(1 / 0.8)
    assert told.asked == ["logged", "bare", "bare", "logged", "logged", "bare"]


@pytest.mark.parametrize(
    ("work", "results", "fine"),
    [
        ("hello", [3.0, 3.0], True),
        ("hello", [3.0], False),
        ("hello", [1.0, 2.0], False),
        ("steps", [{"weights": 1.5}, {"weights": 1.5}], True),
        ("steps", [{"weights": 1.5}, {"weights": 1.25}], False),
        ("steps", [], False),
    ],
)
def test_a_launcher_is_measured_only_if_both_ranks_have_brought_the_right_result(work, results, fine):
    assert bench.right(work, results) is fine


def call(*arguments, **options):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=180, **options)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "torchrun,nobody"], "there is no 'nobody', but torchrun, "),
        (["--rounds", "0"], "--rounds is 1 or more"),
        (["--pairs", "-1"], "--pairs 0 or more"),
        (["--rounds", "many"], "invalid int value"),
        (["--json", "/there/is/no/such/folder.json"], "there is no folder /there/is/no/such"),
        (["--nothing"], "unrecognized arguments"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_is_wrong(arguments, complaint):
    done = call(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not done.stdout


def test_what_is_not_installed_is_skipped_by_name(monkeypatch):
    monkeypatch.setitem(bench.LAUNCHERS, "torchrunx", bench.Launcher("", "no_such_package", "documented words"))
    options = bench.arguments(["--quick", "--only", "torchrun,torchrunx"])
    monkeypatch.setattr(bench, "measure", lambda *_: ({"torchrun": FOUND["torchrun"]}, []))
    text = "\n".join(bench.lines(bench.run(options, None)))
    assert "torchrunx: skipped, " in text
    assert "torchrunx, from its documentation: documented words" in text


def test_a_launcher_that_fails_is_named_and_the_others_are_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(bench.LAUNCHERS, "torchrun", bench.Launcher("def launch(work): raise OSError('no luck')"))
    monkeypatch.setitem(bench.LAUNCHERS, "ours-cold", bench.Launcher("def launch(work): return [3.0, 3.0]"))
    failed = {}
    found, _ = bench.measure(bench.Bench(tmp_path), ["torchrun", "ours-cold"], ["hello"], 2, 0, failed)
    assert failed == {"torchrun": "exit code 1, OSError: no luck"}
    assert len(found["ours-cold"]["hello"]["later"]) == 2
    assert found["torchrun"]["hello"]["fresh"] == []


def test_a_failed_measurement_ends_with_1(monkeypatch, capsys):
    monkeypatch.setitem(bench.LAUNCHERS, "torchrun", bench.Launcher("def launch(work): return [1.0, 2.0]"))
    assert bench.main(["--quick", "--only", "torchrun", "--rounds", "1"]) == 1
    assert "FAILED torchrun: hello: wrong results [1.0, 2.0]" in capsys.readouterr().out


def started_by(mark):
    """The living processes with this in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DDP_LAB_MARK_OF_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_no_process_and_no_file(tmp_path, number, code):
    env = {**os.environ, "TMPDIR": str(tmp_path), "DDP_LAB_MARK_OF_TEST": str(tmp_path)}
    command = [sys.executable, SCRIPT, "--quick", "--only", "torchrun"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: len(started_by(str(tmp_path))) > 2, 60, "torchrun runs in a kernel")
            process.send_signal(number)
            assert process.wait(20) == code
        finally:
            process.kill()
            left = started_by(str(tmp_path))
            for one in left:
                one.kill()
    assert not left
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def quick():
    """A real quick run: (what it printed, its figures)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        done = call("--quick", "--only", "ours-warm,torchrun", "--json", path, env={**os.environ, "TMPDIR": folder})
        assert done.returncode == 0, done.stderr
        report = json.loads(path.read_text())
        assert [left.name for left in Path(folder).iterdir()] == [path.name]
        return done.stdout, report


@pytest.mark.skipif(sys.platform != "linux", reason="runs start warm on Linux only")
@pytest.mark.slow
def test_a_later_warm_hello_is_much_faster_than_torchrun(quick):
    # 10 times is what is wanted, on an idle machine; this one may be shared.
    later = quick[1]["launchers"]["ours-warm"]["hello"]["later"]
    assert later["faster"] >= 4, quick[0]


@pytest.mark.skipif(sys.platform != "linux", reason="runs start warm on Linux only")
@pytest.mark.slow
def test_a_quick_run_has_all_figures_and_shows_them(quick):
    text, report = quick
    assert report["works"] == ["hello"] and report["rounds"] == 2 and not report["failed"]
    assert list(report["launchers"]) == ["ours-warm", "torchrun"]
    for works in report["launchers"].values():
        for column in works["hello"].values():
            assert len(column["figures"]) == 2 and 0 < column["min"] <= column["median"] <= column["max"] < bench.LIMIT
    warm, server = report["launchers"]["ours-warm"]["hello"], report["server"]
    assert server["up"]["median"] < warm["fresh"]["median"]  # the first run waits for it
    assert 50 < server["written"]["median"] <= server["uss"]["median"] < 2000  # MiB
    assert max(map(len, text.splitlines())) <= 110
    assert f"{warm['later']['faster']:.1f} x" in text
