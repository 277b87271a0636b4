"""visible_devices: which GPU is a local rank's own, by CUDA's guide, and by torch's reading where that is silent."""

import os
import subprocess
import sys

import numpy
import pandas
import pytest

import ddp_lab as lab
from ddp_lab import gpus

UUIDS = ["GPU-8932f937-d72c", "GPU-89aabbcc-0001", "GPU-0123"]


def physical(*args, **options):
    """The GPU of each local rank, None for none."""
    column = lab.visible_devices(*args, **options)["physical"]
    return [None if pandas.isna(value) else value for value in column]


def notes(*args, **options):
    return list(lab.visible_devices(*args, **options)["note"])


def test_each_rank_has_a_row_with_its_own_device():
    table = lab.visible_devices("2,1", gpus=4, nproc=3)
    assert list(table.columns) == ["local_rank", "device", "physical", "note"]
    assert list(table["local_rank"]) == [0, 1, 2]
    assert list(table["device"]) == ["cuda:0", "cuda:1", "cuda:2"]
    assert list(table["note"]) == ["", "", "no such device: 2 GPUs are visible"]
    assert table["physical"].dtype == "Int64" and list(table["physical"][:2]) == [2, 1]
    assert table["physical"][2] is pandas.NA and table.attrs["gpus"] == 4


@pytest.mark.parametrize(
    "mask, own",
    [
        (None, [0, 1, 2, 3]),
        ("0,1", [0, 1]),
        ("1,0", [1, 0]),
        ("3", [3]),
        ("", [None]),
        ("-1", [None]),
        ("0,2,-1,1", [0, 2]),  # the guide's own example
        ("0,9,1", [0]),
        ("9", [None]),
        ("0,abc,1", [0]),
        ("NoDevFiles", [None]),
        ("0,0", [None]),
        ("1,2,1", [None]),
        ("1x,+2, 3", [1, 2, 3]),
        ("0,,1", [0]),
        ("2,GPU-1", [2]),
        ("1,-0", [1, 0]),
        ("0,-0", [None]),
    ],
)
def test_indices_and_as_many_ranks_as_are_visible_by_default(mask, own):
    assert physical(mask, gpus=4) == own


def test_more_digits_than_python_reads_name_no_gpu():
    assert physical("1," + "0" * 10_000) == [1]
    assert notes("0" * 10_000)[0].endswith("is the index of no GPU: it and all that follow are hidden")


def test_numbers_may_be_numpys():
    two = numpy.int64(2)
    assert lab.visible_devices("1", gpus=two, nproc=two).equals(lab.visible_devices("1", gpus=2, nproc=2))
    with pytest.raises(lab.InputError, match="names UUIDs"):
        lab.visible_devices("GPU-1", gpus=two)


@pytest.mark.parametrize(
    "mask, own",
    [
        ("GPU-0123", [2]),
        ("GPU-89aa,GPU-8932f937-d72c", [1, 0]),
        ("GPU-89", [None]),  # two begin so
        ("GPU-8932,GPU-ffff,GPU-89aa", [0]),
        ("GPU-8932,GPU-8932", [None]),
        ("GPU-8932,GPU-8932f937", [None]),
        ("GPU-8932,1", [0]),
        ("1,2", [1, 2]),
    ],
)
def test_uuids_and_their_beginnings(mask, own):
    assert physical(mask, gpus=UUIDS) == own


def test_a_mig_slice_goes_by_its_name_and_a_second_is_not_seen():
    table = lab.visible_devices("MIG-GPU-8932/1/2,MIG-b", nproc=2)
    assert list(table["physical"])[0] == "MIG-GPU-8932/1/2" and table["physical"][1] is pandas.NA
    assert list(table["note"]) == [
        "a MIG slice, taken on trust",
        "no such device: 'MIG-b' is a second MIG slice: a process sees one",
    ]
    assert physical("MIG-a", gpus=0) == [None]


