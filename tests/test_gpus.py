"""`ddp_lab.gpus` counts what CUDA would show, from nvidia-smi and CUDA_VISIBLE_DEVICES, without CUDA."""

import os
import subprocess
import sys

import pytest

from ddp_lab import gpus

TWO = """0, GPU-8932f937-d72c, NVIDIA A100-SXM4-40GB, 40960
1, GPU-89aabbcc-0001, NVIDIA A100-SXM4-40GB, 40960
"""
FOUR = "".join(f"{i}, GPU-{i}{i}{i}{i}-x, NVIDIA L4, 23034\n" for i in range(4))


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a fake nvidia-smi first on PATH; calling the fixture says what it prints."""
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + "/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(text, code=0, before=""):
        here, program = tmp_path, tmp_path / "nvidia-smi"
        (tmp_path / "answer").write_text(text)
        program.write_text(f"#!/bin/sh\necho call >> {here}/calls\n{before}\ncat {here}/answer\nexit {code}\n")
        program.chmod(0o755)
        gpus._installed.cache_clear()
        return tmp_path / "calls"

    yield install
    gpus._installed.cache_clear()


def shown(value):
    """The indices that CUDA_VISIBLE_DEVICES=value leaves."""
    return [gpu.index for gpu in gpus.visible({"CUDA_VISIBLE_DEVICES": value})]


def test_all_gpus_are_seen_with_name_and_memory_where_nothing_is_hidden(nvidia_smi):
    nvidia_smi(TWO)
    assert gpus.visible({}) == [
        (0, "GPU-8932f937-d72c", "NVIDIA A100-SXM4-40GB", 40960),
        (1, "GPU-89aabbcc-0001", "NVIDIA A100-SXM4-40GB", 40960),
    ]


def test_without_nvidia_smi_there_are_none_and_no_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus._installed.cache_clear()
    assert (gpus.visible({}), gpus.problem()) == ([], None)
    gpus._installed.cache_clear()


def test_our_own_environment_is_the_default_and_is_read_at_each_call(nvidia_smi, monkeypatch):
    nvidia_smi(TWO)
    assert gpus.count() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.count() == 1
    assert gpus.count({}) == 2
    assert len(gpus.installed()) == 2


@pytest.mark.parametrize(
    "value, indices",
    [
        ("0,1", [0, 1]),
        ("2,1", [2, 1]),
        (" 3 , 0", [3, 0]),
        ("", []),
        ("-1", []),
        ("0,2,-1,1", [0, 2]),  # the guide's own example
        ("0,9,1", [0]),
        ("0,abc,1", [0]),
        ("NoDevFiles", []),
        ("0,0", []),
        ("1,1,2", []),
        ("01,+2,3x", [1, 2, 3]),
        ("0,,1", [0]),
        ("-0", [0]),
        ("1,-0", [1, 0]),
        ("0,-0", []),
        ("1,-,0", [1]),
        pytest.param("1," + "0" * 10_000, [1], id="more digits than Python reads"),
    ],
)
def test_indices(nvidia_smi, value, indices):
    nvidia_smi(FOUR)
    assert shown(value) == indices


@pytest.mark.parametrize(
    "value, indices",
    [
        ("GPU-8932", [0]),
        ("GPU-89aabbcc-0001,GPU-8932f937", [1, 0]),
        ("GPU-89", []),  # two GPUs begin so
        ("GPU-8932,GPU-ffff,GPU-89aa", [0]),
        ("GPU-8932,GPU-8932", []),
        ("GPU-8932,GPU-8932f937", []),  # one GPU by two abbreviations
        ("GPU-8932,1", [0]),
        ("1,GPU-8932", [1]),
    ],
)
def test_uuid_prefixes(nvidia_smi, value, indices):
    nvidia_smi(TWO)
    assert shown(value) == indices


@pytest.mark.parametrize(
    "value",
    ["0,1", "2,1", "0,2,-1,1", "0,9,1", "0,abc,1", "0,0", "01,+2,3x", "1;2", "", "-1", "1,GPU-1"]
    + ["-0", "1,-0", "0,-0", "+0,-1", "2,-3", "1,x,0"],
)
def test_indices_are_read_as_torch_reads_them(nvidia_smi, monkeypatch, value):
    import torch

    if not hasattr(torch.cuda, "_parse_visible_devices"):
        pytest.fail("torch.cuda._parse_visible_devices is gone: compare with its successor")
    nvidia_smi(FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    torchs = torch.cuda._parse_visible_devices()
    # torch cuts at the first index beyond the GPUs only when it counts them
    known = next((i for i, index in enumerate(torchs) if index > 3), len(torchs))
    assert shown(value) == torchs[:known]


def test_a_mig_name_is_a_device_and_only_the_first_of_them(nvidia_smi):
    """The guide: "Only single MIG instance enumeration is supported"."""
    nvidia_smi(TWO)
    slices = gpus.visible({"CUDA_VISIBLE_DEVICES": "MIG-aa,MIG-bb"})
    assert [gpu.uuid for gpu in slices] == ["MIG-aa"]
    assert gpus.count({"CUDA_VISIBLE_DEVICES": "MIG-aa,MIG-aa"}) == 0
    assert gpus.count({"CUDA_VISIBLE_DEVICES": "MIG-aa,0"}) == 1


def test_no_gpu_makes_no_mig_device(nvidia_smi):
    nvidia_smi("No devices were found\n")
    assert gpus.count({"CUDA_VISIBLE_DEVICES": "MIG-aa"}) == 0


def test_memory_that_nvidia_smi_does_not_know_is_none(nvidia_smi):
    nvidia_smi("0, GPU-1, NVIDIA GB10, [N/A]\n")
    assert [gpu.memory for gpu in gpus.visible({})] == [None]


def test_a_broken_driver_is_no_gpu_and_its_words_are_kept(nvidia_smi):
    nvidia_smi("Failed to initialize NVML: Driver/library version mismatch\n", code=18)
    assert gpus.count({}) == 0
    assert gpus.problem() == "nvidia-smi says: Failed to initialize NVML: Driver/library version mismatch"


def test_a_stuck_nvidia_smi_is_given_up(nvidia_smi, monkeypatch):
    monkeypatch.setattr(gpus, "TIMEOUT", 0.3)
    nvidia_smi(TWO, before="exec sleep 30")
    assert gpus.count({}) == 0
    assert "no answer in 0.3 seconds" in gpus.problem()


def test_nvidia_smi_is_asked_once_per_process(nvidia_smi):
    calls = nvidia_smi(TWO)
    for _ in range(3):
        gpus.count()
    assert calls.read_text().count("call") == 1


def test_counting_imports_no_torch(nvidia_smi):
    nvidia_smi(TWO)
    code = "import sys; from ddp_lab import gpus; print(gpus.count(), 'torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2", "False"]
