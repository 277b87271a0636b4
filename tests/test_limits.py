"""What this process may use: cores and memory, a container's limits included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_lab import limits
from ddp_lab.limits import GIB

ROOT = Path(__file__).parents[1]


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Pretends the cgroup lines of this process and files under /sys/fs/cgroup."""

    def make(lines, **files):
        monkeypatch.setattr(limits, "CGROUPS", tmp_path)
        monkeypatch.setattr(limits, "OWN_CGROUP", tmp_path / "own")
        (tmp_path / "own").write_text(lines)
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


def test_a_containers_memory_limit_counts_and_its_file_cache_does_not(cgroup):
    gib = lambda n: f"{n * GIB}\n"  # noqa: E731
    stat = f"anon 5\ninactive_file {GIB // 2}\n"
    cgroup("0::/pod/me\n", pod__memory_dot_max=gib(1), pod__memory_dot_current=gib(1), pod__memory_dot_stat=stat)
    assert limits.memory() == (GIB // 2, GIB)


def test_a_memory_limit_of_the_older_cgroups_counts(cgroup):
    files = {
        "memory__memory_dot_limit_in_bytes": str(GIB),
        "memory__memory_dot_usage_in_bytes": str(GIB // 4),
    }
    cgroup("4:cpu,cpuacct:/x\n3:memory:/docker/abc\n", **files)
    assert limits.memory() == (GIB * 3 // 4, GIB)


def test_without_a_limit_the_whole_memory_counts(cgroup):
    import psutil

    cgroup("0::/\n", memory_dot_max="max\n", memory_dot_current="5\n")
    assert limits.memory()[1] == psutil.virtual_memory().total


@pytest.mark.parametrize(
    "lines, files",
    [
        ("0::/a/b\n", {"a__cpu_dot_max": "120000 100000\n"}),
        (
            "2:cpu,cpuacct:/d\n",
            {"cpu,cpuacct__cpu_dot_cfs_quota_us": "190000", "cpu,cpuacct__cpu_dot_cfs_period_us": "100000"},
        ),
    ],
)
def test_a_containers_cpu_quota_counts_rounded_up(cgroup, monkeypatch, lines, files):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    cgroup(lines, **files)
    assert limits.cores() == 2


@pytest.mark.parametrize("quota", ["max 100000\n", "99000000 100000\n"])
def test_a_quota_above_the_cores_changes_nothing(cgroup, monkeypatch, quota):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    cgroup("0::/\n", cpu_dot_max=quota)
    assert limits.cores() == 8


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity can be set on Linux only")
def test_cores_are_those_this_process_may_use():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from ddp_lab.limits import cores; print(cores())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.strip() == "1"