def test_with_a_mask_for_each_rank_every_ranks_own_device_is_the_first():
    table = lab.visible_devices(["2", "0", "1,3"])
    assert list(table["device"]) == ["cuda:0"] * 3
    assert list(table["physical"]) == [2, 0, 1]
    asked = "cuda:{}, by the local rank, would be no device: this rank sees {}"
    assert list(table["note"]) == ["", asked.format(1, 1), asked.format(2, 2)]
    assert notes(["1", "1"])[1].startswith("the same GPU as local rank 0; ")
    assert notes(["", ""]) == ["no such device: the mask is empty: no GPU is visible"] * 2


@pytest.mark.parametrize(
    "mask, note",
    [
        ("0", "no such device: 1 GPU is visible"),
        ("0,9", "no such device: '9' is the index of no GPU: it and all that follow are hidden"),
        ("0,0", "no such device: '0' names a GPU a second time: none at all is visible (as torch counts; "),
        ("1,-0", "'-0' is read as 0 (as torch counts; CUDA's guide does not say)"),
        ("0,1x", "'1x' is read as 1 (as torch counts; CUDA's guide does not say)"),
        ("GPU-8932,1", "no such device: '1' is no UUID as the first is: it and all that follow are hidden (as torch"),
        ("GPU-8932,GPU-f", "no such device: 'GPU-f' is the UUID of no GPU"),
        ("GPU-8932,GPU-8", "no such device: 'GPU-8' begins the UUIDs of 2 GPUs"),
        ("MIG-a,0", "no such device: '0' is no MIG slice as the first is"),
    ],
)
def test_the_second_ranks_note_says_what_its_entry_came_to(mask, note):
    assert notes(mask, gpus=UUIDS, nproc=2)[1].startswith(note)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"mask": 1}, "mask=1 is no text"),
        ({"mask": ["0", 1]}, "mask=1 is no text"),
        ({"mask": []}, "mask=[] has no mask"),
        ({"mask": ["0", "1"], "nproc": 3}, "2 masks for nproc=3 ranks"),
        ({"mask": "0", "gpus": -1}, "gpus=-1: give a whole number from 0 to 64"),
        ({"mask": "0", "gpus": True}, "gpus=True: give a whole number"),
        ({"mask": "0", "gpus": 2.0}, "gpus has 2.0: give a whole number, or UUIDs"),
        ({"mask": "0", "nproc": 0}, "nproc=0: give a whole number from 1 to 64"),
        ({"mask": "0", "nproc": "2"}, "nproc='2': give a whole number"),
        ({"mask": "GPU-1"}, "mask='GPU-1' names UUIDs: give gpus=[...]"),
        ({"mask": "0", "gpus": ["0"]}, "gpus has '0': give a whole number, or UUIDs"),
        ({"mask": "0", "gpus": ["GPU-a", "GPU-a"]}, "gpus has a UUID twice"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(arguments, said):
    with pytest.raises(lab.InputError) as error:
        lab.visible_devices(**arguments)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def test_it_needs_no_torch():
    code = "import sys, ddp_lab as lab; lab.visible_devices('0'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"


SEEN = """
import torch
torch.cuda.init()
for i in range(torch.cuda.device_count()):
    print("GPU-" + str(torch.cuda.get_device_properties(i).uuid))
"""


@pytest.mark.gpu
def test_the_driver_shows_what_is_said():
    if not (installed := gpus.installed()):
        pytest.skip("needs a GPU")
    uuids = [gpu.uuid for gpu in installed]
    first = uuids[0]
    masks = ["0", "", "-1", "0,9", "0,0", "0x", "9,0", "abc", first, f"{first},{first}", first[:12], f"{first},0"]
    said, shown = {}, {}
    for mask in masks:
        said[mask] = [uuids[index] for index in physical(mask, gpus=uuids) if index is not None]
        env = os.environ | {"CUDA_VISIBLE_DEVICES": mask}
        done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, timeout=120, env=env)
        shown[mask] = done.stdout.split()  # nothing where init() fails, as it does with no device
    assert shown == said
