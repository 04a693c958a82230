"""Backbones of timm, if installed. It needs torchvision, which fedfew does not, so it is in no extra."""

from importlib.util import find_spec

from fedfew.core.errors import FedfewError
from fedfew.models.backbones.pretrained import Backbone, Preprocess, Size, Source, published
from fedfew.models.backbones.transformers_model import last_block

WHERE = "model timm"


@published
def timm_model(*, source: Source = "", size: Size = 96) -> Backbone:
    """A pretrained model of timm by its name there; needs the package timm, which no extra of fedfew installs."""
    if find_spec("timm") is None:
        remedy = "Install timm and the torchvision of your torch, or use efficientnet-lite0 or transformers"
        raise FedfewError("E112", WHERE, "needs the package timm", remedy)
    import timm

    if source not in timm.list_models(pretrained=True):
        message = f"timm has no pretrained model {source!r}" if source else "model.source is empty"
        raise FedfewError("E103", WHERE, message, "timm.list_models(pretrained=True) lists the names")
    try:
        model = timm.create_model(source, pretrained=True, num_classes=0)
    except Exception as error:  # the download goes through several packages, each with its own errors
        words = " ".join(str(error).split())[:240]
        raise FedfewError("E124", WHERE, f"the weights of {source} cannot be downloaded: {words}") from error
    known = timm.data.resolve_model_data_config(model)
    preprocess = Preprocess(size, tuple(known["mean"]), tuple(known["std"]), known.get("interpolation", "bicubic"))
    return Backbone(f"timm {source}", model, preprocess, last_block(n for n, _ in model.named_parameters()))
