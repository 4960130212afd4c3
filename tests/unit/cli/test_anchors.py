"""`dormouse anchors`: one JSON object and nothing else, a readable table, refusals before any work."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dormouse.cli.anchors import anchors, parse_kinds, parse_orders
from dormouse.errors import ConfigError, DataError, UsageError


@pytest.fixture
def own(tmp_path):
    generator = np.random.default_rng(0)
    for name, size in (("train", 3_000), ("held", 1_001)):
        (tmp_path / name).write_bytes(generator.integers(97, 105, size, dtype=np.uint8).tobytes())
    return {"data": str(tmp_path / "train"), "held_out": str(tmp_path / "held")}


def run(**changes) -> None:
    defaults = {"data": "shelf", "held_out": None, "orders": "2-8", "skip": "", "window": 40_960}
    anchors(**(defaults | {"fresh": False, "as_json": False, "out": None, "dedup": False} | changes))


def test_json_is_one_object_and_progress_goes_elsewhere(own, capsys):
    run(**own, orders="2-3", skip="xz,zstd,bzip2", as_json=True)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [row["name"] for row in found["rows"]][2:] == ["Kneser-Ney 2-gram", "Kneser-Ney 3-gram", "gzip -9"]
    assert (found["scored_bytes"], found["tail_bytes"], found["window_bytes"]) == (1_000, 1_000, 40_960)
    assert found["measured_now"] is True
    assert found["provenance"]["versions"]["numpy"] == np.__version__
    assert "n-grams: counting" in printed.err


def test_every_printed_figure_goes_to_the_file_too(own, tmp_path, capsys):
    run(**own, skip="ngram,xz,zstd", out=tmp_path / "figures.json")
    saved = json.loads((tmp_path / "figures.json").read_text())
    printed = capsys.readouterr().out
    for row in saved["rows"]:
        assert row["name"] in printed
        assert f"{row['tail']:.3f}" in printed
    assert saved["held_out_sha256"][:16] in printed


def test_the_built_in_corpus_answers_from_the_packaged_figures(capsys):
    run(as_json=True)
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["rows"]}
    assert found["measured_now"] is False
    assert len(rows) == 14
    assert rows["Kneser-Ney 8-gram"]["window"] == pytest.approx(1.972, abs=0.001)


def test_orders_are_read_as_numbers_ranges_and_lists():
    assert parse_orders("2-8") == [2, 3, 4, 5, 6, 7, 8]
    assert parse_orders("5") == [5]
    assert parse_orders("8, 2-3,3") == [2, 3, 8]


@pytest.mark.parametrize("text", ["1", "9", "2-9", "0-3", "5-2", "x", "", "2,,3", "-3"])
def test_impossible_orders_are_refused(text):
    with pytest.raises(ConfigError, match=r"orders=.* from 2 to 8"):
        parse_orders(text)


def test_unknown_kinds_are_refused_by_name():
    assert parse_kinds("zstd, xz") == ["uniform", "order0", "ngram", "gzip", "bzip2"]
    with pytest.raises(ConfigError, match=r"unknown kinds \(zip\); known are uniform"):
        parse_kinds("zip,xz")


def test_refusals_come_before_any_work_and_leave_no_file(own, tmp_path, capsys):
    for changes, error in (
        ({"out": tmp_path / "no folder" / "file"}, DataError),
        ({"out": tmp_path}, DataError),
        ({"out": tmp_path / "train" / "file"}, DataError),
        ({"out": tmp_path / ("n" * 300)}, DataError),
        ({"window": 0}, ConfigError),
        ({"held_out": own["data"], "out": tmp_path / "never"}, DataError),
    ):
        with pytest.raises(error) as refusal:
            run(**(own | changes))
        assert isinstance(refusal.value, UsageError)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "never").exists()


def test_an_existing_file_is_refused_before_measuring_and_kept(own, tmp_path, capsys):
    (tmp_path / "figures").write_bytes(b"precious")
    with pytest.raises(DataError, match=r"figures exists and would have been overwritten; nothing was measured"):
        run(**own, out=tmp_path / "figures")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert (tmp_path / "figures").read_bytes() == b"precious"


def test_a_file_that_appears_while_measuring_is_kept_and_the_figures_are_shown(own, tmp_path, capsys, monkeypatch):
    from dormouse.lab.anchors import table

    def slow(*arguments, real=table.anchors_for, **options):
        (tmp_path / "figures").write_bytes(b"precious")
        return real(*arguments, **options)

    monkeypatch.setattr(table, "anchors_for", slow)
    with pytest.raises(DataError, match=r"figures exists .*the figures are not in a file"):
        run(**own, orders="2", skip="gzip,bzip2,xz,zstd", out=tmp_path / "figures")
    assert "Kneser-Ney 2-gram" in capsys.readouterr().out
    assert (tmp_path / "figures").read_bytes() == b"precious"


def test_a_disk_that_fills_up_is_reported_and_the_figures_are_shown(own, tmp_path, capsys, monkeypatch):
    real = Path.open

    def full_after_the_check(self, mode="r", **more):
        opened.append(mode)
        return real(Path("/dev/full"), "w") if opened.count("x") == 2 else real(self, mode, **more)

    opened = []
    monkeypatch.setattr(Path, "open", full_after_the_check)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\); the figures are not"):
        run(**own, orders="2", skip="gzip,bzip2,xz,zstd", out=tmp_path / "figures")
    assert "Kneser-Ney 2-gram" in capsys.readouterr().out


def test_dedup_takes_shared_passages_out_of_the_training_text(own, tmp_path, capsys):
    shared = (tmp_path / "held").read_bytes()[100:300]
    (tmp_path / "train").write_bytes((tmp_path / "train").read_bytes() + shared)
    few = {"skip": "ngram,gzip,bzip2,xz,zstd", "as_json": True}
    sizes = []
    for dedup in (False, True):
        run(**own, **few, dedup=dedup)
        sizes.append(json.loads(capsys.readouterr().out)["train_bytes"])
    assert sizes == [3_200, 3_000]


def test_the_command_and_the_anchors_never_load_torch():
    code = (
        "import sys; from dormouse.cli.anchors import anchors; "
        "anchors('shelf', None, '2-8', '', 40960, False, True, None); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["corpus"] == "shelf"
