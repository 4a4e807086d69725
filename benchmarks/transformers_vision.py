"""Tiny configurations of transformers' image and video models, by model type.

Keys that start with a capital letter are settings of the case, see ``transformers_text``.
"""

from __future__ import annotations

from typing import Any

Table = dict[str, dict[str, Any]]

SIDE = 64

VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": 16,
}
SWIN: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
STAGES: dict[str, Any] = {"depths": [1, 2, 1, 1], "hidden_sizes": [8, 16, 32, 64]}
PYRAMID: dict[str, Any] = STAGES | {
    "depths": [1, 1, 2, 1],
    "num_attention_heads": [1, 2, 4, 8],
    "decoder_hidden_size": 32,
    "image_size": SIDE,
}
RESNET: dict[str, Any] = STAGES | {
    "Type": "resnet",
    "embedding_size": 8,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
DINO: dict[str, Any] = {
    "Type": "dinov2",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
    "out_indices": [1, 2, 3, 4],
    "reshape_hidden_states": False,
}
DETR: dict[str, Any] = {
    "Class": "AutoModelForObjectDetection",
    "backbone_config": RESNET,
    "num_queries": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_ffn_dim": 64,
    "decoder_attention_heads": 4,
}
NECK: dict[str, Any] = {
    "neck_hidden_sizes": [8, 16, 32, 32],
    "fusion_hidden_size": 16,
}
VIDEO: dict[str, Any] = VIT | {"num_frames": 4, "Shape": (2, 4, 3, SIDE, SIDE)}

IMAGE: Table = {
    "audio-spectrogram-transformer": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_length": 64,
        "num_mel_bins": 32,
        "Shape": (2, 64, 32),
    },
    "beit": VIT | {"use_relative_position_bias": True},
    "bit": STAGES | {"embedding_size": 8, "num_groups": 4},
    "conditional_detr": DETR,
    "convnext": STAGES,
    "convnextv2": STAGES,
    "cvt": {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3]},
    "dab-detr": DETR | {"hidden_size": 32, "d_model": 32},
    "data2vec-vision": VIT,
    "deformable_detr": DETR,
    "deit": VIT,
    "depth_anything": NECK
    | {
        "Class": "AutoModelForDepthEstimation",
        "backbone_config": DINO,
        "patch_size": 14,
        "reassemble_hidden_size": 32,
        "head_hidden_size": 8,
        "Shape": (2, 3, 56, 56),
    },
    "detr": DETR,
    "dinov2": VIT,
    "dinov2_with_registers": VIT,
    "dinov3_convnext": STAGES,
    "dinov3_vit": VIT | {"num_register_tokens": 2},
    "donut-swin": SWIN,
    "dpt": VIT
    | NECK
    | {
        "Class": "AutoModelForDepthEstimation",
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
    },
    "efficientnet": {
        "Class": "AutoModelForImageClassification",
        "image_size": SIDE,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "in_channels": [32, 8, 16, 24],
        "out_channels": [8, 16, 24, 32],
        "kernel_sizes": [3, 3, 5, 3],
        "strides": [1, 2, 2, 2],
        "num_block_repeats": [1, 1, 2, 1],
        "expand_ratios": [1, 6, 6, 6],
        "hidden_dim": 1280,
    },
    "eomt": VIT | {"num_blocks": 1, "num_queries": 8, "Class": "EomtForUniversalSegmentation"},
    "focalnet": {
        "image_size": SIDE,
        "embed_dim": 16,
        "hidden_sizes": [16, 32],
        "depths": [2, 2],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
    },
    "glpn": PYRAMID | {"Class": "AutoModelForDepthEstimation"},
    "hgnet_v2": {
        "Class": "AutoModelForImageClassification",
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 32, 32],
        "stage_mid_channels": [8, 8, 16, 16],
        "stage_out_channels": [16, 32, 32, 64],
        "hidden_sizes": [16, 32, 32, 64],
        "stage_num_blocks": [1, 1, 2, 1],
        "stage_numb_of_layers": [2, 2, 2, 2],
    },
    "hiera": {
        "image_size": [SIDE, SIDE],
        "embed_dim": 16,
        "depths": [1, 1, 2, 1],
        "num_heads": [1, 2, 4, 8],
        "masked_unit_size": [8, 8],
    },
    "ijepa": VIT,
    "levit": {
        "Class": "LevitForImageClassification",
        "image_size": SIDE,
        "hidden_sizes": [16, 32, 48],
        "num_attention_heads": [2, 2, 2],
        "depths": [2, 2, 2],
        "key_dim": [8, 8, 8],
    },
    "mask2former": {
        "backbone_config": SWIN
        | {"Type": "swin", "depths": [1, 1, 1, 1], "num_heads": [2] * 4}
        | {"out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "Class": "Mask2FormerForUniversalSegmentation",
        "feature_size": 32,
        "mask_feature_size": 32,
        "hidden_dim": 32,
        "encoder_feedforward_dim": 64,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "num_attention_heads": 4,
        "dim_feedforward": 64,
        "num_queries": 8,
    },
    "maskformer": {
        "backbone_config": RESNET,
        "Class": "MaskFormerForInstanceSegmentation",
        "decoder_config": {k: v for k, v in DETR.items() if k[0].islower()} | {"Type": "detr"},
        "fpn_feature_size": 32,
        "mask_feature_size": 32,
    },
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.35, "Class": "AutoModelForImageClassification"},
    "mobilevit": {
        "Class": "AutoModelForSemanticSegmentation",
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
        "image_size": SIDE,
        "aspp_out_channels": 16,
    },
    "mobilevitv2": {"width_multiplier": 0.25, "image_size": SIDE},
    "poolformer": STAGES | {"depths": [1, 1, 2, 1]},
    "pvt": PYRAMID,
    "pvt_v2": PYRAMID,
    "regnet": STAGES | {"embedding_size": 8, "groups_width": 4},
    "resnet": {k: v for k, v in RESNET.items() if k not in ("Type", "out_features")},
    "rt_detr": DETR
    | {
        "backbone_config": RESNET
        | {"Type": "rt_detr_resnet", "out_features": ["stage2", "stage3", "stage4"]},
        "encoder_in_channels": [16, 32, 64],
        "encoder_hidden_dim": 32,
        "decoder_in_channels": [32, 32, 32],
        "num_denoising": 0,
    },
    "sam_vision_model": VIT
    | {
        "num_pos_feats": 16,
        "output_channels": 16,
        "window_size": 2,
        "global_attn_indexes": [1],
        "mlp_dim": 64,
    },
    "segformer": PYRAMID | {"Class": "AutoModelForSemanticSegmentation"},
    "superpoint": {
        "Class": "SuperPointForKeypointDetection",
        "encoder_hidden_sizes": [8, 8, 16, 16],
    },
    "swiftformer": {"depths": [1, 1, 2, 1], "embed_dims": [8, 16, 24, 32]},
    "swin": SWIN,
    "swin2sr": SWIN
    | {
        "Class": "Swin2SRForImageSuperResolution",
        "patch_size": 1,
        "image_size": 16,
        "Shape": (2, 3, 16, 16),
    },
    "swinv2": SWIN,
    "table-transformer": DETR,
    "textnet": {
        "Class": "AutoModelForImageClassification",
        "stem_out_channels": 8,
        "hidden_sizes": [8, 8, 16, 16, 32],
        "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3], [1, 3]], [[3, 3]], [[3, 1], [3, 3]]],
        "conv_layer_strides": [[2], [2, 1], [2], [2, 1]],
    },
    "timesformer": VIDEO,
    "upernet": {
        "Class": "AutoModelForSemanticSegmentation",
        "backbone_config": RESNET,
        "hidden_size": 16,
        "auxiliary_in_channels": 32,
        "auxiliary_channels": 16,
        "num_labels": 4,
    },
    "videomae": VIDEO,
    "vit": VIT,
    "vit_mae": VIT
    | {
        "Class": "AutoModelForPreTraining",
        "decoder_num_attention_heads": 4,
        "decoder_hidden_size": 32,
        "decoder_num_hidden_layers": 1,
        "decoder_intermediate_size": 64,
    },
    "vit_msn": VIT,
    "vitdet": VIT | {"window_size": 2, "window_block_indices": [0], "mlp_ratio": 2},
    "vivit": VIDEO | {"tubelet_size": [2, 16, 16]},
    "yolos": VIT
    | {
        "Class": "AutoModelForObjectDetection",
        "image_size": [SIDE, SIDE],
        "num_detection_tokens": 8,
    },
    "zoedepth": NECK
    | {
        "Class": "AutoModelForDepthEstimation",
        "backbone_config": DINO
        | {
            "Type": "beit",
            "reshape_hidden_states": False,
            "patch_size": 16,
            "image_size": SIDE,
            "intermediate_size": 64,
        },
        "bottleneck_features": 16,
        "num_relative_features": 8,
        "num_attractors": [4, 2, 2, 1],
        "bin_embedding_dim": 8,
        "bin_configurations": [{"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0}],
    },
}
