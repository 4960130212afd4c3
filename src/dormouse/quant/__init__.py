"""Number formats, rounding and fake quantisation as pure tensor functions, and packed codes; no configuration."""

from dormouse.quant.fake import ACTIVATION_FORMATS, attention_format, fake_quant, fake_quant_activations
from dormouse.quant.formats import FORMATS, NumberFormat, number_format
from dormouse.quant.packing import Packed, pack, packed_bytes, packed_from, unpack
from dormouse.quant.rounding import Encoded, decode, encode, round_to, saturates, scales

__all__ = [
    "ACTIVATION_FORMATS",
    "FORMATS",
    "Encoded",
    "NumberFormat",
    "Packed",
    "attention_format",
    "decode",
    "encode",
    "fake_quant",
    "fake_quant_activations",
    "number_format",
    "pack",
    "packed_bytes",
    "packed_from",
    "round_to",
    "saturates",
    "scales",
    "unpack",
]
