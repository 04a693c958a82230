"""The layout of the Hugging Face hub: weights as safetensors, config.json, preprocessor settings, card as README.md."""

from typing import Any

BICUBIC = 3
"""Pillow's number."""


def config(about: dict[str, Any]) -> dict[str, Any]:
    """config.json: what the hub shows, and all that fedfew needs to rebuild the model."""
    labels = dict(enumerate(about["classes"]))
    channels, height, _ = about["shape"]
    return {
        "architectures": ["FedfewForImageClassification"],
        "model_type": "fedfew",
        "num_channels": channels,
        "image_size": height,
        "id2label": {str(number): name for number, name in labels.items()},
        "label2id": {name: number for number, name in labels.items()},
        "fedfew": about,
    }


def preprocessor(about: dict[str, Any]) -> dict[str, Any]:
    """preprocessor_config.json in transformers' terms: resize, centre crop, rescale, normalise."""
    channels, height, width = about["shape"]
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": height},
        "resample": BICUBIC,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": about["mean"],
        "image_std": about["std"],
    }


def readme(card: str, about: dict[str, Any]) -> str:
    """The model card with the header that the hub reads, and how to use the files."""
    tags = ["image-classification", "federated-learning", "semi-supervised-learning"]
    header = "---\nlibrary_name: fedfew\npipeline_tag: image-classification\ntags:\n" + "".join(
        f"- {t}\n" for t in tags
    )
    channels, height, width = about["shape"]
    use = (
        "## Use\n\n```python\nimport torch\nfrom fedfew import predict\n\n"
        f"images = torch.zeros(1, {channels}, {height}, {width}, dtype=torch.uint8)\n"
        'probabilities = predict("model.safetensors", images)\n```\n'
    )
    return f"{header}---\n\n{card}\n{use}"
