"""These tables name the models of this project, of torchvision and of timm, so that they are checked without torch.

A new model of this project needs its module in train/models and one row here. torchvision's and timm's models need no
row. What model.args may set, the models themselves say where torch is loaded (`train.models.registry`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from train.names import nearest_name


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model of this project."""

    builder: str  # MODULE:FUNCTION in train/models; the function takes classes, shape, and what model.args may set
    dims: int = 2  # of a sample without its channels: 2 for images, 3 for clips


# By model.name. The first is the quickstart's.
BUILTIN_MODELS: Final[Mapping[str, BuiltinModel]] = {
    "small_cnn": BuiltinModel(builder="small_cnn:small_cnn"),
    "wide_resnet": BuiltinModel(builder="wide_resnet:wide_resnet"),
    "cnn3d": BuiltinModel(builder="cnn3d:cnn3d", dims=3),
}

# torchvision.models.list_models(module=torchvision.models): a test compares.
TORCHVISION_MODELS: tuple[str, ...] = tuple(
    """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169
    densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5
    efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3
    maxvit_t mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
    regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
    regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf
    regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d
    shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b
    swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16
    vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
    """.split()  # noqa: SIM905 - one name per line would hide the rest of this file
)

# model.args cannot set these: the config or the data decides them. Those of the first lines would read or fetch a file.
_NO_DOWNLOAD: Final = "nothing is downloaded; name a file or published weights in model.weights"
FORBIDDEN_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("weights", "pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"), _NO_DOWNLOAD
    ),
    "device": "launch.device decides",
    "dtype": "train.precision decides",
    "progress": "nothing is downloaded",
    "cache_dir": "nothing is downloaded",
    "num_classes": "the data decides",
    "in_chans": "the data decides",
    "img_size": "the data decides (data.image_size)",
    "aux_logits": "training is with one output",
    "features_only": "training needs one score per class",
    "out_indices": "training needs one score per class",
}

TIMM_PREFIX: Final = "timm/"
_REGISTERED_MODEL: Final = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)


def is_timm_model(name: Any) -> bool:
    """Whether `name` is timm/NAME with a NAME that the installed timm has."""
    return isinstance(name, str) and name.startswith(TIMM_PREFIX) and name[len(TIMM_PREFIX) :] in timm_models()


@cache
def timm_models() -> frozenset[str]:
    """The names of the installed timm's models; empty without timm.

    They are read from its source text in about 0.1 s. Importing timm takes as long as importing torch.
    """
    spec = find_spec("timm")
    if spec is None or spec.origin is None:
        return frozenset()
    sources = (Path(spec.origin).parent / "models").glob("*.py")
    return frozenset(name for path in sources for name in _REGISTERED_MODEL.findall(path.read_text(encoding="utf-8")))


RESNET_PREFIXES: Final = ("resnet", "resnext", "wide_resnet")  # torchvision's models with the argument small_stem

