"""Configuration and its commands work in an interpreter that never loads torch."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import dormouse, dormouse.config
for module in pkgutil.walk_packages(dormouse.config.__path__, "dormouse.config."):
    importlib.import_module(module.name)
dormouse.load_preset("tiny", overrides=["n_experts=8"])
from dormouse.cli.config import app
for words in ("show small --parts", "show tiny --json", "diff small nano", "presets", "--help"):
    app(words.split(), standalone_mode=False)
print("torch loaded:", "torch" in sys.modules, "numpy loaded:", "numpy" in sys.modules)
"""


def test_configuration_and_its_commands_do_not_import_torch():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "torch loaded: False numpy loaded: False"
