"""What a completed run or an evaluation looks like: its score among yardsticks, and how to go on.

A BPB alone says little, so it is always shown between what counting tables and compressors reach on the same
bytes, as far as those figures are known without measuring (the built-in corpus has them packaged; `dormouse
anchors` measures others).
"""

import json
from typing import TYPE_CHECKING

from dormouse.store.metrics import read_metrics
from dormouse.store.rundir import RunDir

if TYPE_CHECKING:
    from dormouse.cli.session import Report


def yardsticks(*, train_sha256: str, held_out_sha256: str, window_bytes: int) -> dict[str, float]:
    """Window BPB by name of every anchor known for these very bytes; only `uniform` for an unknown text."""
    from dormouse.lab.anchors.table import packaged

    table = packaged(train_sha256, held_out_sha256, window_bytes)
    rows = {} if table is None else {row.name: row.window for row in table.rows}
    return {"uniform": 8.0, **rows}


def ranking(bpb: float, anchors: dict[str, float], *, name: str) -> list[str]:
    """Lines of a table of BPB, best first, the model marked."""
    rows = sorted([(bpb, 0, name), *((value, 1, anchor) for anchor, value in anchors.items())])
    width = max(len(label) for _, _, label in rows)
    return [f"{'->' if kind == 0 else '  '} {label:<{width}}  {value:.3f}" for value, kind, label in rows]


def show_result(report: "Report", *, as_json: bool) -> None:
    """The last lines of a completed run, or its JSON object."""
    assert report.result is not None
    result = vars(report.result)
    if as_json:
        print(json.dumps({"run": str(report.path), "stopped": None, **result}))
        return
    print(f"done: {result['total_steps']} steps, {result['trained_bytes']:,} bytes, {result['seconds']:.0f} s")
    if result["bpb"] is not None:
        record = RunDir.open(report.path).read_run()
        anchors = yardsticks(
            train_sha256=record["data"]["train_sha256"],
            held_out_sha256=result["data_sha256"],
            window_bytes=result["window_bytes"],
        )
        print(f"held-out bits per byte on {result['scored_bytes']:,} bytes ({result['checkpoint']}, best):")
        print("\n".join(ranking(result["bpb"], anchors, name="dormouse")))
        if len(anchors) == 1:
            print("what counting and compressing reach on this text: dormouse anchors --data FILE")
    print(f"run: {report.path}")
    print(f"go on: dormouse resume {report.path} --steps {2 * result['total_steps']}")
    print(f'write: dormouse generate {report.path} --prompt "It is a truth"')


def last_row(report: "Report", kind: str) -> dict:
    """The last row of a kind in the run's metrics; empty if there is none."""
    rows = [row for row in read_metrics(RunDir.open(report.path).metrics) if row["kind"] == kind]
    return rows[-1] if rows else {}
