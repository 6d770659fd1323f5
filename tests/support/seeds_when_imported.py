"""Seeds every generator there is, and makes one without a seed. To be preloaded."""

from __future__ import annotations

import random

import numpy as np
import torch

random.seed(1)
np.random.seed(2)
torch.manual_seed(3)
UNSEEDED = np.random.default_rng()
SEEDED = np.random.default_rng(4)
