import os
import signal
import subprocess
import sys

import pytest

from dormouse.train.signals import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_handlers_are_put_back(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_the_process_at_once():
    program = (
        "import os, signal, time\nfrom dormouse.train.signals import StopRequest\n"
        "with StopRequest():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 130
    assert "stopping" in done.stderr
    assert "complete checkpoint" in done.stderr
