"""Runs of these tests are kept in a folder of their own, so that none is removed before it is checked."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LAB_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("DDP_LAB_LEDGER", raising=False)
        yield
