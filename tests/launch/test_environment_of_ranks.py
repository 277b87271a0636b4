"""environment: ranks get the kernel's variables, but none that would mislead them."""

import os
import sys

import pytest

from ddp_lab.launch import environment

STALE = {
    "RANK": "7",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "7",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "ROLE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "PET_NPROC_PER_NODE": "3",
    "TORCHELASTIC_RUN_ID": "old",
    "TORCHELASTIC_ERROR_FILE": "/tmp/old.json",
    "FORCE_COLOR": "1",
    "CLICOLOR_FORCE": "1",
    "JPY_SESSION_NAME": "some.ipynb",
    "PYTEST_CURRENT_TEST": "x",
    "DDP_LAB_RANK_DIR": "/tmp/old",
}


@pytest.mark.parametrize("name", STALE)
def test_a_stale_setting_is_dropped(monkeypatch, name):
    monkeypatch.setenv(name, STALE[name])
    assert name not in environment.of_ranks(2) and name not in environment.clean_path()


def test_a_rank_draws_into_no_cell(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    assert environment.of_ranks(2)["MPLBACKEND"] == "Agg"


def test_everything_else_is_the_kernels_own(monkeypatch):
    monkeypatch.setenv("MY_SETTING", "ü")
    assert environment.of_ranks(2)["MY_SETTING"] == "ü"
    assert environment.of_ranks(2).get("PATH") == os.environ.get("PATH")


@pytest.mark.parametrize("cores, nproc, threads", [(8, 2, "4"), (8, 3, "2"), (2, 2, "1"), (2, 4, "1"), (1, 64, "1")])
def test_ranks_share_the_cores(monkeypatch, cores, nproc, threads):
    monkeypatch.setattr(environment.limits, "cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    assert environment.of_ranks(nproc)["OMP_NUM_THREADS"] == threads


def test_ranks_talk_over_loopback_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth9")
    env = environment.of_ranks(2)
    assert env["GLOO_SOCKET_IFNAME"] == ("lo0" if sys.platform == "darwin" else "lo")
    assert env["NCCL_SOCKET_IFNAME"] == "eth9"


def test_a_command_finds_this_kernels_python_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    first = environment.clean_path()["PATH"].split(os.pathsep)[0]
    assert os.path.samefile(first, os.path.dirname(sys.executable))


def test_the_kernels_own_environment_stays_as_it_is(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    before = dict(os.environ)
    environment.of_ranks(2)["NEW"] = "1"
    assert dict(os.environ) == before
