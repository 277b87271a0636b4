"""What a rank kept by `worker.save`, read back in the notebook without importing torch."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

from ddp_lab.worker import ONE, SUFFIXES


class Saved(Mapping):
    """The objects in a rank's `saved` folder by name; each is read from its file when asked for.

    JSON comes back as plain Python, arrays and tensors as numpy arrays (or dicts of them), a figure as a
    `Picture`. KeyError lists the names that are there; FileNotFoundError if the run's folder is gone.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    def __getitem__(self, name):
        path = self._files().get(name)
        if path is None:
            raise KeyError(f"nothing saved as {name!r}; saved: {', '.join(self) or 'nothing'}")
        return READERS[path.suffix](path)

    def __iter__(self):
        return iter(self._files())

    def __len__(self):
        return len(self._files())

    def __contains__(self, name):
        return name in self._files()  # Mapping's own would read the file

    def __repr__(self):
        try:
            files = self._files()
        except FileNotFoundError as error:
            return f"<saved: {error}>"
        lines = [f"{name}: {path.suffix[1:]}, {path.stat().st_size:,} bytes" for name, path in files.items()]
        return "\n".join(lines) or "nothing saved"

    def _files(self):
        if not self.folder.parent.is_dir():
            gone = self.folder.parent
            raise FileNotFoundError(f"{gone} is gone: only the newest runs are kept; run it again")
        if not self.folder.is_dir():  # made by the first worker.save
            return {}
        files = sorted(path for path in self.folder.iterdir() if path.suffix in SUFFIXES)
        return {path.name[: -len(path.suffix)]: path for path in files if not path.name.startswith(".")}


class Picture:
    """A saved figure: shows itself in a notebook; `.path` is the PNG file."""

    def __init__(self, path):
        self.path = path

    def _repr_png_(self):
        return self.path.read_bytes()

    def __repr__(self):
        return f"<picture {self.path}>"


def _json(path):
    return json.loads(path.read_bytes())


def _npz(path):
    import numpy

    with numpy.load(path, allow_pickle=False) as file:
        return _one_or_all({name: file[name] for name in file.files})


def _safetensors(path):
    from safetensors import deserialize

    tensors = dict(deserialize(path.read_bytes()))
    if any(tensor["dtype"] == "BF16" for tensor in tensors.values()):
        warnings.warn(f"{path.stem}: bfloat16 is read as float32, since numpy has none", stacklevel=3)
    return _one_or_all({name: _array(tensor, path) for name, tensor in tensors.items()})


def _array(tensor, path):
    import numpy

    kind, data, shape = tensor["dtype"], tensor["data"], tensor["shape"]
    if kind == "BF16":  # the upper half of a float32
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    dtypes = {"BOOL": "?", "C64": "<c8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
    dtypes.update({f"{sign}{8 * size}": f"<{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)})
    if kind not in dtypes:
        raise TypeError(f"numpy has no {kind}; read {path} with safetensors.torch.load_file")
    return numpy.frombuffer(data, dtypes[kind]).reshape(shape)


def _one_or_all(arrays):
    return arrays[ONE] if list(arrays) == [ONE] else arrays


READERS = {".json": _json, ".npz": _npz, ".safetensors": _safetensors, ".png": Picture}
