"""Figures of the formats against the descriptions of numpy, torch and ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
import torch

from dormouse.quant import FORMATS, number_format

DTYPES = {
    "fp32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8": ml_dtypes.float8_e4m3fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", DTYPES)
def test_floats_have_the_figures_of_their_dtype(name):
    info, f = ml_dtypes.finfo(DTYPES[name]), FORMATS[name]
    assert (f.bits, f.mantissa_bits) == (info.bits, info.nmant)
    assert (f.largest, 2.0**f.min_exponent) == (float(info.max), float(info.smallest_normal))


def test_integers_are_symmetric():
    assert [FORMATS[name].largest for name in ("int8", "int4", "ternary")] == [127, 7, 1]
    assert torch.iinfo(torch.int8).max == FORMATS["int8"].largest


def test_the_table_is_complete_and_cannot_be_changed():
    assert list(FORMATS) == ["fp32", "bf16", "fp16", "fp8", "fp4", "int8", "int4", "ternary"]
    assert [f.name for f in FORMATS.values() if not f.scaled] == ["fp32", "bf16", "fp16"]
    with pytest.raises(TypeError):
        FORMATS["fp6"] = FORMATS["fp8"]


def test_an_unknown_format_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"fmt = 'E4M3'.*use fp32, bf16"):
        number_format("E4M3")
