"""`lab.machine()` and `python -m ddp_lab doctor`: what is found, what it means, and the cure."""

import html
import os
import re
import subprocess
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest

from ddp_lab import doctor, gpus

GIB = 2**30
ROOT = Path(__file__).parents[1]
A100 = gpus.GPU(0, "GPU-0", "NVIDIA A100", 40960)
CUDA, CPU = "2.14.1+cu130", "2.14.1+cpu"


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A healthy machine of 4 cores, 16 GiB and no GPU; calling the fixture changes something about it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / "runs"))

    def change(torch=CPU, torchvision="0.29.1", devices=(), problem=None, cores=4, free=16, total=16, disk=100):
        versions = {"torch": torch, "torchvision": torchvision}
        monkeypatch.setattr(doctor, "_version", versions.get)
        monkeypatch.setattr(gpus, "_installed", lambda: (tuple(devices), problem))
        monkeypatch.setattr(doctor, "cores", lambda: cores)
        monkeypatch.setattr(doctor, "memory", lambda: (int(free * GIB), int(total * GIB)))
        usage = namedtuple("usage", "total used free")(int(disk * GIB), 0, int(disk * GIB))
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
        return doctor.machine

    change()
    return change


def row(report, item):
    (found,) = [row for row in report.rows if row["item"] == item]
    return found


def command(*args, **env):
    argv = [sys.executable, "-m", "ddp_lab", *args]
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, timeout=30)


# The report


def test_a_healthy_machine_is_reported_in_a_few_lines_and_fit(pretend):
    report = pretend()()
    assert [row["item"] for row in report.rows] == ["cores", "memory", "GPUs", "torch", "backends", "ranks"]
    assert all(row["ok"] and not row["cure"] for row in report.rows)
    assert report.fit
    assert "lab.machine(full=True)" in str(report)


def test_rows_are_plain_dicts(pretend):
    for row in pretend()(full=True).rows:
        assert list(row) == ["item", "found", "means", "cure", "ok"]
        assert row["found"] and row["means"]


def test_the_full_report_adds_the_tools(pretend):
    items = {row["item"] for row in pretend()(full=True).rows}
    assert {"system", "Python", "torchvision", "disk", "runs kept in", "emulated hosts", "chromium"} <= items


def test_a_row_that_is_not_ok_has_a_cure_and_stands_in_the_short_report_too(pretend):
    report = pretend(torchvision=None, disk=0.2)()
    for item in ("torchvision", "disk"):
        assert not row(report, item)["ok"]
        assert row(report, item)["cure"]
    assert report.fit


def test_the_text_fits_100_columns_whatever_is_found(pretend, monkeypatch, tmp_path):
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / ("a_long_name_" * 12)))
    long = gpus.GPU(0, "GPU-0", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887)
    for report in (
        pretend()(full=True),
        pretend(torch="2.15.0", devices=[long], problem="x" * 300)(full=True),
    ):
        assert max(map(len, str(report).splitlines())) <= 100
        assert "a_long_name_a_long" in str(report)


def test_what_is_found_is_escaped_in_html(pretend):
    page = pretend(problem="nvidia-smi says: <script>alert(1)</script> & more", torch=None)()._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert "<script>" not in page
    assert f"torch{html.escape(doctor.torch_pin())}" in page  # in a cure too


def test_html_and_text_tell_the_same(pretend, monkeypatch):
    monkeypatch.setenv("DDP_LAB_HOME", "/tmp")  # a longer path would be cut into lines in the text
    report = pretend(torch="2.15.0", torchvision=None, total=1, free=1)(full=True)
    page = re.sub(r"<[^>]+>", "", report._repr_html_())
    for row in report.rows:
        for word in re.findall(r"\w+", row["found"] + " " + row["means"] + " " + row["cure"]):
            assert word in page
            assert word in str(report)


def test_the_page_brings_no_colour_but_that_of_the_signs(pretend):
    page = pretend(torch="2.15.0", total=1, free=1)()._repr_html_()
    assert set(re.findall(r"#[0-9a-f]{3,6}", page)) == {colour for _, colour in doctor._SIGNS.values()}
    cells = re.findall(r"<t[rd] [^>]+>", page)
    assert cells and all("background:none" in cell for cell in cells)  # undoes JupyterLab's stripes


