"""Architectures that people publish, small and with random weights: timm's and transformers'."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

SHORT = {"depths": (1, 1, 1, 1)}
TIMM: dict[str, dict[str, Any]] = {
    "cait_xxs24_224": {"img_size": 64, "depth": 2},
    "coat_lite_tiny": {"img_size": 64},
    "coatnet_pico_rw_224": {"img_size": 64},
    "convnext_atto": SHORT,
    "convnextv2_atto": SHORT,
    "cs3darknet_focus_s": {},
    "deit3_small_patch16_224": {"img_size": 64, "depth": 2},
    "dpn48b": {},
    "edgenext_xx_small": {},
    "efficientnet_lite0": {},
    "efficientvit_b0": {},
    "efficientvit_m0": {},
    "ese_vovnet19b_dw": {},
    "fastvit_t8": {},
    "focalnet_tiny_srf": {},
    "gcvit_xxtiny": {"img_size": 64},
    "ghostnet_050": {},
    "gmlp_ti16_224": {"img_size": 64},
    "hgnetv2_b0": {},
    "hiera_tiny_224": {"img_size": 64, "embed_dim": 32, "stages": (1, 1, 2, 1)},
    "hrnet_w18_small": {},
    "inception_next_atto": SHORT,
    "lcnet_035": {},
    "levit_128s": {"img_size": 64},
    "mambaout_femto": SHORT,
    "maxvit_rmlp_pico_rw_256": {"img_size": 64},
    "mixer_s32_224": {"img_size": 64},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_035": {},
    "mobileone_s0": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "mvitv2_tiny": {"img_size": 64},
    "nf_regnet_b0": {},
    "pit_ti_224": {"img_size": 64},
    "poolformerv2_s12": {},
    "pvt_v2_b0": SHORT,
    "regnety_002": {},
    "repvgg_a0": {},
    "repvit_m0_9": {},
    "resmlp_12_224": {"img_size": 64},
    "resnet10t": {},
    "resnetv2_18": {},
    "rexnet_100": {},
    "selecsls42": {},
    "seresnet18": {},
    "shvit_s1": {},
    "skresnet18": {},
    "starnet_s050": {},
    "swin_tiny_patch4_window7_224": {
        "img_size": 56,
        "depths": (2, 1),
        "num_heads": (1, 2),
        "embed_dim": 16,
    },
    "swinv2_cr_tiny_224": {"img_size": 56, "depths": (2, 1), "num_heads": (1, 2), "embed_dim": 16},
    "tinynet_e": {},
    "twins_svt_small": {"img_size": 64, "depths": (1, 1, 1, 1)},
    "visformer_tiny": {"img_size": 64},
    "volo_d1_224": {"img_size": 64},
    "xcit_nano_12_p16_224": {"img_size": 64, "depth": 2},
}
"""Arguments of models by their names; pictures have 64 x 64 points unless `img_size` says."""
MORE_TIMM: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4},
    "botnet26t_256": {"img_size": 64},
    "convit_tiny": {"img_size": 64, "depth": 3, "local_up_to_layer": 2},
    "cpubone_nano": {},
    "cspnext_tiny": {},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
    "densenet121": {"block_config": (1, 1, 1, 1)},
    "dla34": {},
    "eca_botnext26ts_256": {"img_size": 64},
    "efficientvim_m1": {},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "fasternet_t0": {},
    "hardcorenas_a": {},
    "iformer_t": {},
    "jx_nest_tiny": {"img_size": 64},
    "lambda_resnet26t": {"img_size": 64},
    "lcnetv2_small": {},
    "legacy_seresnet18": {},
    "legacy_xception": {},
    "lowformer_b0": {},
    "naflexvit_base_patch16_gap": {"depth": 1},
    "nextvit_small": {},
    "rdnet_tiny": {},
    "repghostnet_050": {},
    "res2net50_14w_8s": {"layers": (1, 1, 1, 1)},
    "resnest14d": {},
    "samvit_base_patch16_224": {"img_size": 64, "depth": 2, "global_attn_indexes": (1,)},
    "sequencer2d_s": {"img_size": 64, "layers": (1, 1, 1, 1)},
    "swiftformer_xs": {},
    "swinv2_tiny_window8_256": {
        "img_size": 64,
        "depths": (1, 1),
        "embed_dim": 32,
        "num_heads": (2, 4),
        "window_size": 4,
    },
    "test_byobnet": {},
    "test_convnext2": {},
    "test_efficientnet": {},
    "test_efficientnet_evos": {},
    "test_efficientnet_gn": {},
    "test_resnet": {},
    "test_vit": {"img_size": 64},
    "test_vit2": {"img_size": 64},
    "test_vit3": {"img_size": 64},
    "test_vit4": {"img_size": 64},
    "test_vit_relpos": {"img_size": 64},
    "tnt_s_legacy_patch16_224": {"img_size": 64, "depth": 2},
    "tresnet_m": {},
    "vgg11_bn": {},
    "vit_base_mci_224": {"img_size": 64, "depth": 1},
    "vitamin_small_224": {"img_size": 64},
    "xception41": {},
}
"""The same of models that are run through `torch.compile` alone."""
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
LLAMA = SMALL | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
VISION = SMALL | {"image_size": 32, "patch_size": 8}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "AlbertModel": SMALL | {"embedding_size": 16},
    "BartModel": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "vocab_size": 61,
        "pad_token_id": 0,
    },
    "BertModel": SMALL,
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61},
    "CLIPVisionModel": VISION,
    "CohereForCausalLM": LLAMA,
    "ConvNextModel": {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]},
    "DebertaV2Model": SMALL
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "DeepseekV3ForCausalLM": LLAMA
    | {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "Dinov2Model": VISION,
    "DistilBertModel": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 61},
    "ElectraModel": SMALL | {"embedding_size": 16},
    "EsmModel": SMALL | {"pad_token_id": 0, "mask_token_id": 1},
    "FNetModel": SMALL,
    "FalconForCausalLM": SMALL,
    "Gemma2ForCausalLM": LLAMA,
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61},
    "GPTNeoXForCausalLM": SMALL,
    "HubertModel": SMALL
    | {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "mask_time_length": 2},
    "LlamaForCausalLM": LLAMA,
    "MPNetModel": SMALL,
    "MambaForCausalLM": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 61},
    "MistralForCausalLM": LLAMA | {"sliding_window": 4},
    "MixtralForCausalLM": LLAMA | EXPERTS,
    "OPTForCausalLM": SMALL | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "OlmoeForCausalLM": LLAMA | EXPERTS,
    "PatchTSTModel": {"context_length": 32, "patch_length": 8, "num_input_channels": 2}
    | {"d_model": 32, "num_attention_heads": 4, "ffn_dim": 48, "num_hidden_layers": 2},
    "PhiForCausalLM": SMALL,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "RobertaModel": SMALL | {"pad_token_id": 1},
    "RwkvModel": {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}
    | {"vocab_size": 61},
    "SegformerModel": {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]},
    "StableLmForCausalLM": LLAMA,
    "T5EncoderModel": {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}
    | {"vocab_size": 61},
    "ViTModel": VISION,
    "Wav2Vec2Model": SMALL
    | {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "mask_time_length": 2},
    "WhisperModel": {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "vocab_size": 61,
        "max_source_positions": 16,
        "pad_token_id": 0,
    },
    "XLNetModel": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "vocab_size": 61},
}
"""Configurations of models by their classes."""
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61}
AUDIO = SMALL | {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "mask_time_length": 2}
WINDOWS = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1]}
MORE_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "BeitModel": VISION,
    "BigBirdModel": SMALL | {"attention_type": "original_full"},
    "CTRLModel": GPT | {"dff": 48},
    "ConvBertModel": SMALL | {"embedding_size": 32},
    "DiffLlamaForCausalLM": LLAMA,
    "FunnelModel": {"d_model": 32, "block_sizes": [1, 1], "n_head": 4, "d_head": 8, "d_inner": 48}
    | {"vocab_size": 61},
    "GPTJForCausalLM": GPT | {"rotary_dim": 4},
    "Gemma3ForCausalLM": LLAMA,
    "GptOssForCausalLM": LLAMA | EXPERTS,
    "GraniteMoeForCausalLM": LLAMA | EXPERTS,
    "JambaForCausalLM": LLAMA
    | EXPERTS
    | {"use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4}
    | {"attn_layer_period": 2, "attn_layer_offset": 1}
    | {"expert_layer_period": 2, "expert_layer_offset": 1},
    "LEDModel": TRANSFORMERS["BartModel"] | {"attention_window": 4},
    "Lfm2ForCausalLM": LLAMA | {"full_attn_idxs": [1]},
    "LongformerModel": SMALL | {"attention_window": [4, 4], "pad_token_id": 1},
    "MBartModel": TRANSFORMERS["BartModel"],
    "Mamba2ForCausalLM": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 61}
    | {"head_dim": 8, "num_heads": 8, "n_groups": 1, "state_size": 8, "chunk_size": 4},
    "MobileBertModel": SMALL
    | {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}
    | {"num_feedforward_networks": 2},
    "ModernBertModel": SMALL
    | {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    | {"cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2},
    "MptForCausalLM": {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 61},
    "NemotronForCausalLM": LLAMA,
    "Phi3ForCausalLM": LLAMA | {"eos_token_id": 1, "bos_token_id": 2},
    "Qwen3NextForCausalLM": LLAMA
    | EXPERTS
    | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    | {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "RecurrentGemmaForCausalLM": LLAMA
    | {"lru_width": 32, "attention_window_size": 4, "num_hidden_layers": 3},
    "RegNetModel": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    | {"groups_width": 4},
    "RoFormerModel": SMALL | {"embedding_size": 32},
    "SEWModel": AUDIO
    | {"conv_stride": [5, 2, 2, 2, 2, 2, 2], "conv_kernel": [10, 3, 3, 3, 3, 2, 2]}
    | {"squeeze_factor": 2},
    "SqueezeBertModel": SMALL | {"embedding_size": 32},
    "SwiftFormerModel": {"embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "Swinv2Model": WINDOWS | {"num_heads": [1, 2], "window_size": 4},
    "WavLMModel": AUDIO,
    "XLMModel": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 61, "n_words": 61},
    "YosoModel": SMALL | {"use_expectation": True},
}
"""The same of models that are run through `torch.compile` alone."""


class First(nn.Module):
    """A model of transformers as a function of tensors: its first result."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Any) -> Any:
        given = dict(zip(self.names, inputs, strict=True))
        return self.model(**given, return_dict=False)[0]


