"""How the CPU threads of one operation wait for each other.

A step of a small model is some thousand short operations, each shared by the threads. By default a thread that has
finished its share spins for milliseconds before it sleeps. On a machine with another busy program it then holds the
core that the unfinished share needs, and training falls to a hundredth of its speed. A short spin costs nothing on a
quiet machine and keeps half of the speed on a contested one (`docs/decisions/0013`). The OpenMP library reads its
environment once, when torch is first imported; whatever the user has set stays.
"""

import os
import sys

SPIN_COUNT = "3000"
_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def wait_politely() -> bool:
    """Ask for the short spin; returns False, changing nothing, when the user has chosen or torch is imported."""
    if "torch" in sys.modules or any(name in os.environ for name in _SETTINGS):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True
