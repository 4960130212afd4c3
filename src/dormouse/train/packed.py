"""A model as one file of packed weights: spectral factors in a number format, the rest as it is.

Singular values, projections, norms and router keep their numbers; memory tables may be packed too, since at small
widths they are most of the file. The file holds the model's configuration, so it needs no run beside it. A model read
back multiplies with exactly the values that a forward in that format sees: reading is unpacking, nothing is rounded
again. A layer of which a part fell back is stored in fp32: that part as it is, the others rounded.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dormouse.config.schema import ModelConfig
from dormouse.errors import CheckpointError, ConfigError
from dormouse.model.factor_format import formatted_layers
from dormouse.model.lm import Dormouse
from dormouse.model.roles import Role, named_roles
from dormouse.quant import Packed, pack, packed_from, round_to, unpack
from dormouse.store.files import write_atomic
from dormouse.store.tensors import tensor_file
from dormouse.train.state import load_weights

_KIND = "dormouse packed weights"


@dataclass(frozen=True)
class Sizes:
    """Bytes of the weights, before and after packing."""

    factors_bytes: int
    packed_factors_bytes: int
    total_bytes: int
    packed_total_bytes: int
    kept: tuple[str, ...]
    """Layers whose factors stay in fp32, because a part of them fell back."""


def pack_model(
    model: Dormouse, fmt: str, group: int, *, tables: str | None = None
) -> tuple[dict[str, Tensor | Packed], Sizes]:
    """Every tensor of the model by name, factors (and memory tables, in the format ``tables``) packed.

    Raises:
        UsageError: a weight is not finite.
        ValueError: unknown format or negative group.
    """
    layers = formatted_layers(model)
    kept = tuple(layer.name for layer in layers if layer.format.fell_back)
    formats: dict[str, str] = {}
    for name, _, role in named_roles(model):
        if role is Role.FACTOR and name.rpartition(".")[0] not in kept:
            formats[name] = fmt
        elif role is Role.TABLE and tables is not None:
            formats[name] = tables
    content: dict[str, Tensor | Packed] = {}
    for name, tensor in model.state_dict().items():
        content[name] = pack(tensor, formats[name], group) if name in formats else tensor.detach().contiguous()
    for layer in [layer for layer in layers if layer.name in kept]:
        for key, factor in layer.factors.items():
            content[f"{layer.name}.{key}"] = _partly_rounded(factor.detach(), fmt, group, layer.format.fell_back)
    factors = [name for name, _, role in named_roles(model) if role is Role.FACTOR]
    return content, _sizes(model, content, factors, kept)


def _partly_rounded(factor: Tensor, fmt: str, group: int, fell_back: set[int]) -> Tensor:
    """A stack ``[parts, m, r]`` (or the factor of a plain layer, which fell back) with its healthy parts rounded."""
    if factor.ndim == 2:
        return factor.contiguous()
    rounded = round_to(factor, fmt, group)
    return torch.stack([factor[e] if e in fell_back else rounded[e] for e in range(len(factor))])


def _sizes(model: Dormouse, content: dict[str, Tensor | Packed], factors: list[str], kept: tuple[str, ...]) -> Sizes:
    before = {name: tensor.nbytes for name, tensor in model.state_dict().items()}
    after = {name: part.nbytes for name, part in content.items()}
    return Sizes(
        factors_bytes=sum(before[name] for name in factors),
        packed_factors_bytes=sum(after[name] for name in factors),
        total_bytes=sum(before.values()),
        packed_total_bytes=sum(after.values()),
        kept=kept,
    )


def save_packed(path: Path, content: dict[str, Tensor | Packed], config: ModelConfig, origin: dict) -> None:
    """Write the file, complete or not at all; ``origin`` (JSON values) says which run and step it is from."""
    tensors: dict[str, Tensor] = {}
    described: dict[str, dict] = {}
    for name, part in content.items():
        if isinstance(part, Packed):
            described[name] = part.description()
            tensors |= {f"{name}/{key}": tensor.contiguous() for key, tensor in part.tensors().items()}
        else:
            tensors[name] = part
    header = {"packed": described, "model": config.model_dump(mode="json"), "origin": origin}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, tensor_file(tensors, {"format": "pt", "kind": _KIND, "dormouse": json.dumps(header)}))


def load_packed(path: str | Path) -> tuple[Dormouse, dict]:
    """The model of a file of packed weights, in evaluation mode on the CPU, and where it came from.

    Raises:
        CheckpointError: no such file, another kind of file, or a damaged one.
    """
    tensors, metadata = _read(Path(path))
    try:
        header = json.loads(metadata["dormouse"])
        config = ModelConfig.model_validate(header["model"] | {"quant": "fp32"})
        weights, origin = _unpacked(tensors, header["packed"]), dict(header["origin"])
        with torch.random.fork_rng(devices=[]):
            model = Dormouse(config)
        load_weights(model, weights)
        model.n_passes = origin.get("n_passes") or config.max_iter
    except (AttributeError, KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}); make it again with dormouse quantize.") from None
    return model.eval(), origin


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as packed weights ({error}).") from None
    if metadata.get("kind") != _KIND:
        raise CheckpointError(f"{path} holds no packed weights; make some with dormouse quantize.")
    return tensors, metadata


def _unpacked(tensors: dict[str, Tensor], described: dict[str, dict]) -> dict[str, Tensor]:
    """Weights by name; a packed one is made of the tensors below its name."""
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    weights: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name, slash, part = key.rpartition("/")
        if slash:
            parts[name][part] = tensor
        else:
            weights[key] = tensor
    return weights | {name: unpack(packed_from(parts[name], about)) for name, about in described.items()}
