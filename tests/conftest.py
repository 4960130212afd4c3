"""One thread a test process: the runner starts several, and sums keep their bits. One browser for tests of pages."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A real browser, for tests of pages."""
    from headless import launched

    with launched(tmp_path_factory.mktemp("browser")) as running:
        yield running
