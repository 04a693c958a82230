"""Small, randomly initialised backbones in the format of transformers, as folders."""

import json
from pathlib import Path

import torch
from transformers import (
    ConvNextConfig,
    ConvNextModel,
    Dinov2Config,
    Dinov2Model,
    ResNetConfig,
    ResNetModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTModel,
)

VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
KINDS = {
    "vit": (ViTModel, lambda: ViTConfig(image_size=64, patch_size=16, intermediate_size=64, **VISION)),
    "dinov2": (Dinov2Model, lambda: Dinov2Config(image_size=70, patch_size=14, **VISION)),
    "convnext": (ConvNextModel, lambda: ConvNextConfig(**STAGES)),
    "resnet": (ResNetModel, lambda: ResNetConfig(embedding_size=8, **STAGES)),
    "swin": (SwinModel, lambda: SwinConfig(image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 2])),
}
LOOKS = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3], "resample": 2}


def backbone_folder(kind: str, folder: Path) -> Path:
    """A folder with config, weights and preprocessor; equal bits each time."""
    make, config = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(config()).eval()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):  # statistics that are not those of a fresh layer
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(LOOKS))
    return folder
