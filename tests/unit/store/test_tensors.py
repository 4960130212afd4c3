"""Files of tensors: the same bytes in every process, read back by the library."""

import subprocess
import sys

import torch
from safetensors import safe_open

from dormouse.store.tensors import tensor_file

CODE = (
    "import torch, hashlib; from dormouse.store.tensors import tensor_file; "
    "texts = dict(zip('format step config origin'.split(), ['pt', '3', '{\"a\": 1}', 'ü'])); "
    "print(hashlib.sha256(tensor_file({'b': torch.arange(3.0), 'a': torch.ones(2, 2).T}, texts)).hexdigest())"
)


def test_the_library_reads_what_was_written(tmp_path):
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 3, dtype=torch.bfloat16).T, "empty": torch.zeros(0)}
    texts = {"format": "pt", "note": 'quotes " and ü', "a": "1"}
    (tmp_path / "file").write_bytes(tensor_file(tensors, texts))
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == texts
        assert set(file.keys()) == set(tensors)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())


def test_every_process_writes_the_same_bytes():
    found = {
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout for _ in "123"
    }
    assert len(found) == 1