def model_of(name: str, seed: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model in evaluation mode and arguments for it; both follow from the seed."""
    torch.manual_seed(seed)
    kind, _, which = name.partition("/")
    make: Callable[[str], Any] = {"timm": _timm, "transformers": _transformers}[kind]
    model, inputs = make(which)
    for _, parameter in model.named_parameters():
        if parameter.ndim <= 1:  # Scales and biases of 0 and 1 would hide what reads them.
            parameter.data += 0.05 * torch.randn_like(parameter)
    for key, buffer in model.named_buffers():
        if key.endswith("running_mean"):
            buffer += 0.1 * torch.randn_like(buffer)
    return model.eval(), inputs


def _timm(name: str) -> Any:
    import timm

    options = (TIMM | MORE_TIMM)[name]
    size = options.get("img_size", 64)
    return timm.create_model(name, num_classes=7, **options), (torch.randn(2, 3, size, size),)


def import_torchvision() -> None:
    """Import it without its kernels where their library is for another build of PyTorch.

    timm needs it, and transformers looks for it.
    """
    try:
        import torchvision  # noqa: F401 - tried
    except ModuleNotFoundError:
        return
    except RuntimeError:
        spec = find_spec("torchvision")
        assert spec is not None and spec.origin is not None
        text = (Path(spec.origin).parent / "_meta_registrations.py").read_text()
        library = torch.library.Library("torchvision", "DEF")
        for operator in set(re.findall(r'register_fake\("torchvision::(\w+)"', text)):
            library.define(f"{operator}(Tensor x) -> Tensor")
        _kept.append(library)
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]


_kept: list[Any] = []
"""Libraries: what they declare ends with them."""


def _transformers(name: str) -> Any:
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    made = getattr(transformers, name)
    config = made.config_class(**(TRANSFORMERS | MORE_TRANSFORMERS)[name])
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = made(config)
    main = model.main_input_name
    tokens = torch.randint(3, 60, (2, 9))
    if main == "pixel_values":
        inputs = {main: torch.randn(2, 3, *(2 * [getattr(config, "image_size", 64)]))}
    elif main == "past_values":
        inputs = {main: torch.randn(2, 32, 2)}
    elif main == "input_features":
        inputs = {main: torch.randn(2, 80, 32), "decoder_input_ids": tokens}
    elif main == "input_values":
        inputs = {main: torch.randn(2, 2000)}
    else:
        inputs = {main: tokens}
    return First(model, tuple(inputs)), tuple(inputs.values())