def test_what_is_found_stays_on_one_line_unless_it_is_long(pretend, monkeypatch):
    monkeypatch.setenv("DDP_LAB_HOME", "/tmp/" + "long" * 20)
    page = pretend()(full=True)._repr_html_()
    cells = re.findall(r"white-space:(nowrap|normal;overflow-wrap:anywhere)\">([^<]*)</td><td", page)
    found = {html.unescape(text): wrap == "nowrap" for wrap, text in cells}
    assert any("free of" in text for text in found) and any(len(text) > 32 for text in found)
    assert all(one_line == (len(text) <= 32) for text, one_line in found.items() if text)


def test_it_is_quick_and_imports_no_torch():
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from ddp_lab.doctor import machine; machine(); machine(full=True)\n"
        "print(time.perf_counter() - start, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    seconds, torch = answer.stdout.split()
    assert torch == "False"
    assert float(seconds) < 2  # 0.1 s on an idle machine without a GPU


# torch


def test_a_missing_torch_stops_and_says_how_to_get_the_right_one(pretend):
    report = pretend(torch=None, torchvision=None)()
    assert report.stoppers == ["torch"]
    assert not report.fit
    assert "scripts/lab.py" in row(report, "torch")["cure"]
    assert doctor.torch_pin() in row(report, "torch")["cure"]
    assert sys.executable.rpartition("/")[2] in row(report, "torch")["means"]  # often it is the wrong kernel
    assert "backends" not in [row["item"] for row in report.rows]


@pytest.mark.parametrize("version", ["2.14.1", CPU, CUDA, "2.14.9", "2.14.2rc1"])
def test_a_torch_of_the_pinned_series_needs_no_note(pretend, version):
    pretend(torch=version)
    assert doctor.versions_note() is None


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0", "2.15.0", "2.15.0.dev20260101+cpu", "2.14.1a0+git1", "odd"])
def test_another_torch_is_named_beside_the_pin_and_does_not_stop(pretend, version):
    report = pretend(torch=version)()
    for text in (doctor.versions_note(), row(report, "torch")["means"]):
        assert version in text
        assert doctor.torch_pin() in text
    assert report.fit


def test_a_missing_torch_has_no_versions_to_compare(pretend):
    pretend(torch=None)
    assert doctor.versions_note() is None


def test_the_pin_is_that_of_the_installed_distribution(monkeypatch):
    needs = ["torchvision>=0.1", "torch<9.2,>=9.1", 'torch==1; extra == "x"']
    monkeypatch.setattr(metadata, "requires", lambda name: needs if name == "ddp-lab" else None)
    assert doctor.torch_pin() == ">=9.1,<9.2"


def test_the_pin_falls_back_to_that_of_pyproject_where_nothing_is_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert f'"torch{doctor.torch_pin()}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "version, nccl, devices, found, words",
    [
        (CPU, None, 0, "gloo", "no nccl"),
        (CUDA, None, 0, "gloo", "nccl is there too but has no GPU"),
        ("2.14.1", "2.30.7", 0, "gloo", "nccl is there too but has no GPU"),
        ("2.14.1", None, 0, "gloo", "no nccl"),
        (CUDA, None, 2, "nccl, gloo", "between GPUs"),
        ("2.14.1", "2.30.7", 1, "nccl, gloo", "between GPUs"),
        (CPU, "2.30.7", 2, "gloo", "stay idle"),  # a left-over package is not what torch was built with
    ],
)
def test_backends(pretend, monkeypatch, version, nccl, devices, found, words):
    report = pretend(torch=version, devices=[A100] * devices)
    installed = {"torch": version, "torchvision": "0.29.1", "nvidia-nccl-cu13": nccl}
    monkeypatch.setattr(doctor, "_version", installed.get)
    backends = row(report(), "backends")
    assert backends["found"] == found
    assert words in backends["means"]
    assert backends["ok"] == ("idle" not in words)


# GPUs, cores, memory


def test_no_gpu_is_fine(pretend):
    assert row(pretend()(), "GPUs")["found"] == "none"


def test_gpus_are_named(pretend):
    assert row(pretend(devices=[A100, A100._replace(index=1)])(), "GPUs")["found"] == "2 × NVIDIA A100, 40 GiB"


