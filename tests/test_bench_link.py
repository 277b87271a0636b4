"""The benchmark of links: its figures follow from what was measured, and it runs."""

import importlib.util
import json
from pathlib import Path

import pytest

import ddp_lab as lab
from ddp_lab.launch import cluster

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "bench_link.py"
spec = importlib.util.spec_from_file_location("ddp_lab_scripts_bench_link", SCRIPT)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)


def test_a_row_follows_from_the_bytes_that_a_ring_sends():
    seconds = bench.SIZE * 8 / 1e9  # 2 hosts: each sends as much as the data
    row = bench.row(2, "1gbit", seconds, metered=1000, sent=1020)
    assert row == {"hosts": 2, "link": "1gbit", "rate": pytest.approx(1e9), "share": pytest.approx(1), "wire": 1.02}
    four = bench.row(4, "1gbit", seconds, metered=1000, sent=1530)
    assert (four["rate"], four["wire"]) == (pytest.approx(1.5e9), pytest.approx(1.02))
    assert bench.row(2, None, seconds, 1000, 1000)["share"] is None


def test_a_line_shows_them():
    assert bench.shown(bench.row(2, "1gbit", bench.SIZE * 8 / 9.5e8, 1000, 1020)).split() == [
        *("2", "1gbit", "950", "0.95", "1.020")
    ]
    assert "no limit" in bench.shown(bench.row(2, None, 1, 1000, 1020))


@pytest.mark.parametrize("argv", [["--hosts", "1"], ["--hosts", "x"], ["--links", "fast"], ["--hosts", "9"]])
def test_bad_usage_exits_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(argv)
    assert stop.value.code == 2 and "Traceback" not in capsys.readouterr().err


def test_without_emulated_hosts_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "why_not", lambda: "no namespaces here")
    assert bench.main([]) == 2
    assert capsys.readouterr().err == "no namespaces here\n"


def test_a_rate_below_nine_tenths_is_no_success(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "why_not", lambda: "")
    for share, code in ((0.89, 1), (0.91, 0)):
        monkeypatch.setattr(bench, "measure", lambda hosts, link: bench.row(
            hosts, link, bench.SIZE * 8 / (share * cluster.rate(link)), 1, 1))  # noqa: B023
        assert bench.main(["--hosts", "2", "--links", "1gbit"]) == code


def test_it_runs(tmp_path, monkeypatch):
    if why := cluster.why_not():
        pytest.skip(why)
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path))
    monkeypatch.delenv("DDP_LAB_LEDGER", raising=False)
    bench.main(["--hosts", "2", "--links", "none", "--json", str(tmp_path / "figures.json")])
    (row,) = json.loads((tmp_path / "figures.json").read_text())
    assert row["share"] is None and row["rate"] > 1e8
    assert 1 < row["wire"] < 1.05
    assert lab.last_run().ok
