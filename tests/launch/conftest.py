"""Runs of these tests are kept in folders of their own, and appear in no ledger of notebooks."""

import importlib

import pytest

torchrun = importlib.import_module("ddp_lab.launch.torchrun")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LAB_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("DDP_LAB_LEDGER", raising=False)
        yield


@pytest.fixture(scope="module", params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def start(request):
    """Runs that leave it open start warm in one round, and cold in the other: all is as true of the one as of the
    other. That a cold run is one at all, and leaves nothing behind, is also among the quick tests: test_warm.py,
    test_nothing_left.py.
    """
    server_for = torchrun._server
    with pytest.MonkeyPatch.context() as patch:
        warm = request.param == "warm"
        patch.setattr(torchrun, "_server", lambda asked, *rest: server_for(warm if asked is None else asked, *rest))
        yield request.param
