"""saved: what worker.save kept is read back as it was, without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from ddp_lab import worker
from ddp_lab.launch.saved import Saved


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_LAB_RANK_DIR", str(tmp_path))
    return Saved(tmp_path / "saved")


def test_json_comes_back(saved):
    worker.save("facts", {"a": [1, None, "ü"], "b": float("inf"), "t": torch.tensor(2.0)})
    assert saved["facts"] == {"a": [1, None, "ü"], "b": float("inf"), "t": 2.0}


def test_an_array_and_a_dict_of_arrays_come_back(saved):
    worker.save("grid", np.arange(6, dtype=np.int16).reshape(2, 3))
    worker.save("both", {"file": np.ones(2), "layer/0": np.zeros((0, 3)), "name": np.array(["ü"])})
    assert saved["grid"].dtype == np.int16 and saved["grid"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert list(saved["both"]) == ["file", "layer/0", "name"]
    assert saved["both"]["layer/0"].shape == (0, 3) and saved["both"]["name"].tolist() == ["ü"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.half, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_comes_back_with_its_dtype(saved, dtype):
    tensor = torch.tensor([[0, 1, 2]]).to(dtype)
    worker.save("t", tensor)
    assert saved["t"].dtype == tensor.numpy().dtype and np.array_equal(saved["t"], tensor.numpy())


def test_bfloat16_comes_back_as_float32_and_says_so(saved):
    worker.save("t", torch.tensor([1.5, -0.007, 3e38]).bfloat16())
    with pytest.warns(UserWarning, match="bfloat16"):
        array = saved["t"]
    assert array.dtype == np.float32
    assert array.tolist() == torch.tensor([1.5, -0.007, 3e38]).bfloat16().tolist()


def test_a_state_dict_with_tied_and_strided_weights_comes_back(saved):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "norm": torch.nn.BatchNorm1d(3)})
    model["b"] = torch.nn.Linear(3, 3)
    model["b"].weight = model["a"].weight
    state = dict(model.state_dict(), strided=torch.arange(12.0).view(3, 4).t()[::2])
    worker.save("state", state)
    assert saved["state"].keys() == state.keys()
    for name, tensor in state.items():
        assert np.array_equal(saved["state"][name], tensor.numpy()), name


def test_a_figure_comes_back_as_a_picture(saved):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2])
    worker.save("curve", figure)
    assert saved["curve"]._repr_png_().startswith(b"\x89PNG") and saved["curve"].path.name == "curve.png"


def test_a_later_object_replaces_an_earlier_one_of_another_kind(saved):
    worker.save("x", [1])
    worker.save("x", np.zeros(1))
    assert list(saved) == ["x"] and isinstance(saved["x"], np.ndarray)


def test_names_are_listed_without_reading_and_dots_are_kept(saved):
    worker.save("b.v2", 1)
    worker.save("a", 2)
    (saved.folder / "c.json").write_text("broken")
    assert list(saved) == ["a", "b.v2", "c"] and len(saved) == 3 and "c" in saved and "d" not in saved
    assert "b.v2: json" in repr(saved)


def test_an_unknown_name_lists_the_known_ones(saved):
    worker.save("weights", 1)
    with pytest.raises(KeyError, match="weight'; saved: weights"):
        saved["weight"]
    assert saved.get("weight") is None


def test_a_rank_that_saved_nothing_and_a_run_that_is_gone_are_told_apart(saved):
    assert dict(saved) == {} and repr(saved) == "nothing saved"
    saved.folder.parent.rmdir()
    with pytest.raises(FileNotFoundError, match="run it again"):
        list(saved)
    assert "is gone" in repr(saved)


def test_a_file_that_asks_for_a_pickle_is_not_opened(saved):
    saved.folder.mkdir()
    np.savez(saved.folder / "evil.npz", a=np.array([object()]))
    with pytest.raises(ValueError, match="pickle"):
        saved["evil"]


def test_reading_tensors_imports_no_torch(saved):
    worker.save("t", {"w": torch.ones(2)})
    code = (
        "import sys; from ddp_lab.launch.saved import Saved;"
        f"assert Saved({str(saved.folder)!r})['t']['w'].sum() == 2; print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "False", out.stderr
