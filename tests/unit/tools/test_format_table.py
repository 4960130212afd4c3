"""The table of number formats on figures whose statistics are known by hand."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("format_table", ROOT / "tools" / "format_table.py")
format_table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(format_table)


def runs(*scores, tsct="tsct=x", error="1e-3"):
    return {seed: {"bpb": str(bpb), "tsct": tsct, "effective_error": error} for seed, bpb in enumerate(scores)}


CONTROL = runs(2.0, 2.1, 1.9)


def test_the_interval_is_that_of_a_paired_t():
    """Gaps 0.01, 0.02, 0.03: mean 0.02, sd 0.01; t(0.975, 2) = 4.3027, so +- 4.3027 * 0.01 / sqrt(3)."""
    mean, (low, high) = format_table.against(runs(2.01, 2.12, 1.93), CONTROL)
    assert mean == pytest.approx(0.02)
    assert (low, high) == pytest.approx((0.02 - 0.0248414, 0.02 + 0.0248414), abs=1e-6)


@pytest.mark.parametrize(
    ("found", "alive"),
    [
        (runs(2.001, 2.101, 1.901), "yes"),
        (runs(2.03, 2.13, 1.93), "no"),
        (runs(2.01, 2.12, 1.91), "undecided"),
        (runs(2.001, 2.101, 1.901, tsct="tsct=fp4 latched=1/4"), "no"),
        (runs(1.9, 2.2, 1.9), "undecided"),  # better on average, but the interval is wide
    ],
)
def test_alive_is_quiet_and_close(found, alive):
    assert format_table.line("fp4", found, CONTROL).endswith(f"| {alive} |")


def test_the_control_is_judged_by_the_latch_too():
    assert format_table.line("fp32", CONTROL, CONTROL).endswith("| yes |")
    assert format_table.line("fp32", runs(2.0, tsct="tsct=fp32 latched=1/4"), CONTROL).endswith("| no |")


def test_one_seed_decides_nothing():
    assert format_table.line("fp8", runs(1.0), CONTROL).endswith("| undecided |")
    assert format_table.line("fp8", {7: CONTROL[0]}, CONTROL).endswith("| undecided |")


def test_without_a_control_there_is_no_table():
    with pytest.raises(ValueError, match="no run of fp32"):
        format_table.table({"fp4": CONTROL})
