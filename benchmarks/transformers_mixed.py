"""Tiny configurations of transformers' audio, mixed and time series models, by model type.

Keys that start with a capital letter are settings of the case, see ``transformers_text``;
``Floats`` replaces the image by float inputs of other names.
"""

from __future__ import annotations

from typing import Any

from benchmarks.transformers_text import DECODER, TEXT
from benchmarks.transformers_vision import VIT

Table = dict[str, dict[str, Any]]

WAVE: dict[str, Any] = TEXT | {
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 2],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2,
    "mask_time_prob": 0.2,
    "InputGradients": False,  # in training the models make their input a leaf
    "Shape": (2, 800),
}
SPEECH: dict[str, Any] = TEXT | DECODER

AUDIO: Table = {
    "dac": {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "upsampling_ratios": [4, 2],
        "decoder_hidden_size": 32,
        "n_codebooks": 2,
        "codebook_size": 16,
        "codebook_dim": 4,
        "hidden_size": 32,
        "Shape": (2, 1, 256),
    },
    "encodec": {
        "hidden_size": 16,
        "num_filters": 4,
        "upsampling_ratios": [4, 2],
        "codebook_size": 16,
        "num_lstm_layers": 1,
        "Shape": (2, 1, 256),
    },
    "hubert": WAVE,
    "mimi": {
        "hidden_size": 32,
        "num_filters": 4,
        "upsampling_ratios": [4, 2],
        "codebook_size": 16,
        "codebook_dim": 8,
        "num_quantizers": 4,
        "vector_quantization_hidden_dimension": 8,
        "upsample_groups": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "Shape": (2, 1, 1024),
    },
    "moonshine": TEXT
    | {
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4,
        "encoder_num_key_value_heads": 4,
        "decoder_num_key_value_heads": 4,
        "Without": ("num_hidden_layers", "num_attention_heads"),
        "Shape": (2, 4000),
        "DecoderLength": 6,
    },
    "sew": WAVE,
    "sew-d": WAVE | {"position_buckets": 8},
    "speech_to_text": SPEECH
    | {
        "Class": "AutoModelForSpeechSeq2Seq",
        "conv_channels": 16,
        "input_feat_per_channel": 16,
        "max_source_positions": 64,
        "max_target_positions": 64,
        "Name": "input_features",
        "Shape": (2, 32, 16),
        "DecoderLength": 6,
    },
    "unispeech": WAVE,
    "unispeech-sat": WAVE,
    "univnet": {
        "model_in_channels": 8,
        "model_hidden_channels": 8,
        "num_mel_bins": 16,
        "kernel_predictor_hidden_channels": 8,
        "Class": "UnivNetModel",
        "Name": "input_features",
        "Shape": (2, 8, 16),
    },
    "wav2vec2": WAVE | {"add_adapter": True, "num_adapter_layers": 1},
    "wav2vec2-bert": TEXT
    | {
        "feature_projection_input_dim": 16,
        "conv_depthwise_kernel_size": 3,
        "mask_time_length": 2,
        "Name": "input_features",
        "Shape": (2, 24, 16),
    },
    "wav2vec2-conformer": WAVE | {"position_embeddings_type": "relative"},
    "wavlm": WAVE,
    "whisper": SPEECH
    | {
        "Class": "AutoModelForSpeechSeq2Seq",
        "num_mel_bins": 16,
        "max_source_positions": 16,
        "max_target_positions": 32,
        "Name": "input_features",
        "Shape": (2, 16, 32),
        "DecoderLength": 6,
    },
    # Time series: the values of a window, in place of sound.
    "patchtst": {
        "num_input_channels": 3,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "d_model": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "Class": "PatchTSTForPrediction",
        "Name": "past_values",
        "Shape": (2, 32, 3),
    },
    "patchtsmixer": {
        "num_input_channels": 3,
        "self_attn": True,
        "Class": "PatchTSMixerForPrediction",
        "Name": "past_values",
        "Shape": (2, 32, 3),
    },
}

TOWER_TEXT: dict[str, Any] = TEXT | {"projection_dim": 16}
TOWER_VISION: dict[str, Any] = VIT | {"projection_dim": 16}
TOWERS: dict[str, Any] = {
    "text_config": TOWER_TEXT,
    "vision_config": TOWER_VISION,
    "projection_dim": 16,
}

MULTIMODAL: Table = {
    "align": {
        "text_config": TEXT,
        "vision_config": {
            "image_size": 64,
            "in_channels": [32, 8, 16, 24],
            "out_channels": [8, 16, 24, 32],
            "kernel_sizes": [3, 3, 5, 3],
            "strides": [1, 2, 2, 2],
            "num_block_repeats": [1, 1, 2, 1],
            "expand_ratios": [1, 6, 6, 6],
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "hidden_dim": 32,
        },
        "projection_dim": 32,
    },
    "altclip": TOWERS | {"text_config": TOWER_TEXT | {"project_dim": 16}},
    "blip": TOWERS | {"image_text_hidden_size": 16},
    "bridgetower": {
        "text_config": TEXT | {"hidden_size": 64},
        "vision_config": VIT | {"hidden_size": 64},
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
    },
    "chinese_clip": TOWERS,
    "clip": TOWERS,
    "clipseg": TOWERS | {"extract_layers": [0, 1], "reduce_dim": 16},
    "flava": {
        "image_config": VIT,
        "text_config": TEXT,
        "multimodal_config": VIT,
        "hidden_size": 32,
        "projection_dim": 16,
    },
    "git": TEXT | {"vision_config": VIT},
    "groupvit": TOWERS
    | {
        "vision_config": TOWER_VISION
        | {
            "depths": [1, 1, 1],
            "num_group_tokens": [8, 4, 0],
            "num_output_groups": [8, 4, 4],
        },
        "projection_intermediate_dim": 32,
    },
    "owlvit": TOWERS,
    "siglip": {"text_config": TEXT, "vision_config": VIT},
    "vilt": TEXT | VIT,
    "visual_bert": TEXT | {"visual_embedding_dim": 32, "Floats": {"visual_embeds": (2, 5, 32)}},
    "lxmert": TEXT
    | {
        "l_layers": 1,
        "x_layers": 1,
        "r_layers": 1,
        "visual_feat_dim": 24,
        "Floats": {"visual_feats": (2, 5, 24), "visual_pos": (2, 5, 4)},
    },
    "xclip": TOWERS
    | {
        "vision_config": TOWER_VISION
        | {
            "num_frames": 4,
            "mit_hidden_size": 16,
            "mit_intermediate_size": 32,
            "mit_num_hidden_layers": 1,
            "mit_num_attention_heads": 2,
        },
        "prompt_num_attention_heads": 2,
        "Shape": (2, 4, 3, 64, 64),
    },
}
