"""Measuring bodies and training helpers shipped with the plugin. They run inside ranks and import torch."""
