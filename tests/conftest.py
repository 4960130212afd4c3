"""One thread a test process: the runner starts several, and sums keep their bits."""

import torch

torch.set_num_threads(1)