# The smallest member of each family of torchvision, by the family's name.
SMALLEST_TORCHVISION_MODELS: Final[Mapping[str, str]] = {
    "convnext": "convnext_tiny",
    "densenet": "densenet121",
    "efficientnet": "efficientnet_b0",
    "efficientnet_v2": "efficientnet_v2_s",
    "inception": "inception_v3",
    "maxvit": "maxvit_t",
    "mnasnet": "mnasnet0_5",
    "mobilenet": "mobilenet_v3_small",
    "mobilenet_v3": "mobilenet_v3_small",
    "regnet": "regnet_y_400mf",
    "regnet_x": "regnet_x_400mf",
    "regnet_y": "regnet_y_400mf",
    "resnet": "resnet18",
    "resnext": "resnext50_32x4d",
    "shufflenet": "shufflenet_v2_x0_5",
    "shufflenet_v2": "shufflenet_v2_x0_5",
    "squeezenet": "squeezenet1_1",
    "swin": "swin_t",
    "swin_v2": "swin_v2_t",
    "vgg": "vgg11_bn",
    "vit": "vit_b_16",
    "wide_resnet50": "wide_resnet50_2",
}
# The member of each family of timm with the fewest parameters, and one of each of its modules, without timm's test_*
# models, which classify nothing well.
SMALLEST_TIMM_MODELS: Final[Sequence[str]] = tuple(
    """
    aimv2_large_patch14_224 bat_resnext26ts beit_base_patch16_224 beitv2_base_patch16_224 botnet26t_256
    caformer_s18 cait_xxs24_224 coat_tiny coatnet_pico_rw_224 coatnext_nano_rw_224 convformer_s18 convit_tiny
    convmixer_768_32 convnext_zepto_rms convnextv2_atto cpubone_nano crossvit_tiny_240 cs3darknet_focus_s csatv2
    cspdarknet53 cspnext_tiny cspresnet50 cspresnext50 darknet17 darknetaa53 davit_tiny deepseek_vit_412m
    deit_tiny_patch16_224 densenet121 densenetblur121d dla46x_c dm_nfnet_f0 dpn48b eca_resnext26ts ecaresnet26t
    ecaresnetlight ecaresnext26t_32x4d edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientnet_b0
    efficientnetv2_rw_t efficientvim_m1 efficientvit_b0 efficientvit_m0 ese_vovnet19b_slim_dw
    eva02_tiny_patch14_224 fasternet_t0 fastvit_t8 fbnetc_100 fbnetv3_b flexivit_small focalnet_tiny_srf
    gc_efficientnetv2_rw_t gcresnet33ts gcresnext26ts gcvit_xxtiny gemma4_vit_167m gernet_s ghostnet_050
    ghostnetv3_050 gmixer_12_224 gmlp_ti16_224 halo2botnet50ts_256 halonet_h1 haloregnetz_b hardcorenas_b
    hgnet_tiny hgnetv2_b0 hiera_tiny_224 hieradet_small hrnet_w18_small iformer_t inception_next_atto
    inception_resnet_v2 inception_v3 inception_v4 lambda_resnet26t lamhalobotnet50ts_256 lcnet_035 lcnetv2_small
    legacy_seresnet18 legacy_xception levit_128s lowformer_b0 mambaout_femto maxvit_pico_rw_256
    maxxvit_rmlp_nano_rw_256 maxxvitv2_nano_rw_256 mixer_s16_224 mixnet_s mnasnet_small mobilenetv3_small_050
    mobilenetv5_base mobileone_s1 mobilevit_xxs mobilevitv2_050 mvitv2_tiny naflexvit_base_patch16_parfac_gap
    nasnetalarge nest_tiny nextvit_small nf_regnet_b0 nfnet_l0 pit_ti_224 pnasnet5large poolformer_s12
    poolformerv2_s12 pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetv_040 regnetx_002 regnety_002 regnetz_005
    repghostnet_050 repvgg_a0 repvit_m1 res2next50 resmlp_12_224 resnest14d resnet10t resnetaa34d resnetblur18
    resnetrs50 resnetv2_18 resnext26ts rexnet_100 rexnetr_100 sam2_hiera_tiny samvit_base_patch16_224
    sebotnet33ts_256 sedarknet21 sehalonet33ts selecsls42 semnasnet_050 senet154 sequencer2d_s seresnet18
    seresnetaa50d seresnext26ts seresnextaa101d_32x8d shvit_s1 skresnet18 skresnext50_32x4d spnasnet_100
    starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256
    tf_mobilenetv3_small_075 tiny_vit_5m_224 tinynet_e tnt_s_legacy_patch16_224 tresnet_m twins_svt_small vgg11
    visformer_tiny vit_srelpos_small_patch16_224 vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 vitamin_small_224
    volo_d1_224 vovnet39a wide_resnet50_2 xception41p xcit_nano_12_p8_224
    """.split()  # noqa: SIM905 - one name per line would be a page
)

