"""A nested state as flat tensors plus a JSON description, and back.

Checkpoints keep tensors in one format and everything else (step numbers, learning rates, names) as readable
JSON, so that no Python object has to be unpickled and a state can be inspected with any editor. Keys keep
their type: an optimiser's integer keys come back as integers.
"""

import hashlib
import json

import torch
from torch import Tensor

from dormouse.errors import CheckpointError

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


def flatten(tree: object) -> tuple[dict[str, Tensor], object]:
    """(tensors by dotted name, JSON-ready description); raises TypeError on a leaf of another kind."""
    tensors: dict[str, Tensor] = {}
    return tensors, _describe(tree, "", tensors)


def templates(description: object) -> dict[str, Tensor]:
    """Uninitialised CPU tensors of the shapes and dtypes that `description` names."""
    found: dict[str, Tensor] = {}
    _collect(description, found)
    return found


def unflatten(description: object, tensors: dict[str, Tensor]) -> object:
    """The tree that `flatten` took apart."""
    if not isinstance(description, dict):
        return description
    if "tensor" in description:
        return tensors[description["tensor"]]
    if "list" in description:
        return [unflatten(item, tensors) for item in description["list"]]
    if "tuple" in description:
        return tuple(unflatten(item, tensors) for item in description["tuple"])
    return {key: unflatten(item, tensors) for key, item in description["dict"]}


def digest(tree: object) -> str:
    """SHA-256 of a tree's tensors (name, dtype, shape, bytes) and values: equal digests, equal bits."""
    tensors, description = flatten(tree)
    found = hashlib.sha256(json.dumps(description).encode())
    for tensor in tensors.values():
        found.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _describe(node: object, name: str, tensors: dict[str, Tensor]) -> object:
    if isinstance(node, Tensor):
        tensors[name] = node.detach()
        return {"tensor": name, "dtype": str(node.dtype).removeprefix("torch."), "shape": list(node.shape)}
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if isinstance(node, dict):
        return {"dict": [[key, _describe(item, _join(name, key), tensors)] for key, item in node.items()]}
    if isinstance(node, (list, tuple)):
        items = [_describe(item, _join(name, index), tensors) for index, item in enumerate(node)]
        return {"tuple" if isinstance(node, tuple) else "list": items}
    raise TypeError(f"{name}: {type(node).__name__} has no place in a checkpoint")


def _collect(description: object, found: dict[str, Tensor]) -> None:
    if not isinstance(description, dict):
        return
    if "tensor" in description:
        if description["dtype"] not in _DTYPES:
            raise CheckpointError(f"tensor {description['tensor']}: unknown number format {description['dtype']}")
        found[description["tensor"]] = torch.empty(description["shape"], dtype=_DTYPES[description["dtype"]])
    for item in description.get("list", description.get("tuple", [])):
        _collect(item, found)
    for _, item in description.get("dict", []):
        _collect(item, found)


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
