"""First weights of the networks for images.

Sources: convolutions as He et al., arXiv 1502.01852, section 2.2, in the form for the backward pass; linear layers by
a normal distribution of deviation 0.01 as Simonyan and Zisserman, arXiv 1409.1556, section 3.1, and for ResNet-50 as
Goyal et al., arXiv 1706.02677, section 5.1; biases 0 in all of them.
"""

from __future__ import annotations

from torch import nn

LINEAR_DEVIATION = 0.01


def initialise(model: nn.Module) -> None:
    """Give new weights and biases to convolutions, transposed ones too, and to linear layers.

    Batch normalisation keeps torch's: scales of 1 and shifts of 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=LINEAR_DEVIATION)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
