"""The setting for short spins: made before torch, never against the user's choice."""

import os
import subprocess
import sys

PROBE = """
import os, sys
import dormouse.cli.main as program
program.main(["config", "presets"])
assert "torch" not in sys.modules
print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
"""


def settings(**chosen: str) -> str:
    """Last line of a fresh process that ran a command with `chosen` in its environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", PROBE], env=clean | chosen, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_the_program_asks_for_short_spins():
    assert settings() == "3000 None"


def test_the_users_choice_stays():
    assert settings(GOMP_SPINCOUNT="5") == "5 None"
    assert settings(OMP_WAIT_POLICY="ACTIVE") == "None ACTIVE"


def test_nothing_is_set_once_torch_is_there(monkeypatch):
    import torch  # noqa: F401

    from dormouse.cli.waiting import wait_politely

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert wait_politely() is False
    assert "GOMP_SPINCOUNT" not in os.environ