def test_one_gpu_is_said_to_serve_one_rank(pretend):
    assert "cannot share" in row(pretend(devices=[A100])(), "GPUs")["means"]


def test_hidden_gpus_are_told_from_absent_ones(pretend, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    hidden = row(pretend(torch=CUDA, devices=[A100])(), "GPUs")
    assert hidden["found"] == "none visible"
    assert 'CUDA_VISIBLE_DEVICES="-1"' in hidden["means"]


def test_a_broken_driver_is_shown_in_its_own_words(pretend):
    broken = row(pretend(problem="nvidia-smi says: version mismatch")(), "GPUs")
    assert "nvidia-smi says: version mismatch" in broken["means"]
    assert not broken["ok"]


@pytest.mark.parametrize(
    "change, ranks",
    [
        ({"cores": 2}, 2),
        ({"cores": 1}, 1),
        ({"cores": 64}, doctor.MOST_RANKS),
        ({"cores": 8, "free": 1.6}, 3),  # memory carries three
        ({"cores": 16, "devices": [A100] * 4}, 4),
        ({"cores": 4, "devices": [A100]}, 4),  # two ranks cannot share the one GPU, so they are on the CPU
        ({"cores": 4, "free": 0.1}, 1),
    ],
)
def test_sensible_ranks(pretend, change, ranks):
    report = pretend(**change)()
    assert doctor.sensible_ranks() == ranks
    assert row(report, "ranks")["found"].startswith(f"{ranks} ")


def test_less_than_2_gib_of_memory_stops(pretend):
    assert pretend(total=1.9, free=1.5)().stoppers == ["memory"]


def test_a_full_memory_is_a_note_only(pretend):
    report = pretend(total=8, free=0.7)()
    assert report.fit
    assert "717 MiB free of 8.0 GiB" == row(report, "memory")["found"]
    assert not row(report, "memory")["ok"]


# Room and tools


def test_a_folder_for_runs_that_cannot_be_made_stops(pretend, monkeypatch, tmp_path):
    (tmp_path / "file").touch(mode=0o755)
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / "file" / "runs"))
    report = pretend()()
    assert report.stoppers == ["runs kept in"]
    assert "DDP_LAB_HOME" in row(report, "runs kept in")["cure"]


def test_looking_makes_no_folder(pretend, tmp_path):
    pretend()(full=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
def test_dockers_small_shared_memory_is_noted_with_its_option(pretend):
    report = pretend(disk=1 / 16)()
    assert row(report, "shared memory")["found"] == "64 MiB"
    assert "--shm-size" in row(report, "shared memory")["cure"]


def test_a_missing_browser_has_a_cure_and_does_not_stop(pretend, monkeypatch):
    which = doctor.shutil.which
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **how: None if "chrom" in name else which(name, **how))
    report = pretend()(full=True)
    assert "install" in row(report, "chromium")["cure"]
    assert report.fit


# The command


def test_doctor_prints_the_full_report(tmp_path):
    answer = command("doctor", DDP_LAB_HOME=str(tmp_path))
    report = doctor.machine(full=True)
    assert answer.returncode == (0 if report.fit else 2)
    for row in report.rows:
        assert re.search(rf"^(ok|note|STOP) +{row['item']}", answer.stdout, re.M)
    assert answer.stderr == ""


def test_doctor_exits_2_on_an_unfit_machine(tmp_path):
    (tmp_path / "file").touch()
    answer = command("doctor", DDP_LAB_HOME=str(tmp_path / "file" / "runs"))
    assert answer.returncode == 2
    assert re.search("^STOP  runs kept in", answer.stdout, re.M)
    assert "cannot run the course yet. In the way: runs kept in" in answer.stdout


def test_doctor_on_a_bare_python_says_what_to_do():
    command = [sys.executable, "-S", "-m", "ddp_lab", "doctor"]  # -S: no installed packages
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert answer.returncode == 2
    assert "scripts/lab.py" in answer.stdout
    assert "Traceback" not in answer.stderr


def test_no_command_prints_the_usage():
    answer = command()
    assert answer.returncode == 0
    assert "doctor" in answer.stdout


def test_an_unknown_command_exits_2_and_is_named():
    answer = command("docter")
    assert answer.returncode == 2
    assert "docter" in answer.stderr
