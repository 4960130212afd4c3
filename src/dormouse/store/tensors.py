"""Files of tensors with text beside them, the same bytes for the same content.

The library writes the text entries in an order that changes from process to process. Here they are put in the order of
their names; length and place of the tensors stay as they were.
"""

import json
from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor

_LENGTH_BYTES = 8
_TEXTS = "__metadata__"


def tensor_file(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> bytes:
    """Content of a safetensors file with contiguous `tensors` and `texts` as its metadata."""
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(texts))
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(data[_LENGTH_BYTES:end])
    header = {_TEXTS: dict(sorted(texts.items()))} | {key: value for key, value in header.items() if key != _TEXTS}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    size = -len(text) % _LENGTH_BYTES + len(text)
    return size.to_bytes(_LENGTH_BYTES, "little") + text.ljust(size) + data[end:]