# What a family's name means where its smallest member is another one, or has another name.
COMMON_TIMM_MODELS: Final[Mapping[str, str]] = {
    "convnext": "convnext_atto",
    "efficientnet": "efficientnet_b0",
    "mobilenet": "mobilenetv3_small_050",
    "regnet": "regnetx_002",
    "swin": "swin_tiny_patch4_window7_224",
    "vit": "vit_tiny_patch16_224",
}


def suggest_model(name: Any) -> str | None:
    """The model that an unknown `model.name` most likely means: the smallest of a family, or the most similar name.

    A name with the tag of its weights (timm/resnet50.a1_in1k) is the model without the tag. A name that only timm has
    gets timm's prefix.
    """
    plain = re.sub(r"[\s-]+", "_", str(name).strip().lower())
    if plain.startswith("timm"):
        return _suggest_timm_model(re.sub(r"^timm[/_.:]*", "", plain))
    plain = re.sub(r"^(torchvision|tv)[/_.:]+(models[/_.:]+)?", "", plain).partition(".")[0]
    own = (*BUILTIN_MODELS, *TORCHVISION_MODELS)
    without_number = plain.rstrip("_0123456789")  # resnet of resnet9
    candidates = (
        plain if plain in own else SMALLEST_TORCHVISION_MODELS.get(plain.rstrip("_")),
        TIMM_PREFIX + plain if plain in timm_models() else None,
        next((member for member in own if member.replace("_", "") == plain.replace("_", "")), None),  # resnet_50
        SMALLEST_TORCHVISION_MODELS.get(without_number),
        nearest_name(plain, own, 0.75),
        _timm_family(plain),
    )
    return next(filter(None, candidates), None)


def _suggest_timm_model(name: str) -> str | None:
    name = name.partition(".")[0]
    if name in timm_models():
        return TIMM_PREFIX + name
    close = nearest_name(name, timm_models(), 0.75)
    return _timm_family(name) or (TIMM_PREFIX + close if close else None)


def _timm_family(name: str) -> str | None:
    """The smallest member of the family that is called `name`: resnet is that of resnet10t, vit of vit_tiny_..."""
    family = name.rstrip("_0123456789")
    members = (member for member in SMALLEST_TIMM_MODELS if re.split(r"[^a-z]", member)[0] == family)
    smallest = COMMON_TIMM_MODELS.get(family) or next(members, None)
    return TIMM_PREFIX + smallest if smallest else None


# `train weights fetch` puts weights here, and model.weights looks here for a name; relative to the working directory.
WEIGHTS_FOLDER: Final = "weights"
EXPORT_FILE: Final = "model.json"  # describes the weights beside it: see `train.inference.export`
WEIGHTS_SUFFIXES: Final = (".safetensors", ".pth")
FILE_SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")  # of the files that model.weights may name


def weights_file_stem(name: str) -> str:
    """The name of the file that keeps the published weights `name`, without suffix: a slash would be a folder."""
    return name.replace("/", "-")


def weights_path(value: str) -> Path:
    """The file or folder that `model.weights` means: a path, or the name of published weights that were fetched.

    A name without a tag means the only weights of that model in the folder of weights.
    """
    path = Path(value)
    if path.exists() or not is_weights_name(value):
        return path
    folder, stem = Path(WEIGHTS_FOLDER), weights_file_stem(value)
    exact = [folder / f"{stem}{suffix}" for suffix in WEIGHTS_SUFFIXES]
    tagged = [file for suffix in WEIGHTS_SUFFIXES for file in sorted(folder.glob(f"{stem}.*{suffix}"))]
    files = [file for file in exact if file.is_file()] or ([] if "." in value else tagged)
    return files[0] if len({file.stem for file in files}) == 1 else path


def is_weights_name(value: str) -> bool:
    """Whether `value` has the form of the name of published weights: MODEL, MODEL.TAG, timm/MODEL or timm/MODEL.TAG."""
    model, _, tag = value.partition(".")
    return "/" not in tag and f".{tag}" not in FILE_SUFFIXES and (model in TORCHVISION_MODELS or is_timm_model(model))
