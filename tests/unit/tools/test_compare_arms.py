"""The table of arms: paired t and Holm's correction against SciPy and by hand; notes are never out of date."""

import importlib.util
import re
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("compare_arms", ROOT / "tools" / "compare_arms.py")
compare_arms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare_arms)


def runs(*scores, seconds="10", **more):
    return {seed: {"bpb": str(bpb), "seconds": seconds, **more} for seed, bpb in enumerate(scores)}


CONTROL = runs(2.0, 2.1, 1.9, 2.05)


def test_p_and_interval_are_those_of_a_paired_t_test():
    arm = runs(2.01, 2.13, 1.92, 2.05)
    mean, (low, high), p = compare_arms.paired(arm, CONTROL)
    a, b = ([float(run["bpb"]) for run in side.values()] for side in (arm, CONTROL))
    expected = ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert (mean, low, high, p) == pytest.approx((0.015, interval.low, interval.high, expected.pvalue))


def test_only_common_seeds_are_compared_and_one_says_nothing():
    mean, _, p = compare_arms.paired({0: {"bpb": "2.5"}, 9: {"bpb": "9"}}, CONTROL)
    assert (mean, p) == (0.5, 1.0)


def test_holm_on_a_textbook_case():
    assert compare_arms.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert compare_arms.holm([0.9, 0.6]) == [1.0, 1.0]


def test_verdicts_and_order():
    lines = compare_arms.table(
        {"c": CONTROL, "bad": runs(2.1, 2.2, 2.0, 2.1501), "good": runs(1.9, 2.0, 1.8, 1.9501), "same": CONTROL},
        "c",
        ["gate"],
    )
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| c", "| good", "| same", "| bad"]
    verdicts = [line.split(" | ")[5].strip() for line in lines[2:]]
    assert verdicts == ["", "better", "undecided", "worse"]


def test_further_columns_are_means_over_the_seeds_that_have_them():
    arm = runs(2.0, 2.1, gate="0.5")
    arm[1]["gate"] = ""
    assert compare_arms.table({"c": arm}, "c", ["gate"])[2].endswith("| 0.5 |")


def test_a_control_that_is_not_there_is_named(tmp_path, capsys):
    (tmp_path / "runs.csv").write_text("arm,seed,bpb,seconds\na,0,2.0,1\n")
    assert compare_arms.main([str(tmp_path), "--control", "b"]) == 2
    assert "no arm b" in capsys.readouterr().err


MARKER = re.compile(r"<!-- against (\S+): begin -->\n(\|.*?\|)\n<!-- against", re.DOTALL)


@pytest.mark.parametrize("notes", sorted(ROOT.glob("experiments/*/notes.md")), ids=lambda path: path.parent.name)
def test_tables_in_notes_are_what_their_runs_give(notes):
    for control, shown in MARKER.findall(notes.read_text(encoding="utf-8")):
        columns = shown.splitlines()[0].strip("| ").split(" | ")[7:]
        assert shown.splitlines() == compare_arms.table(compare_arms.read(notes.parent / "runs.csv"), control, columns)
