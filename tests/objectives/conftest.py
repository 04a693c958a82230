"""One thread, as in a run: these tensors are too small to share out, and the bits are those of a worker."""

import torch

torch.set_num_threads(1)
