"""ResNet-20 as a service: it is ready when it has classified the first digit, on one thread.

Its weights are not trained, because the cost of loading and answering does not depend on them.
"""

from __future__ import annotations

import torch
from digits import normalised
from resnet20 import ResNet20


def load() -> ResNet20:
    """Load the model, and let it answer once: what a first call costs is part of its start."""
    torch.manual_seed(0)
    images, _, _, _ = normalised(torch.device("cpu"))
    net = ResNet20(colours=1).eval()
    with torch.inference_mode():
        net(images[:1]).argmax()
    return net
